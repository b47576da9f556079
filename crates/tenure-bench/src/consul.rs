//! Consul: what a lock with queue and token costs compared with the bare calls that acquire and
//! release a key.

use anyhow::{Context, Result, ensure};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use tenure::backends::Consul;
use tenure_servers::Topology;
use tenure_servers::wire::http::json_field;

use crate::compare::Comparison;
use crate::cycle::{by_backend, by_client};

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::shared(Topology::Consul)?;
    let mut bare = Bare::connect(&cluster.node().address())?;
    let options = r#"{"TTL":"3600s","LockDelay":"0s","Checks":[],"NodeChecks":[]}"#;
    let session = bare.put("/v1/session/create", options)?;
    let session = json_field(&session, "ID").context("a session")?;
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
