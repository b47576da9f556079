//! A running topology: its nodes, who leads, and whether it works.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::guardian;
use crate::node::{Node, Role, START_LONGEST, url};
use crate::options::Options;
use crate::process::log_for_people;
use crate::run::{self, Site};
use crate::secret;
use crate::topology::Topology;
use crate::wait::wait_until;

/// Gets a topology and starts it; it is ready when this returns.
///
/// # Errors
/// [Missing](Error::is_missing) when it cannot be had on this machine; otherwise when it did not
/// start, with the end of the log.
pub fn start(topology: Topology, options: &Options) -> Result<Cluster> {
    let failed = |error: std::io::Error| Error::failed(format!("start {topology}"), error);
    let prefix = format!("tenure-{topology}-");
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir().map_err(failed)?;
    guardian::remove_at_exit(dir.path());
    let site = Site::new(topology, options, dir.path())?;
    let nodes = run::start(&site)?;
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
    /// What it is.
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

    /// The first node: the only one of a single server.
    pub fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// `host:port` of every node that a client is told of, separated by commas: the sentinels where
    /// there are some, else all.
    pub fn hosts(&self) -> String {
        let told = match self.topology {
            Topology::RedisSentinel => Role::Sentinel,
            _ => Role::Member,
        };
        let told = self.nodes.iter().filter(|node| node.role() == told);
        told.map(Node::address).collect::<Vec<_>>().join(",")
    }

    /// The URL of the whole: the scheme names the server or the kind of client. It has the password
    /// in it.
    pub fn url(&self) -> String {
        let (hosts, secret) = (self.hosts(), self.node().secret.as_ref());
        match self.topology {
            Topology::Redis5 => url("redlock", &hosts, secret),
            Topology::RedisCluster => url("redis+cluster", &hosts, secret),
            Topology::RedisSentinel => {
                let url = url("redis+sentinel", &hosts, secret);
                let password = self.node().password().unwrap_or_default();
                // The sentinels want one too, and may have another.
                format!("{url}/{}?sentinel_password={password}", run::MASTER_NAME)
            }
            Topology::Mysql => self.node().url(),
            _ => url(self.topology.server(), &hosts, secret),
        }
    }

    /// The URL with further options, as `ttl=5s&prefix=a/`.
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

    /// The node that takes writes: the leader, the master, or the only one. None while there is
    /// none, as during an election, and for Redis masters that share or ignore each other.
    ///
    /// # Errors
    /// When no node can be asked.
    pub fn leader(&self) -> Result<Option<&Node>> {
        let name = || format!("find the leader of {}", self.topology);
        run::leader(self).map_err(|error| Error::failed(name(), error))
    }

    /// Makes another node lead, by the server's own command where it has one, else by stopping the
    /// leader and starting it again. All nodes run when this returns. Returns the new leader.
    ///
    /// # Errors
    /// When there is nobody to take over, or it does not come to that within a minute.
    pub fn failover(&self) -> Result<&Node> {
        let name = || format!("fail over {}", self.topology);
        let old = self.leader()?.ok_or_else(|| Error::failed(name(), "there is no leader"))?;
        if self.members().filter(|node| node.is_running()).count() < 2 {
            return Err(Error::failed(name(), "there is nobody to take over"));
        }
        let stopped = run::step_down(self, old)?;
        let another = |node: &Node| node.name() != old.name();
        let elected = self.wait_leader(another);
        if stopped {
            old.restart()?;
        }
        elected?;
        self.wait_ready()?;
        self.wait_leader(another)
    }

    /// Waits for a leader that fits.
    ///
    /// # Errors
    /// When there is none within a minute.
    pub fn wait_leader(&self, fits: impl Fn(&Node) -> bool) -> Result<&Node> {
        let name = || format!("find the leader of {}", self.topology);
        wait_until(START_LONGEST, || match self.leader() {
            Ok(Some(node)) if fits(node) => Ok(node),
            Ok(_) => Err(Error::failed(name(), "none within a minute")),
            Err(error) => Err(error),
        })
    }

    /// Waits until all nodes that run work together, shown by a real operation on each.
    ///
    /// # Errors
    /// When they do not within a minute; with the end of the log of the one that does not.
    pub fn wait_ready(&self) -> Result<()> {
        self.wait_ready_within(START_LONGEST)
    }

    /// As [`wait_ready`](Self::wait_ready), with another limit.
    ///
    /// # Errors
    /// When they do not in time; with the end of the log of the one that does not.
    pub fn wait_ready_within(&self, limit: Duration) -> Result<()> {
        wait_until(limit, || run::ready(self)).map_err(|(node, reason)| {
            let log = log_for_people(&node.launch.log);
            let reason = format!("{} is not ready after {limit:?}: {reason}{log}", node.name());
            Error::failed(format!("start {}", self.topology), reason)
        })
    }

    /// Stops all nodes the way their makers want it, keeping their data for a restart.
    ///
    /// # Errors
    /// When a node refuses.
    pub fn stop(&self) -> Result<()> {
        self.nodes.iter().filter(|node| node.is_running()).try_for_each(Node::stop)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &self.nodes {
            // One that does not run needs no killing.
            node.kill().ok();
            if let Some(secret) = &node.secret {
                secret::forget(node.port(), secret);
            }
            if self.topology == Topology::Postgres {
                run::postgres::sweep(node);
            }
        }
    }
}
