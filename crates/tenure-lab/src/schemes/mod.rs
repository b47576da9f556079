//! The locks under test: those of tenure on every server, and the schemes that programs write by
//! hand, each with what is wrong with it.
//!
//! The hand-written schemes implement tenure's public `Backend` trait, so that the lab can treat
//! all locks alike. They are used the way such code is used: retry until the lock is granted,
//! believe in it, delete it.
//!
//! - `scheme`: what all hand-written schemes have in common.
//! - `unowned`: schemes 1, 3 and 4, whose keys do not name their owner.
//! - `getset`: scheme 2, with the expiry as the value.
//! - `owned`: schemes 5 and 6, whose keys name their owner.
//! - `redlock`: scheme 7, on a majority of five servers.
//! - `redis_connection`: a connection to one Redis, as simple programs use it.

mod getset;
mod owned;
mod redis_connection;
mod redlock;
mod scheme;
mod unowned;

use std::sync::Arc;
use std::time::Duration;

use redis::cmd;
use tenure::backend::Backend;
use tenure::{Key, Result};
use tenure_servers::Topology;

use self::redis_connection::RedisConnection;
use self::scheme::{HandWritten, KeyState};

/// How often a waiter of a hand-written scheme polls: often enough that the interval does not show
/// in what is measured.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How long a hand-written scheme waits for a response: longer than any lease here, as by default
/// in most client libraries.
const RESPONSE_LIMIT: Duration = Duration::from_secs(8);
/// Half of the time for a response is given to the replica.
const REPLICAS: &str = "replicas=1&response=4s";
/// The nodes keep their data; responses may be slow on a busy machine.
const REDLOCK: &str = "nodes=durable&response=500ms";

const NO_TOKENS: Usage = Usage {
    tokens: false,
    watchdog: false,
    deadline: false,
    poll_interval: Some(POLL_INTERVAL),
    shared_owner: false,
};

/// A lock under test.
#[derive(Debug)]
pub struct LockSpec {
    /// Name for `--lock`.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// What is wrong with it; empty for tenure's.
    pub flaw: &'static str,
    /// The servers that it needs; none for a file.
    pub topology: Option<Topology>,
    /// The lease that clients request.
    pub lease: Duration,
    pub(crate) implementation: Implementation,
}

/// How a client uses the lock.
#[derive(Debug)]
pub(crate) enum Implementation {
    /// Through tenure's client, with these options in the URL.
    Tenure(&'static str),
    /// Through a hand-written scheme on these connections.
    HandWritten(fn(Vec<RedisConnection>) -> Arc<dyn Backend>, Usage),
}

/// How programs use a hand-written scheme.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Whether the numbers of the scheme are fencing tokens.
    pub(crate) tokens: bool,
    /// Whether a watchdog renews every third of the lease.
    pub(crate) watchdog: bool,
    /// Whether the program checks a deadline on `Instant` before each step.
    pub(crate) deadline: bool,
    /// How often a waiter polls; none if it relies on the scheme's own wake-up.
    pub(crate) poll_interval: Option<Duration>,
    /// Whether all claims of a process have the same owner, as with a re-entrant lock.
    pub(crate) shared_owner: bool,
}

impl LockSpec {
    /// The lock of that name.
    ///
    /// # Errors
    ///
    /// If there is none, with the names that there are.
    pub fn named(name: &str) -> anyhow::Result<&'static LockSpec> {
        LOCKS.iter().find(|lock| lock.name == name).ok_or_else(|| {
            let known: Vec<_> = LOCKS.iter().map(|lock| lock.name).collect();
            anyhow::anyhow!("no lock is called `{}`; known: {}", name, known.join(", "))
        })
    }

    /// Whether it is one of tenure's.
    pub fn is_tenure(&self) -> bool {
        matches!(self.implementation, Implementation::Tenure(_))
    }

    /// The hand-written scheme on the servers at these addresses, or on the master that sentinels
    /// name; none for a lock of tenure's.
    pub(crate) fn hand_written(&self, addresses: &str) -> Option<(Arc<dyn Backend>, Usage)> {
        let Implementation::HandWritten(make, usage) = self.implementation else { return None };
        let connections = match RedisConnection::via_sentinels(addresses, RESPONSE_LIMIT) {
            Some(connection) => vec![connection],
            None => {
                let connect = |address| RedisConnection::new(address, RESPONSE_LIMIT);
                addresses.split(',').map(connect).collect()
            }
        };
        Some((make(connections), usage))
    }
}

/// Every lock, the worst first.
pub static LOCKS: &[LockSpec] = &[
    hand_written(
        "redis-setnx-expire",
        "1: SETNX, then EXPIRE; DEL",
        "a crash between the two commands locks for ever; DEL deletes any client's lock; no token",
        |connections| Arc::new(HandWritten(unowned::SetnxExpire(only(connections)))),
        NO_TOKENS,
    ),
    hand_written(
        "redis-getset",
        "2: SETNX with the expiry time as value, GETSET to take over; DEL",
        "the clients' clocks decide; DEL deletes any client's lock; no token",
        |connections| Arc::new(HandWritten(getset::Getset(only(connections)))),
        NO_TOKENS,
    ),
    hand_written(
        "redis-script",
        "3: SETNX and EXPIRE in one script; DEL",
        "DEL deletes any client's lock; no token",
        |connections| Arc::new(HandWritten(unowned::Scripted(only(connections)))),
        NO_TOKENS,
    ),
    hand_written(
        "redis-set-nx",
        "4: SET NX PX; DEL",
        "DEL deletes any client's lock; no token",
        |connections| Arc::new(HandWritten(unowned::SetNx(only(connections)))),
        NO_TOKENS,
    ),
    hand_written(
        "redis-unique",
        "5: SET NX PX with a unique value, compare-and-delete, token by INCR",
        "the token repeats when the server forgets",
        |connections| Arc::new(HandWritten(owned::Unique(only(connections)))),
        Usage { tokens: true, ..NO_TOKENS },
    ),
    LockSpec {
        // Long enough that a busy machine does not reach the deadline by working.
        lease: Duration::from_millis(3000),
        ..hand_written(
            "redis-deadline",
            "5 with a deadline: as 5, and a look at a deadline on `Instant` before each step",
            "as 5; `Instant` stands still while the machine sleeps",
            |connections| Arc::new(HandWritten(owned::Unique(only(connections)))),
            Usage { tokens: true, deadline: true, ..NO_TOKENS },
        )
    },
    hand_written(
        "redis-watchdog",
        "6: hash with a re-entrant count, watchdog, wake-up by message, token by INCR",
        "as 5; a retry counts twice, a lost message is waited for, the watchdog renews blindly",
        |connections| Arc::new(HandWritten(owned::Watchdog(only(connections)))),
        Usage {
            tokens: true,
            watchdog: true,
            poll_interval: None,
            shared_owner: true,
            ..NO_TOKENS
        },
    ),
    LockSpec {
        topology: Some(Topology::Redis5),
        ..hand_written(
            "redlock-classic",
            "7: Redlock, a majority of five masters",
            "no token; a node's clock or its amnesia lets two in",
            |connections| Arc::new(HandWritten(redlock::Redlock(connections))),
            NO_TOKENS,
        )
    },
    tenure_lock("sqlite", "tenure on a file of this machine", None, 1000, ""),
    tenure_lock("redis", "tenure on one Redis", Some(Topology::Redis), 1000, ""),
    tenure_lock(
        "redis-replicas",
        "tenure on Redis with Sentinel: a grant counts when a replica has it",
        Some(Topology::RedisSentinel),
        1000,
        REPLICAS,
    ),
    tenure_lock("redlock", "tenure on five Redis masters", Some(Topology::Redis5), 2000, REDLOCK),
    tenure_lock("postgres", "a row with an expiry", Some(Topology::Postgres), 1000, "mode=lease"),
    tenure_lock(
        "postgres-session",
        "advisory lock",
        Some(Topology::Postgres),
        2000,
        "mode=session",
    ),
    tenure_lock("postgres-row", "row lock", Some(Topology::Postgres), 2000, "mode=row&rows=50"),
    tenure_lock("mysql", "a row with an expiry", Some(Topology::Mariadb), 1000, ""),
    tenure_lock("mysql-session", "GET_LOCK", Some(Topology::Mariadb), 2000, "mode=session"),
    tenure_lock(
        "zookeeper-ephemeral",
        "one ephemeral node",
        Some(Topology::Zookeeper),
        3000,
        "session=3s&layout=ephemeral",
    ),
    tenure_lock(
        "zookeeper",
        "ephemeral sequential nodes",
        Some(Topology::Zookeeper),
        3000,
        "session=3s",
    ),
    tenure_lock("etcd", "etcd lease", Some(Topology::Etcd), 3000, ""),
    tenure_lock("consul", "Consul session", Some(Topology::Consul), 3000, "min_ttl=3s"),
];

const fn hand_written(
    name: &'static str,
    about: &'static str,
    flaw: &'static str,
    make: fn(Vec<RedisConnection>) -> Arc<dyn Backend>,
    usage: Usage,
) -> LockSpec {
    let lease = Duration::from_millis(1000);
    let implementation = Implementation::HandWritten(make, usage);
    LockSpec { name, about, flaw, topology: Some(Topology::Redis), lease, implementation }
}

const fn tenure_lock(
    name: &'static str,
    about: &'static str,
    topology: Option<Topology>,
    lease_ms: u64,
    options: &'static str,
) -> LockSpec {
    let lease = Duration::from_millis(lease_ms);
    let implementation = Implementation::Tenure(options);
    LockSpec { name, about, flaw: "", topology, lease, implementation }
}

/// The connection of a scheme on one server.
fn only(mut connections: Vec<RedisConnection>) -> RedisConnection {
    connections.swap_remove(0)
}

/// The URL for a lock with this lease: on ZooKeeper a lock lasts as long as the client's session.
pub(crate) fn with_session(url: &str, lease: Duration) -> String {
    url.replace("session=3s", &format!("session={}ms", lease.as_millis()))
}

/// The key in Redis.
fn redis_key(key: &Key) -> String {
    format!("lab:{}", key.as_str())
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// Deletes the key on one server: whether there was one.
async fn delete(node: &RedisConnection, key: &Key) -> Result<bool> {
    node.query(cmd("DEL").arg(redis_key(key))).await
}

/// The state of the key on one server.
async fn key_state(node: &RedisConnection, key: &Key) -> Result<KeyState> {
    let left: i64 = node.query(cmd("PTTL").arg(redis_key(key))).await?;
    Ok(match u64::try_from(left) {
        Ok(left) => KeyState::Expires(Duration::from_millis(left)),
        // Redis: -1 for a key without an expiry, -2 for no key.
        Err(_) if left == -1 => KeyState::Unlimited,
        Err(_) => KeyState::Free,
    })
}
