//! Health checks for `tenure doctor`: the ensemble, its version, the bounds of sessions, and who
//! may delete nodes.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_client::{CreateMode, Error as ClientError, Permission};

use super::config::Config;
use super::connection::session::Session;
use super::{error, nodes};
use crate::error::Result;
use crate::finding::{Finding, Severity};

/// How long a server may take to respond to a four-letter word.
const RESPONSE_LIMIT: Duration = Duration::from_secs(2);
/// How much of a response is read.
const RESPONSE_MAX: u64 = 1 << 20;

pub(super) async fn doctor(config: &Config, session: &Session) -> Result<Vec<Finding>> {
    let hosts = config.hosts.clone();
    let query = move || hosts.iter().map(ServerReport::query).collect();
    let servers: Vec<ServerReport> = tokio::task::spawn_blocking(query).await.unwrap_or_default();
    let mut findings = vec![check_ensemble(&servers), check_four_letter_words(&servers)];
    findings.extend(check_version(&servers));
    findings.push(check_session(config, session, &servers));
    findings.push(check_containers(session).await?);
    findings.push(check_rights(session).await?);
    Ok(findings)
}

/// What one server says about itself.
struct ServerReport {
    name: String,
    /// Its response to `srvr`; `None` if it is down or does not allow the command.
    srvr: Option<String>,
    /// Its response to `conf`.
    conf: Option<String>,
}

impl ServerReport {
    /// Queries a server. Blocks the thread.
    fn query((host, port): &(String, u16)) -> ServerReport {
        let send = |command: &str| four_letter_word(host, *port, command).ok();
        let name = format!("{host}:{port}");
        ServerReport { name, srvr: send("srvr"), conf: send("conf") }
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

/// Sends one of ZooKeeper's four-letter words, and reads the response.
fn four_letter_word(host: &str, port: u16, command: &str) -> std::io::Result<String> {
    let mut last = std::io::Error::from(std::io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        let stream = TcpStream::connect_timeout(&address, RESPONSE_LIMIT);
        let response = stream.and_then(|mut stream| {
            stream.set_read_timeout(Some(RESPONSE_LIMIT))?;
            stream.set_write_timeout(Some(RESPONSE_LIMIT))?;
            stream.write_all(command.as_bytes())?;
            let mut response = String::new();
            stream.take(RESPONSE_MAX).read_to_string(&mut response)?;
            Ok(response)
        });
        match response {
            Ok(response) => return Ok(response),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn check_ensemble(servers: &[ServerReport]) -> Finding {
    let subject = "ensemble";
    let serving: Vec<_> = servers.iter().filter(|server| server.mode().is_some()).collect();
    let modes: Vec<_> = serving.iter().filter_map(|server| server.mode()).collect();
    if modes.contains(&"standalone") {
        return Finding::new(
            Severity::Notice,
            subject,
            "one server: while it is down, nothing moves",
        )
        .advise("run three, and name them all in the URL");
    }
    let missing = servers.iter().filter(|server| server.mode().is_none());
    let missing: Vec<_> = missing.map(|server| server.name.as_str()).collect();
    if !missing.is_empty() {
        let detail = format!("no response from {}", missing.join(", "));
        return Finding::new(Severity::Warning, subject, detail)
            .advise("start them, or allow the command `srvr`");
    }
    if modes.contains(&"leader") {
        Finding::good(subject, format!("{} servers of the URL serve", serving.len()))
    } else {
        Finding::new(Severity::Notice, subject, "the leader is not in the URL")
            .advise("name all servers in the URL")
    }
}

fn check_four_letter_words(servers: &[ServerReport]) -> Finding {
    let shows_config =
        |server: &ServerReport| server.conf.as_ref().is_some_and(|text| text.contains('='));
    if servers.iter().any(shows_config) {
        Finding::good("four-letter words", "`srvr` and `conf` are allowed")
    } else {
        Finding::new(Severity::Notice, "four-letter words", "`conf` is not allowed")
            .advise("set `4lw.commands.whitelist=srvr,conf` to see the bounds of sessions")
    }
}

fn check_version(servers: &[ServerReport]) -> Option<Finding> {
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
            Finding::new(Severity::Notice, "version", format!("mixed: {shown}"))
                .advise("finish the upgrade"),
        ),
    }
}

/// Checks the negotiated session timeout, and whether the lease that follows from it is safe.
fn check_session(config: &Config, session: &Session, servers: &[ServerReport]) -> Finding {
    let requested = config.timeout;
    let got = session.timeout();
    let lease = session.lease().as_millis();
    let tick = servers.iter().find_map(|server| server.setting("tickTime"));
    if let Some(tick) = tick.map(Duration::from_millis)
        && got < tick * 3
    {
        let (got, tick) = (got.as_millis(), tick.as_millis());
        let detail = format!("{got} ms is less than three ticks of {tick} ms");
        return Finding::new(Severity::Warning, "session", detail)
            .advise("a holder at a cut-off follower may learn of its loss late; raise `session`");
    }
    let detail = format!("timeout {} ms, leases of {lease} ms", got.as_millis());
    if got != requested {
        let requested = requested.as_millis();
        return Finding::new(
            Severity::Notice,
            "session",
            format!("{detail}; {requested} ms was requested"),
        )
        .advise("set `session` within the server's minSessionTimeout and maxSessionTimeout");
    }
    Finding::good("session", detail)
}

/// Creates a container and deletes it again.
async fn check_containers(session: &Session) -> Result<Finding> {
    let client = session.client();
    let probe = session.tree.child(&format!("%{:x}", client.session_id().0));
    let options = session.create_options(CreateMode::Container);
    match client.mkdir(&probe, &options).await {
        Ok(()) => {
            nodes::was_deleted(client.delete(&probe, None).await)?;
            Ok(Finding::good("containers", "the server deletes empty ones"))
        }
        Err(ClientError::Unimplemented) => {
            let detail = "the server has none, so that no lock can be acquired";
            Ok(Finding::new(Severity::Fault, "containers", detail)
                .advise("use ZooKeeper 3.5.3 or newer"))
        }
        Err(ClientError::NoAuth) => {
            let detail = format!("no right to create nodes in `{}`", session.tree.root());
            Ok(Finding::new(Severity::Fault, "containers", detail).advise("change the node's ACL"))
        }
        Err(error) => Err(error::from_client(error)),
    }
}

/// Checks whether any client may delete nodes.
async fn check_rights(session: &Session) -> Result<Finding> {
    let client = session.client();
    let root = session.tree.root();
    let acls = match client.get_acl(root).await {
        Ok((acls, _)) => acls,
        Err(ClientError::NoNode | ClientError::NoAuth) => Vec::new(),
        Err(error) => return Err(error::from_client(error)),
    };
    let open =
        acls.iter().any(|acl| acl.scheme() == "world" && acl.permission().has(Permission::DELETE));
    if open {
        let detail = format!("every client that reaches the server may delete nodes in `{root}`");
        let advice = "use a login (`zk://me:secret@host`) where the network is shared";
        Ok(Finding::new(Severity::Notice, "rights", detail).advise(advice))
    } else {
        Ok(Finding::good("rights", format!("`{root}` is not open to every client")))
    }
}
