//! What the server of a run used.

use anyhow::{Context, Result};
use tenure_servers::Node;
use tenure_servers::wire::redis::Redis;

use crate::usage::Usage;

/// The commands of clients that do everything by scripts.
pub(crate) const SCRIPTS: &[&str] =
    &["eval", "evalsha", "subscribe", "unsubscribe", "ssubscribe", "sunsubscribe", "script|load"];
/// Those of clients that set a string themselves, and delete it by a script.
pub(crate) const SET_AND_SCRIPTS: &[&str] =
    &["eval", "evalsha", "set", "subscribe", "unsubscribe", "script|load"];
/// Those of this program's own connections, and of connections being opened.
const ASIDE: &[&str] = &["info", "auth", "hello", "ping", "select", "client", "command", "echo"];

/// A server whose use of the machine is read.
pub(crate) struct Server {
    pid: u32,
    redis: Option<u16>,
}

/// What a Redis has executed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Commands {
    /// Commands that clients sent.
    pub(crate) requests: f64,
    /// Commands that scripts called.
    pub(crate) calls: f64,
    /// The time in scripts.
    pub(crate) script_us: f64,
}

impl Server {
    pub(crate) fn new(node: &Node) -> Result<Server> {
        Ok(Server { pid: node.pid().context("the server has ended")?, redis: None })
    }

    /// A Redis, which counts commands as well.
    pub(crate) fn redis(node: &Node) -> Result<Server> {
        Ok(Server { redis: Some(node.port()), ..Server::new(node)? })
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        Usage::of_tree(self.pid)
    }

    /// What it has executed so far, if it is a Redis. `requests` are the commands that the client
    /// sends; the others are called by scripts.
    pub(crate) fn commands(&self, requests: &[&str]) -> Result<Option<Commands>> {
        let Some(port) = self.redis else { return Ok(None) };
        let response = Redis::connect(port)?.command(&["INFO", "commandstats"])?;
        Ok(Some(read(response.text().unwrap_or_default(), requests)))
    }
}

/// Reads lines like `cmdstat_evalsha:calls=2,usec=51,usec_per_call=25.50,…`.
fn read(text: &str, requests: &[&str]) -> Commands {
    let mut sum = Commands::default();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("cmdstat_").and_then(|l| l.split_once(':'))
        else {
            continue;
        };
        let figure = |field: &str| {
            let fields = rest.split(',').filter_map(|pair| pair.split_once('='));
            let mut found = fields.filter(|(known, _)| *known == field);
            found.next().and_then(|(_, value)| value.trim().parse::<f64>().ok()).unwrap_or(0.0)
        };
        if name == "eval" || name == "evalsha" {
            sum.script_us += figure("usec");
        }
        if requests.contains(&name) {
            sum.requests += figure("calls");
        } else if !ASIDE.contains(&name.split('|').next().unwrap_or_default()) {
            sum.calls += figure("calls");
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_calls_of_scripts() {
        let text = "# Commandstats\r\n\
                    cmdstat_evalsha:calls=2,usec=51,usec_per_call=25.50\r\n\
                    cmdstat_hset:calls=4,usec=8,usec_per_call=2.00\r\n\
                    cmdstat_client|setinfo:calls=1,usec=1,usec_per_call=1.00\r\n\
                    cmdstat_info:calls=9,usec=90,usec_per_call=10.00\r\n";
        let read = read(text, SCRIPTS);
        assert_eq!((read.requests, read.calls, read.script_us), (2.0, 4.0, 51.0));
    }
}
