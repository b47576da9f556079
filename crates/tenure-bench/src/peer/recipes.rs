//! Locks in other languages: their programs in `peers`, and the packages that they need. They are
//! built once, in a folder beside this program. Where a tool or a registry cannot be had, that is
//! the reason why the peer is ignored.

use std::time::Duration;

use anyhow::{Context, Result};
use tenure_peers::Language::{Go, Java, Javascript, Python};
use tenure_servers::Node;

use super::Process;
use crate::warm::Entry;

/// The longest step of a build: fetching all packages over a slow network.
const LONGEST: Duration = Duration::from_secs(300);

type Source = (&'static str, &'static str);

const PROTOCOL_GO: Source = ("protocol.go", include_str!("../../peers/protocol.go"));
const PROTOCOL_JAVA: Source = ("Protocol.java", include_str!("../../peers/Protocol.java"));
const PROTOCOL_JAVASCRIPT: Source = ("protocol.mjs", include_str!("../../peers/protocol.mjs"));
const PROTOCOL_PYTHON: Source = ("protocol.py", include_str!("../../peers/protocol.py"));

pub(crate) const REDSYNC: Recipe = Recipe(tenure_peers::Recipe {
    name: "redsync",
    language: Go,
    sources: &[PROTOCOL_GO, ("peer.go", include_str!("../../peers/redsync.go"))],
    packages: &["github.com/go-redsync/redsync/v4@v4.18.1", "github.com/redis/go-redis/v9@v9.23.0"],
});
pub(crate) const ETCD: Recipe = Recipe(tenure_peers::Recipe {
    name: "etcd",
    language: Go,
    sources: &[PROTOCOL_GO, ("peer.go", include_str!("../../peers/etcd.go"))],
    packages: &["go.etcd.io/etcd/client/v3@v3.7.3"],
});
pub(crate) const CONSUL: Recipe = Recipe(tenure_peers::Recipe {
    name: "consul",
    language: Go,
    sources: &[PROTOCOL_GO, ("peer.go", include_str!("../../peers/consul.go"))],
    packages: &["github.com/hashicorp/consul/api@v1.32.1"],
});
pub(crate) const REDISSON: Recipe = Recipe(tenure_peers::Recipe {
    name: "redisson",
    language: Java,
    sources: &[PROTOCOL_JAVA, ("Peer.java", include_str!("../../peers/Redisson.java"))],
    packages: &["org.redisson:redisson:4.7.0"],
});
pub(crate) const CURATOR: Recipe = Recipe(tenure_peers::Recipe {
    name: "curator",
    language: Java,
    sources: &[PROTOCOL_JAVA, ("Peer.java", include_str!("../../peers/Curator.java"))],
    packages: &["org.apache.curator:curator-recipes:5.9.0"],
});
pub(crate) const REDIS_PY: Recipe = Recipe(tenure_peers::Recipe {
    name: "redis-py",
    language: Python,
    sources: &[PROTOCOL_PYTHON, ("peer.py", include_str!("../../peers/redis_py.py"))],
    packages: &["redis==8.1.0"],
});
pub(crate) const KAZOO: Recipe = Recipe(tenure_peers::Recipe {
    name: "kazoo",
    language: Python,
    sources: &[PROTOCOL_PYTHON, ("peer.py", include_str!("../../peers/kazoo_lock.py"))],
    packages: &["kazoo==2.11.0"],
});
pub(crate) const NODE_REDLOCK: Recipe = Recipe(tenure_peers::Recipe {
    name: "node-redlock",
    language: Javascript,
    sources: &[PROTOCOL_JAVASCRIPT, ("peer.mjs", include_str!("../../peers/node_redlock.mjs"))],
    packages: &["redlock@5.0.0-beta.2", "ioredis@5"],
});

/// A peer of the bench.
pub(crate) struct Recipe(tenure_peers::Recipe);

impl Recipe {
    /// The peer as a subject, or why it cannot be had. A peer may know several kinds of locks.
    pub(crate) fn entry(&self, name: &str, node: &Node, kind: &str) -> Entry<'static> {
        let started = self.start(node, kind);
        let reason = || format!("could not get {}", self.0.name);
        let subject = started.map(|process| Box::new(process) as _).with_context(reason);
        Entry { subject, ..Entry::missing(name) }
    }

    /// Builds it if necessary, and starts it.
    pub(crate) fn start(&self, node: &Node, kind: &str) -> Result<Process> {
        let here = std::env::current_exe()?;
        let below = here.parent().context("a program is in a folder")?.join("peers");
        let command = self.0.command(&below, LONGEST)?;
        // A virtual machine compiles what is hot, and that takes thousands of cycles.
        let warm_up = if self.0.language == Java { 4000 } else { 600 };
        Process::start(command, node, kind, warm_up)
    }
}
