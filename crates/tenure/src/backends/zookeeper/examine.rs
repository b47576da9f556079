//! What could break the locks: the ensemble, its version and bounds, and who may change our nodes.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ClientError, Permission};

use super::fault;
use super::session::Session;
use super::settings::Settings;
use crate::error::Result;
use crate::finding::{Finding, Grade};

pub(super) async fn examine(settings: &Settings, session: &Session) -> Result<Vec<Finding>> {
    let hosts = settings.hosts.clone();
    let looked = tokio::task::spawn_blocking(move || hosts.iter().map(Server::look).collect());
    let servers: Vec<Server> = looked.await.unwrap_or_default();
    let mut findings = vec![ensemble(&servers), words(&servers)];
    findings.extend(version(&servers));
    findings.push(bounds(settings, session, &servers));
    findings.push(containers(session).await?);
    findings.push(rights(session).await?);
    Ok(findings)
}

/// What one server tells about itself.
struct Server {
    name: String,
    /// Its answer to `srvr`, unless it is down or forbids the word.
    srvr: Option<String>,
    /// Its answer to `conf`.
    conf: Option<String>,
}

impl Server {
    fn look((host, port): &(String, u16)) -> Server {
        let ask = |word: &str| four_letters(host, *port, word).ok();
        Server { name: format!("{host}:{port}"), srvr: ask("srvr"), conf: ask("conf") }
    }

    fn mode(&self) -> Option<&str> {
        let lines = self.srvr.as_deref()?.lines();
        lines.filter_map(|line| line.strip_prefix("Mode: ")).next()
    }

    fn setting(&self, name: &str) -> Option<u64> {
        let lines = self.conf.as_deref()?.lines();
        let value = lines.filter_map(|line| line.split_once('=')).find(|(key, _)| *key == name);
        value?.1.trim().parse().ok()
    }
}

fn four_letters(host: &str, port: u16, word: &str) -> std::io::Result<String> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        let stream = TcpStream::connect_timeout(&address, LOOK);
        let answer = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(LOOK))?;
            stream.write_all(word.as_bytes())?;
            let mut answer = String::new();
            stream.take(MOST_TEXT).read_to_string(&mut answer)?;
            Ok(answer)
        });
        match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn ensemble(servers: &[Server]) -> Finding {
    let subject = "ensemble";
    let serving: Vec<_> = servers.iter().filter(|server| server.mode().is_some()).collect();
    let modes: Vec<_> = serving.iter().filter_map(|server| server.mode()).collect();
    if modes.contains(&"standalone") {
        return Finding::new(Grade::Notice, subject, "one server: while it is down, nothing moves")
            .advise("run three, and name them all in the URL");
    }
    let missing = servers.iter().filter(|server| server.mode().is_none());
    let missing: Vec<_> = missing.map(|server| server.name.as_str()).collect();
    if !missing.is_empty() {
        let detail = format!("no word from {}", missing.join(", "));
        return Finding::new(Grade::Warning, subject, detail)
            .advise("start them, or allow the word `srvr`");
    }
    match modes.contains(&"leader") {
        true => Finding::good(subject, format!("{} servers of the URL serve", serving.len())),
        false => Finding::new(Grade::Notice, subject, "the leader is not in the URL")
            .advise("name all servers in the URL"),
    }
}

fn words(servers: &[Server]) -> Finding {
    let known = |server: &Server| server.conf.as_ref().is_some_and(|text| text.contains('='));
    match servers.iter().any(known) {
        true => Finding::good("four-letter words", "`srvr` and `conf` are answered"),
        false => Finding::new(Grade::Notice, "four-letter words", "`conf` is not answered")
            .advise("set `4lw.commands.whitelist=srvr,conf` to see the bounds of sessions"),
    }
}

fn version(servers: &[Server]) -> Option<Finding> {
    let texts = servers.iter().filter_map(|server| server.srvr.as_deref());
    let mut versions: Vec<_> = texts
        .filter_map(|text| text.lines().next()?.strip_prefix("Zookeeper version: "))
        .filter_map(|text| text.split(['-', ',']).next())
        .collect();
    versions.sort_unstable();
    versions.dedup();
    let shown = versions.join(", ");
    match versions.as_slice() {
        [] => None,
        [_] => Some(Finding::good("version", format!("ZooKeeper {shown}"))),
        _ => Some(
            Finding::new(Grade::Notice, "version", format!("mixed: {shown}"))
                .advise("finish the upgrade"),
        ),
    }
}

/// What was negotiated, and whether the lease that we derive from it is safe.
fn bounds(settings: &Settings, session: &Session, servers: &[Server]) -> Finding {
    let (asked, got) = (settings.timeout, session.timeout());
    let lease = session.lease().as_millis();
    let tick = servers.iter().find_map(|server| server.setting("tickTime"));
    if let Some(tick) = tick.map(Duration::from_millis)
        && got < tick * 3
    {
        let detail = format!("{} ms is less than three ticks of {} ms", got.as_millis(), {
            tick.as_millis()
        });
        return Finding::new(Grade::Warning, "session", detail)
            .advise("a holder at a cut-off follower may learn of its loss late; raise `session`");
    }
    let detail = format!("timeout {} ms, leases of {lease} ms", got.as_millis());
    if got != asked {
        let asked = asked.as_millis();
        return Finding::new(
            Grade::Notice,
            "session",
            format!("{detail}; {asked} ms was asked for"),
        )
        .advise("set `session` within the server's minSessionTimeout and maxSessionTimeout");
    }
    Finding::good("session", detail)
}

/// Makes a container and deletes it again.
async fn containers(session: &Session) -> Result<Finding> {
    let client = session.client();
    let probe = session.tree.child(&format!("%{:x}", client.session_id().0));
    let options = session.options(CreateMode::Container);
    match client.mkdir(&probe, &options).await {
        Ok(()) => {
            super::queue::gone(client.delete(&probe, None).await)?;
            Ok(Finding::good("containers", "empty locks are swept by the server"))
        }
        Err(ClientError::Unimplemented) => {
            let detail = "the server has none, so that no lock can be taken";
            Ok(Finding::new(Grade::Fault, "containers", detail)
                .advise("use ZooKeeper 3.5.3 or newer"))
        }
        Err(ClientError::NoAuth) => {
            let detail = format!("no right to create nodes in `{}`", session.tree.root());
            Ok(Finding::new(Grade::Fault, "containers", detail).advise("change the node's ACL"))
        }
        Err(error) => Err(fault::from_client(error)),
    }
}

/// Who may delete what is ours.
async fn rights(session: &Session) -> Result<Finding> {
    let client = session.client();
    let root = session.tree.root();
    let acls = match client.get_acl(root).await {
        Ok((acls, _)) => acls,
        Err(ClientError::NoNode | ClientError::NoAuth) => Vec::new(),
        Err(error) => return Err(fault::from_client(error)),
    };
    let open =
        acls.iter().any(|acl| acl.scheme() == "world" && acl.permission().has(Permission::DELETE));
    Ok(match open {
        true => {
            let detail = format!("anybody who reaches the server may delete nodes in `{root}`");
            Finding::new(Grade::Notice, "rights", detail)
                .advise("use a login (`zk://me:secret@host`) where the network is shared")
        }
        false => Finding::good("rights", format!("`{root}` is not open to everybody")),
    })
}

/// How long to wait for one server's word.
const LOOK: Duration = Duration::from_secs(2);
/// An answer longer than this is not ours.
const MOST_TEXT: u64 = 1 << 20;
