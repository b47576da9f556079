//! Which server has a key, and running a script there: one server, or the masters of a cluster.
//!
//! A script is known to the server by its hash and is sent with its text only if the server forgot
//! it. Redirections of a cluster, and a server that is no master any more, are followed here: such
//! a server did nothing, so that sending the script to another one is no repetition.

use std::sync::Arc;

use redis::{RedisError, Value};

use super::cluster::{Cluster, ReportStaleOnDrop};
use super::dial::{DialTarget, Dialer};
use super::{Connection, PushHandler};
use crate::backends::redis::config::{Config, Topology};
use crate::backends::redis::error::from_redis;
use crate::backends::redis::layout::scripts::{ScriptCall, Scripts};
use crate::backends::redis::layout::slot::slot;
use crate::error::{Error, ErrorKind, Result};
use crate::support::reconnect::Reconnect;

/// How often a script is sent for one call: after redirections, or with its text.
const SENT_MAX: usize = 6;

/// The servers that keep the locks.
#[derive(Debug)]
pub(crate) enum Servers {
    Cluster(Cluster),
    Single(Reconnect<Dialer>),
}

impl Servers {
    pub(crate) fn new(
        config: &Config,
        scripts: &Scripts,
        reads_uptime: bool,
        on_push: &PushHandler,
    ) -> Servers {
        let batch = match config.topology {
            // The keys of one script have to be in one slot.
            Topology::Cluster(_) => None,
            Topology::Single(_) | Topology::Sentinel { .. } => Some(scripts.batch.clone()),
        };
        let dialer = |target| Dialer {
            target,
            login: config.login.clone(),
            limits: config.limits,
            tls: config.tls.clone(),
            reads_uptime,
            batch: batch.clone(),
            on_push: on_push.clone(),
        };
        let target = match config.topology.clone() {
            Topology::Cluster(seeds) => {
                let any = DialTarget::Address(seeds[0].clone());
                return Servers::Cluster(Cluster::new(seeds, dialer(any)));
            }
            Topology::Single(address) => DialTarget::Address(address),
            Topology::Sentinel { sentinels, master, login } => {
                DialTarget::Master { sentinels, name: master, login }
            }
        };
        Servers::Single(Reconnect::new(dialer(target)))
    }

    /// The slot of a key, where slots matter.
    pub(crate) fn slot(&self, key: &str) -> Option<u16> {
        match self {
            Servers::Cluster(_) => Some(slot(key)),
            Servers::Single(_) => None,
        }
    }

    /// The connection to the server that has this key.
    pub(crate) async fn connection(&self, key: &str) -> Result<Arc<Connection>> {
        match self {
            Servers::Cluster(cluster) => cluster.connection(slot(key)).await,
            Servers::Single(server) => server.get().await,
        }
    }

    /// The connections to all servers that keep locks.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Connection>>> {
        self.each_master().await?.into_iter().map(|(_, connection)| connection).collect()
    }

    /// The connection to each server that keeps locks, or why there is none, with its address.
    pub(crate) async fn each_master(&self) -> Result<Vec<(String, Result<Arc<Connection>>)>> {
        match self {
            Servers::Cluster(cluster) => cluster.each_master().await,
            Servers::Single(server) => Ok(vec![(String::new(), Ok(server.get().await?))]),
        }
    }

    /// The connection to one of the servers, whichever responds first.
    pub(crate) async fn any_master(&self) -> Result<Arc<Connection>> {
        match self {
            Servers::Cluster(cluster) => cluster.any_master().await,
            Servers::Single(server) => server.get().await,
        }
    }

    /// A server refused or ended a subscription: its slot may have moved.
    pub(crate) fn report_stale(&self) {
        if let Servers::Cluster(cluster) = self {
            cluster.report_stale();
        }
    }

    /// Runs a script, once, at the server that has this key.
    pub(crate) async fn run(&self, key: &str, call: &ScriptCall<'_>) -> Result<Value> {
        let connection = self.connection(key).await?;
        Ok(self.run_on(connection, key, call).await?.0)
    }

    /// Runs a script on this connection first, and once more if that breaks. Returns the response
    /// and the connection that it came on.
    ///
    /// Only for scripts that read, and for renewals, which grant nothing and leave nothing behind.
    /// A connection that was killed while it was idle is often noticed only by the next request.
    pub(crate) async fn run_on_or_retry(
        &self,
        connection: Arc<Connection>,
        key: &str,
        call: &ScriptCall<'_>,
    ) -> Result<(Value, Arc<Connection>)> {
        match self.run_on(connection.clone(), key, call).await {
            Err(_) if connection.is_broken() => {
                self.run_on(self.connection(key).await?, key, call).await
            }
            response => response,
        }
    }

    /// Runs a script once, on this connection first. Returns the response and the connection that
    /// it came on.
    pub(crate) async fn run_on(
        &self,
        mut connection: Arc<Connection>,
        key: &str,
        call: &ScriptCall<'_>,
    ) -> Result<(Value, Arc<Connection>)> {
        let mut with_text = None;
        let mut asking = false;
        let mut reconnected = false;
        // The caller may be dropped before it learns that there is no response.
        let report = match self {
            Servers::Cluster(cluster) => Some(cluster.report_stale_on_drop()),
            Servers::Single(_) => None,
        };
        for _ in 0..SENT_MAX {
            let command = with_text.as_ref().unwrap_or(call.by_hash());
            let response = if asking {
                execute_asking(&connection, command).await
            } else if call.is_short() {
                // Its text is not a part of any batch.
                let part = call.part().filter(|_| with_text.is_none());
                connection.execute_short(command, part).await
            } else {
                connection.execute(command).await
            };
            let error = match response {
                Ok(response) => {
                    report.into_iter().for_each(ReportStaleOnDrop::disarm);
                    return Ok((response, connection));
                }
                Err(error) => error,
            };
            match (self, error.code()) {
                (_, Some("NOSCRIPT")) => with_text = Some(call.by_text()),
                (Servers::Cluster(cluster), Some(code @ ("ASK" | "MOVED"))) => {
                    asking = code == "ASK";
                    connection = cluster.redirected(&error).await?;
                }
                // It did nothing; the sentinels may know which server is master now.
                (Servers::Single(server), Some("READONLY" | "MASTERDOWN")) if !reconnected => {
                    reconnected = true;
                    connection = server.get().await?;
                }
                _ => {
                    let error = from_redis(error, &format!("redis about `{key}`"));
                    if error.kind() != ErrorKind::Unavailable {
                        report.into_iter().for_each(ReportStaleOnDrop::disarm);
                    }
                    return Err(error);
                }
            }
        }
        let message = format!("the cluster's nodes do not agree which of them has `{key}`");
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

/// Executes a command for a slot that is being moved to this node, which refuses it without
/// `ASKING`.
async fn execute_asking(
    connection: &Connection,
    command: &redis::Cmd,
) -> Result<Value, RedisError> {
    let commands = [redis::cmd("ASKING"), command.clone()];
    match connection.execute_all(&commands).await?.pop() {
        Some(Value::ServerError(error)) => Err(error.into()),
        Some(response) => Ok(response),
        None => Ok(Value::Nil),
    }
}
