//! Consul: what a lock with queue and token costs compared with the bare calls that acquire and
//! release a key.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use tenure::backends::Consul;
use tenure_servers::Topology;
use tenure_servers::wire::http::json_field;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};
use crate::figures::Table;
use crate::hot;
use crate::peer::CONSUL;
use crate::warm::{Cycle, Entry, FEW, Own, Plan, Server, of_tenure, one_and_many};

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::shared(Topology::Consul)?;
    let mut bare = Bare::connect(&cluster.node().address())?;
    let session = bare.session()?;
    let path = "/v1/kv/bare/.lock?flags=3304740253564472344";
    let acquire = format!("{path}&acquire={session}");
    let release = format!("{path}&release={session}");
    let transaction = format!(
        r#"[{{"KV":{{"Verb":"check-not-exists","Key":"txn/.lock"}}}},
            {{"KV":{{"Verb":"lock","Key":"txn/.lock","Session":"{session}"}}}}]"#
    );
    let mut second = Bare::connect(&cluster.node().address())?;
    let runtime = crate::runtime()?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    let locks = tenure::blocking::connect(&cluster.url())?;
    let consul = runtime.block_on(Consul::open(&cluster.url()))?;
    let blocking = locks.lock("blocking");
    Comparison::run(
        rounds,
        1,
        vec![
            (
                "bare HTTP: ?acquire, ?release",
                Box::new(|| {
                    ensure!(bare.put(&acquire, "me")?.trim() == "true", "not acquired");
                    ensure!(bare.put(&release, "me")?.trim() == "true", "not released");
                    Ok(())
                }),
            ),
            (
                "bare HTTP: the smallest transactions",
                Box::new(|| {
                    let acquired = second.put("/v1/txn", &transaction)?;
                    let index = json_field(&acquired, "ModifyIndex").context("not acquired")?;
                    let release = format!(
                        r#"[{{"KV":{{"Verb":"check-index","Key":"txn/.lock","Index":{index}}}}},
                            {{"KV":{{"Verb":"delete","Key":"txn/.lock"}}}}]"#
                    );
                    second.put("/v1/txn", &release).map(drop)
                }),
            ),
            ("consul backend: acquire, release", by_backend(&runtime, &consul)),
            ("tenure: acquire, release", by_client(&runtime, &client)),
            ("tenure::blocking: acquire, release", Box::new(|| Ok(blocking.acquire()?.release()?))),
        ],
    )
}

/// A warm loop, and one hot key.
pub(crate) fn compare_warm(plan: Plan) -> Result<Vec<Table>> {
    let cluster = tenure_servers::start(Topology::Consul, &tenure_servers::Options::default())?;
    let node = cluster.node();
    let session = Bare::connect(&node.address())?.session()?;
    let runtime = crate::workers()?;
    let mut bare = Vec::new();
    for number in 0..FEW {
        let stream = runtime.block_on(tokio::net::TcpStream::connect(node.address()))?;
        stream.set_nodelay(true)?;
        bare.push(Http { stream, number, session: session.clone() });
    }
    let mut bare = bare.into_iter();
    let next = |_| bare.next().expect("there are as many as tasks");
    let mut entries =
        vec![Entry::new("bare HTTP: ?acquire, ?release", Own::new(&runtime, FEW, next))];
    entries.extend(of_tenure(&runtime, &cluster.url(), FEW)?);
    let peers = [("api.Lock, one session (Go)", &CONSUL)];
    for (name, recipe) in peers.iter().filter(|_| plan.peers) {
        entries.push(recipe.entry(name, node, ""));
    }
    let server = Server::new(node)?;
    let mut tables = one_and_many("consul-warm", "Consul", (plan, FEW), &server, &mut entries)?;
    tables.push(hot::compare_tasks("consul", plan, node, &peers)?);
    Ok(tables)
}

/// The two requests of the simplest lock, on a connection of a runtime.
struct Http {
    stream: tokio::net::TcpStream,
    number: usize,
    session: String,
}

impl Http {
    async fn put(&mut self, verb: &str) -> Result<()> {
        let path = format!("/v1/kv/bare{}/.lock?{verb}={}", self.number, self.session);
        let head = format!("PUT {path} HTTP/1.1\r\nHost: consul\r\nContent-Length: 2\r\n\r\nme");
        self.stream.write_all(head.as_bytes()).await?;
        let mut response = Vec::new();
        // The body is `true` and a line end, or `false` without a grant.
        loop {
            let read = self.stream.read_buf(&mut response).await?;
            ensure!(read > 0, "the server has closed the connection");
            let end = response.windows(4).position(|bytes| bytes == b"\r\n\r\n");
            if let Some(body) = end.map(|end| String::from_utf8_lossy(&response[end + 4..]))
                && !body.is_empty()
            {
                ensure!(body.trim() == "true", "{verb}: {body}");
                return Ok(());
            }
        }
    }
}

impl Cycle for Http {
    async fn once(&mut self) -> Result<()> {
        self.put("acquire").await?;
        self.put("release").await
    }
}

/// A write of the application, without and with the checks that the lock is still held.
pub(crate) fn compare_condition(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::shared(Topology::Consul)?;
    let runtime = crate::runtime()?;
    let client = runtime.block_on(tenure::connect(&cluster.url()))?;
    let guard = runtime.block_on(client.lock("stock/42").acquire())?;
    let condition = runtime.block_on(async {
        let consul = Consul::open(&cluster.url()).await?;
        consul.condition(guard.key(), guard.token()).await
    })?;
    let condition = condition.context("it is held")?;
    let (key, session, index) = (&condition.key, &condition.session, condition.index);
    let set = r#"{"KV":{"Verb":"set","Key":"data/42","Value":"Nw=="}}"#;
    let plain = format!("[{set}]");
    let fenced = format!(
        r#"[{{"KV":{{"Verb":"check-session","Key":"{key}","Session":"{session}"}}}},
            {{"KV":{{"Verb":"check-index","Key":"{key}","Index":{index}}}}},{set}]"#
    );
    let mut one = Bare::connect(&cluster.node().address())?;
    let mut other = Bare::connect(&cluster.node().address())?;
    let write = |bare: &mut Bare, body: &str| {
        let response = bare.put("/v1/txn", body)?;
        // The errors are under `Errors`, which is null if there are none.
        ensure!(json_field(&response, "Errors").is_some_and(|errors| errors == "null"), response);
        Ok(())
    };
    Comparison::run(
        rounds,
        1,
        vec![
            ("consul: txn(set)", Box::new(|| write(&mut one, &plain))),
            ("consul: txn(two checks, set)", Box::new(|| write(&mut other, &fenced))),
        ],
    )
}

/// A minimal HTTP client with one connection.
struct Bare {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Bare {
    fn connect(address: &str) -> Result<Bare> {
        let writer = TcpStream::connect(address)?;
        writer.set_nodelay(true)?;
        Ok(Bare { reader: BufReader::new(writer.try_clone()?), writer })
    }

    /// A session that lasts for the run.
    fn session(&mut self) -> Result<String> {
        let options = r#"{"TTL":"3600s","LockDelay":"0s","Checks":[],"NodeChecks":[]}"#;
        let session = self.put("/v1/session/create", options)?;
        Ok(json_field(&session, "ID").context("a session")?.to_owned())
    }

    fn put(&mut self, path: &str, body: &str) -> Result<String> {
        let length = body.len();
        let head = format!("PUT {path} HTTP/1.1\r\nHost: consul\r\nContent-Length: {length}");
        self.writer.write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
        let mut length = None;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line)?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Some(value.trim().parse()?);
            }
        }
        let mut body = vec![0; length.context("a response without a length")?];
        self.reader.read_exact(&mut body)?;
        Ok(String::from_utf8(body)?)
    }
}
