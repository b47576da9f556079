//! A running topology: its nodes, its leader, and whether it is ready.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::guardian;
use crate::node::{Node, Role, START_LIMIT, url};
use crate::options::Options;
use crate::process::log_excerpt;
use crate::secret;
use crate::servers::{self, StartContext};
use crate::topology::Topology;
use crate::wait::wait_until;

/// Gets the servers of a topology and starts them. The cluster is ready when this returns.
///
/// # Errors
/// [Missing](Error::is_missing) if the server is not available on this machine; otherwise if it did
/// not start, with the end of the log.
pub fn start(topology: Topology, options: &Options) -> Result<Cluster> {
    let failed = |error: std::io::Error| Error::failed(format!("start {topology}"), error);
    let prefix = format!("tenure-{topology}-");
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir().map_err(failed)?;
    guardian::remove_at_exit(dir.path());
    let context = StartContext::new(topology, options, dir.path())?;
    let nodes = servers::start(&context)?;
    let cluster = Cluster { topology, nodes, dir };
    cluster.wait_ready()?;
    Ok(cluster)
}

/// A running topology. Dropping it kills the nodes and removes their data.
#[derive(Debug)]
pub struct Cluster {
    topology: Topology,
    nodes: Vec<Node>,
    dir: TempDir,
}

impl Cluster {
    /// The topology that was started.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// All nodes, the sentinels last.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The nodes that keep data.
    pub fn members(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.role() == Role::Member)
    }

    /// The first node, which is the only one of a single server.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// `host:port` of every node that a client's URL names, separated by commas: the sentinels if
    /// there are any, otherwise all nodes.
    pub fn hosts(&self) -> String {
        let role = match self.topology {
            Topology::RedisSentinel => Role::Sentinel,
            _ => Role::Member,
        };
        let named = self.nodes.iter().filter(|node| node.role() == role);
        named.map(Node::address).collect::<Vec<_>>().join(",")
    }

    /// The URL of the cluster, with the password. The scheme names the server or the kind of
    /// client.
    pub fn url(&self) -> String {
        let hosts = self.hosts();
        let secret = self.node().secret.as_ref();
        match self.topology {
            Topology::Redis5 => url("redlock", &hosts, secret),
            Topology::RedisCluster => url("redis+cluster", &hosts, secret),
            Topology::RedisSentinel => {
                let url = url("redis+sentinel", &hosts, secret);
                let password = self.node().password().unwrap_or_default();
                // The sentinels need a password too, which may differ in general.
                format!("{url}/{}?sentinel_password={password}", servers::MASTER_NAME)
            }
            Topology::Mysql => self.node().url(),
            _ => url(self.topology.server(), &hosts, secret),
        }
    }

    /// The URL with further options, such as `ttl=5s&prefix=a/`.
    pub fn url_with(&self, options: &str) -> String {
        let url = self.url();
        match options {
            "" => url,
            _ if url.contains('?') => format!("{url}&{options}"),
            _ => format!("{url}?{options}"),
        }
    }

    /// The folder of logs and data, removed at the end.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The node that accepts writes: the leader, the master, or the only node. `None` while there
    /// is no leader, as during an election, and for several Redis masters.
    ///
    /// # Errors
    /// When no node responds.
    pub fn leader(&self) -> Result<Option<&Node>> {
        let name = || format!("find the leader of {}", self.topology);
        servers::leader(self).map_err(|error| Error::failed(name(), error))
    }

    /// Makes another node the leader, by the server's own command where it has one, otherwise by
    /// restarting the leader. All nodes run when this returns. Returns the new leader.
    ///
    /// # Errors
    /// When no other node runs, or there is no new leader within a minute.
    pub fn failover(&self) -> Result<&Node> {
        let name = || format!("fail over {}", self.topology);
        let old = self.leader()?.ok_or_else(|| Error::failed(name(), "there is no leader"))?;
        if self.members().filter(|node| node.is_running()).count() < 2 {
            return Err(Error::failed(name(), "there is no other node"));
        }
        let stopped = servers::step_down(self, old)?;
        let another = |node: &Node| node.name() != old.name();
        let elected = self.wait_leader(another);
        if stopped {
            old.restart()?;
        }
        elected?;
        self.wait_ready()?;
        self.wait_leader(another)
    }

    /// Waits for a leader for which `fits` is true.
    ///
    /// # Errors
    /// When there is none within a minute.
    pub fn wait_leader(&self, fits: impl Fn(&Node) -> bool) -> Result<&Node> {
        let name = || format!("find the leader of {}", self.topology);
        wait_until(START_LIMIT, || match self.leader() {
            Ok(Some(node)) if fits(node) => Ok(node),
            Ok(_) => Err(Error::failed(name(), "none within a minute")),
            Err(error) => Err(error),
        })
    }

    /// Waits until all running nodes work together, checked by a real operation on each.
    ///
    /// # Errors
    /// When they do not within a minute; with the end of the log of a node that is not ready.
    pub fn wait_ready(&self) -> Result<()> {
        self.wait_ready_within(START_LIMIT)
    }

    /// Waits as [`wait_ready`](Self::wait_ready) does, with another limit.
    ///
    /// # Errors
    /// When they do not within `limit`; with the end of the log of a node that is not ready.
    pub fn wait_ready_within(&self, limit: Duration) -> Result<()> {
        wait_until(limit, || servers::ready(self)).map_err(|(node, reason)| {
            let log = log_excerpt(&node.launch.log);
            let reason = format!("{} is not ready after {limit:?}: {reason}{log}", node.name());
            Error::failed(format!("start {}", self.topology), reason)
        })
    }

    /// Shuts down all nodes in the regular way. Their data are kept for a restart.
    ///
    /// # Errors
    /// When a node cannot be stopped.
    pub fn stop(&self) -> Result<()> {
        self.nodes.iter().filter(|node| node.is_running()).try_for_each(Node::stop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &self.nodes {
            // An error means that the node does not run.
            node.kill().ok();
            if let Some(secret) = &node.secret {
                secret::forget(node.port(), secret);
            }
            if self.topology == Topology::Postgres {
                servers::postgres::remove_shared_memory(node);
            }
        }
    }
}
