//! The scenarios: what is done to a lock, step by step, each step triggered by an event.
//!
//! - `catalogue`: the list of all scenarios.
//! - `expected`: the table of expected verdicts.
//! - `steps`: steps that several scenarios share.
//! - `pause`, `oversell`: the holder is stopped.
//! - `crash`: clients are killed, or cancel.
//! - `network`, `lost_release`: requests and responses are lost or late.
//! - `server_faults`, `failover`, `read_only`: the server fails, or its clock jumps.
//! - `partial_outage`, `repeated_request`: faults at one row or one server, with the help of
//!   `foreign_transaction`.
//! - `herd`, `names`: no fault, but a measurement.

mod catalogue;
mod crash;
mod expected;
mod failover;
mod foreign_transaction;
mod herd;
mod lost_release;
mod names;
mod network;
mod oversell;
mod partial_outage;
mod pause;
mod read_only;
mod repeated_request;
mod server_faults;
mod steps;

use std::time::Duration;

use anyhow::Result;
use tenure_servers::{Durability, Options, Topology};

pub use self::catalogue::SCENARIOS;
use crate::runner::Runner;
use crate::schemes::LockSpec;

/// How long a run waits for a client that waits for the lock, so that it takes twenty seconds at
/// most.
const WAIT_LIMIT: Duration = Duration::from_secs(15);

/// A scenario: a fault, and the steps around it.
#[derive(Debug)]
pub struct Scenario {
    /// Name for `tenure lab run`.
    pub name: &'static str,
    /// Number of the fault in the catalogue, such as `F03`.
    pub id: &'static str,
    /// One sentence about it.
    pub about: &'static str,
    pub(crate) needs: ServerNeeds,
    pub(crate) lease: LeaseChoice,
    pub(crate) run: fn(&mut Runner<'_>) -> Result<()>,
}

/// What a scenario needs of its servers, and so whether other scenarios can use the same ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerNeeds {
    /// It leaves them as they were: they are shared.
    Shared,
    /// It kills or changes them: it has its own.
    Exclusive,
    /// It shifts their clock.
    Clock,
    /// It restarts one that stores nothing on disk.
    Volatile,
    /// A master with replicas, watched by sentinels.
    Sentinel,
    /// Several masters: a cluster, or independent ones.
    Shards,
    /// Three servers that elect a leader.
    Ensemble,
    /// A network namespace.
    NetworkNamespace,
}

/// The lease that a scenario needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseChoice {
    /// The lock's usual one: the scenario waits for its end.
    Usual,
    /// One that does not end during the run.
    Long,
    /// One that does not end while a server restarts, however slow the machine is.
    Restart,
    /// The usual one where there is a queue, whose entries expire with it; else a long one.
    Queue,
    /// A longer one for tenure's locks, whose waiters recheck after a third of it: so that a pause
    /// of a busy machine is not mistaken for a wait until the end of a lease.
    Recheck,
    /// One of this many seconds, or the lock's usual one if that is longer: some of its renewals
    /// are part of the run.
    Seconds(u64),
}

impl Scenario {
    /// The scenario of that name, or of that number in the catalogue.
    ///
    /// # Errors
    ///
    /// If there is none, with the names that there are.
    pub fn named(name: &str) -> Result<&'static Scenario> {
        let matches =
            |scenario: &&Scenario| scenario.name == name || scenario.id.eq_ignore_ascii_case(name);
        SCENARIOS.iter().find(matches).ok_or_else(|| {
            let known: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            anyhow::anyhow!("no scenario is called `{}`; known: {}", name, known.join(", "))
        })
    }

    /// The expected verdict for a lock, or why the fault cannot happen to it.
    pub fn expected(&self, lock: &LockSpec) -> Result<&'static str, &'static str> {
        expected::expected(self.name, lock.name)
    }

    /// The servers for a lock.
    pub(crate) fn topology(&self, lock: &LockSpec) -> Option<Topology> {
        match (self.needs, lock.topology?) {
            (ServerNeeds::Ensemble, Topology::Etcd) => Some(Topology::Etcd3),
            (ServerNeeds::Ensemble, Topology::Consul) => Some(Topology::Consul3),
            (ServerNeeds::Ensemble, Topology::Zookeeper) => Some(Topology::Zookeeper3),
            (ServerNeeds::Sentinel, Topology::Redis) => Some(Topology::RedisSentinel),
            (ServerNeeds::Shards, Topology::Redis) => Some(Topology::RedisCluster),
            (_, topology) => Some(topology),
        }
    }

    /// The lease that clients request. Where the fault itself ends the lock it is a long one, so
    /// that the result does not depend on the speed of this machine.
    pub(crate) fn lease(&self, lock: &LockSpec) -> Duration {
        match self.lease {
            LeaseChoice::Usual => lock.lease,
            LeaseChoice::Recheck if lock.is_tenure() => Duration::from_secs(5).max(lock.lease),
            LeaseChoice::Recheck => lock.lease,
            LeaseChoice::Queue if lock.is_tenure() => lock.lease,
            LeaseChoice::Restart => Duration::from_secs(30).max(lock.lease),
            LeaseChoice::Seconds(seconds) => Duration::from_secs(seconds).max(lock.lease),
            LeaseChoice::Long | LeaseChoice::Queue => Duration::from_secs(10).max(lock.lease),
        }
    }

    /// How long the run waits for a client that waits for the lock: a few leases where it is
    /// expected to be stuck, else as long as a busy machine may take.
    pub(crate) fn limit(&self, lock: &LockSpec, lease: Duration) -> Duration {
        let stuck = self.expected(lock).is_ok_and(|cell| cell.starts_with("T+") || cell == "∞");
        if stuck { lease * 4 } else { WAIT_LIMIT }
    }

    pub(crate) fn options(&self) -> Options {
        match self.needs {
            ServerNeeds::Clock => Options::default().clock(),
            ServerNeeds::Volatile => Options::default().durability(Durability::Memory),
            _ => Options::default(),
        }
    }
}
