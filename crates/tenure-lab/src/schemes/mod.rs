//! The locks under test: tenure's own on every server, and the schemes that people write by hand,
//! each with what is wrong with it. Those are written on tenure's public `Backend` trait, and used
//! the way such code is used: ask until it works, believe that it holds, delete.

mod classical;
mod getset;
mod owned;
mod plain;
mod redlock;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use tenure::backend::Backend;
use tenure::{Key, Result};
use tenure_servers::Topology;

use self::classical::Classical;
use self::wire::Wire;

/// A lock under test.
#[derive(Debug)]
pub struct Lock {
    /// What `--lock` calls it.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// What is wrong with it; empty for tenure's own.
    pub flaw: &'static str,
    /// The servers it needs; none for a file.
    pub topology: Option<Topology>,
    /// The lease that clients ask for.
    pub lease: Duration,
    pub(crate) make: Make,
}

/// How a client gets to the lock.
#[derive(Debug)]
pub(crate) enum Make {
    /// Through tenure's client, with these options in the URL.
    Own(&'static str),
    /// By hand.
    Classical(fn(Vec<Wire>) -> Arc<dyn Backend>, Habits),
}

/// How code that uses a scheme goes about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Whether its numbers are tokens.
    pub(crate) tokens: bool,
    /// Whether a watchdog renews every third of the lease.
    pub(crate) watchdog: bool,
    /// Whether it looks at a deadline of its own before each step, kept on `Instant`.
    pub(crate) deadline: bool,
    /// How often a waiter looks; none if it relies on the scheme's own wake-up.
    pub(crate) looks: Option<Duration>,
    /// Whether all claims of a process are one owner's, as with a re-entrant lock.
    pub(crate) one_owner: bool,
}

impl Lock {
    /// The lock of that name.
    ///
    /// # Errors
    ///
    /// If there is none, with the names that there are.
    pub fn named(name: &str) -> anyhow::Result<&'static Lock> {
        LOCKS.iter().find(|lock| lock.name == name).ok_or_else(|| {
            let known: Vec<_> = LOCKS.iter().map(|lock| lock.name).collect();
            anyhow::anyhow!("no lock is called `{}`; known: {}", name, known.join(", "))
        })
    }

    /// Whether it is one of tenure's.
    pub fn is_own(&self) -> bool {
        matches!(self.make, Make::Own(_))
    }

    /// A classical scheme on the servers at these addresses, or on the master that sentinels name.
    pub(crate) fn by_hand(&self, addresses: &str) -> Option<(Arc<dyn Backend>, Habits)> {
        let Make::Classical(make, habits) = self.make else { return None };
        let wires = match Wire::watched(addresses, ANSWER_LONGEST) {
            Some(wire) => vec![wire],
            None => addresses.split(',').map(|at| Wire::new(at, ANSWER_LONGEST)).collect(),
        };
        Some((make(wires), habits))
    }
}

/// Every lock, the worst first.
pub static LOCKS: &[Lock] = &[
    classical(
        "redis-setnx-expire",
        "1: SETNX, then EXPIRE; DEL",
        "a crash between the two commands locks for ever; DEL deletes anybody's lock; no token",
        |wires| Arc::new(Classical(plain::SetnxExpire(one(wires)))),
        NO_TOKENS,
    ),
    classical(
        "redis-getset",
        "2: SETNX with the expiry time as value, GETSET to take over; DEL",
        "the clients' clocks decide; DEL deletes anybody's lock; no token",
        |wires| Arc::new(Classical(getset::Getset(one(wires)))),
        NO_TOKENS,
    ),
    classical(
        "redis-script",
        "3: SETNX and EXPIRE in one script; DEL",
        "DEL deletes anybody's lock; no token",
        |wires| Arc::new(Classical(plain::Scripted(one(wires)))),
        NO_TOKENS,
    ),
    classical(
        "redis-set-nx",
        "4: SET NX PX; DEL",
        "DEL deletes anybody's lock; no token",
        |wires| Arc::new(Classical(plain::SetNx(one(wires)))),
        NO_TOKENS,
    ),
    classical(
        "redis-unique",
        "5: SET NX PX with a unique value, compare-and-delete, token by INCR",
        "the token repeats when the server forgets",
        |wires| Arc::new(Classical(owned::Unique(one(wires)))),
        Habits { tokens: true, ..NO_TOKENS },
    ),
    Lock {
        // So long that a busy machine does not reach the deadline by working.
        lease: Duration::from_millis(3000),
        ..classical(
            "redis-deadline",
            "5 with a deadline: as 5, and a look at a deadline on `Instant` before each step",
            "as 5; `Instant` stands still while the machine sleeps",
            |wires| Arc::new(Classical(owned::Unique(one(wires)))),
            Habits { tokens: true, deadline: true, ..NO_TOKENS },
        )
    },
    classical(
        "redis-watchdog",
        "6: hash with a re-entrant count, watchdog, wake-up by message, token by INCR",
        "as 5; a retry counts twice, a lost message is waited for, the watchdog renews blindly",
        |wires| Arc::new(Classical(owned::Watchdog(one(wires)))),
        Habits { tokens: true, watchdog: true, looks: None, one_owner: true, ..NO_TOKENS },
    ),
    Lock {
        topology: Some(Topology::Redis5),
        ..classical(
            "redlock-classic",
            "7: Redlock, a majority of five masters",
            "no token; a node's clock or its amnesia lets two in",
            |wires| Arc::new(Classical(redlock::Redlock(wires))),
            NO_TOKENS,
        )
    },
    own("sqlite", "tenure on a file of this machine", None, 1000, ""),
    own("redis", "tenure on one Redis", Some(Topology::Redis), 1000, ""),
    own(
        "redis-replicas",
        "tenure on Redis with Sentinel: a grant counts when a replica has it",
        Some(Topology::RedisSentinel),
        1000,
        REPLICAS,
    ),
    own("redlock", "tenure on five Redis masters", Some(Topology::Redis5), 2000, REDLOCK),
    own("postgres", "a row with an expiry", Some(Topology::Postgres), 1000, "mode=lease"),
    own("postgres-session", "advisory lock", Some(Topology::Postgres), 2000, "mode=session"),
    own("postgres-row", "row lock", Some(Topology::Postgres), 2000, "mode=row&rows=50"),
    own("mysql", "a row with an expiry", Some(Topology::Mariadb), 1000, ""),
    own("mysql-session", "GET_LOCK", Some(Topology::Mariadb), 2000, "mode=session"),
    own(
        "zookeeper-ephemeral",
        "one ephemeral node",
        Some(Topology::Zookeeper),
        3000,
        "session=3s&layout=ephemeral",
    ),
    own("zookeeper", "ephemeral sequential nodes", Some(Topology::Zookeeper), 3000, "session=3s"),
    own("etcd", "etcd lease", Some(Topology::Etcd), 3000, ""),
    own("consul", "Consul session", Some(Topology::Consul), 3000, "min_ttl=3s"),
];

const fn classical(
    name: &'static str,
    about: &'static str,
    flaw: &'static str,
    make: fn(Vec<Wire>) -> Arc<dyn Backend>,
    habits: Habits,
) -> Lock {
    let (topology, lease) = (Some(Topology::Redis), Duration::from_millis(1000));
    Lock { name, about, flaw, topology, lease, make: Make::Classical(make, habits) }
}

const fn own(
    name: &'static str,
    about: &'static str,
    topology: Option<Topology>,
    lease_ms: u64,
    options: &'static str,
) -> Lock {
    let lease = Duration::from_millis(lease_ms);
    Lock { name, about, flaw: "", topology, lease, make: Make::Own(options) }
}

fn one(mut wires: Vec<Wire>) -> Wire {
    wires.swap_remove(0)
}

/// The key in Redis.
fn name(key: &Key) -> String {
    format!("lab:{}", key.as_str())
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

async fn clear(wire: &Wire, key: &Key) -> Result<bool> {
    wire.ask(cmd("DEL").arg(name(key))).await
}

/// For how long a key is still there.
async fn left(wire: &Wire, key: &Key) -> Result<Option<Option<Duration>>> {
    let left: i64 = wire.ask(cmd("PTTL").arg(name(key))).await?;
    Ok(match u64::try_from(left) {
        Ok(left) => Some(Some(Duration::from_millis(left))),
        Err(_) if left == -1 => Some(None),
        Err(_) => None,
    })
}

const NO_TOKENS: Habits = Habits {
    tokens: false,
    watchdog: false,
    deadline: false,
    looks: Some(LOOK_EVERY),
    one_owner: false,
};

/// Often enough that waiting for the next look is no part of what is measured.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The URL for locks with this lease: on ZooKeeper a lock lasts as long as the client's session.
pub(crate) fn with_session(url: &str, lease: Duration) -> String {
    url.replace("session=3s", &format!("session={}ms", lease.as_millis()))
}

/// How long code by hand waits for an answer: longer than any lease here, as by default in most
/// client libraries.
const ANSWER_LONGEST: Duration = Duration::from_secs(8);
/// Half of the time for an answer is given to the replica.
const REPLICAS: &str = "replicas=1&response=4s";
/// The nodes keep what they were told; answers may be slow on a busy machine.
const REDLOCK: &str = "nodes=durable&response=500ms";
