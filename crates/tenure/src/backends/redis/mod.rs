//! Redis and Valkey: one server, the master that sentinels name, or a cluster.
//!
//! Read `docs/backends/redis.md` first. Here are the verbs; `lua/` has what they ask the server to
//! do, `wire` and `dial` the connections, `servers` and `cluster` who is asked, `waiting` and
//! `post` how a claim hears that it is its turn.

#![cfg_attr(
    not(feature = "redlock"),
    allow(dead_code, unused_imports, reason = "what Redlock asks of its nodes")
)]

mod answer;
mod cluster;
mod dial;
mod error;
mod examine;
mod names;
mod node;
mod people;
mod post;
mod renewing;
mod script;
mod sentinel;
mod servers;
pub(super) mod settings;
mod waiting;
mod wire;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;

pub(super) use self::answer::Shown;
use self::answer::{Refusal, Taken};
use self::error::from_redis;
use self::names::Names;
pub(super) use self::node::nodes;
use self::post::{Post, Waiting};
use self::script::{Argument, Call, Scripts, Source};
use self::servers::Servers;
use self::settings::{Layout, Settings, Turn};
use self::wire::Wire;
use crate::backend::{Backend, Claim, Fencing, Grant, Info, Order, Owner, Scope, Wakeup};
use crate::claim::{Attempt, Busy, Holding};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;

/// Opens `redis://`, `rediss://`, `redis+unix://`, and with `+sentinel` or `+cluster` several
/// servers.
pub(crate) async fn open(options: Options) -> Result<Redis> {
    let redis = Redis::new(Settings::of(options)?, false);
    redis.greet().await?;
    Ok(redis)
}

/// Locks on Redis or Valkey. Opened by URL; see `docs/backends/redis.md` for all of its options.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("redis://127.0.0.1/0?ttl=10s").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
pub struct Redis {
    settings: Settings,
    servers: Servers,
    /// With `replicas`, grants wait for replicas on connections of their own, so that nothing else
    /// waits behind them; and so do renewals, which must not wait behind grants.
    synced: Option<Servers>,
    renewing: Option<Servers>,
    scripts: Scripts,
    post: Arc<Post>,
    /// In a cluster, messages go only to the nodes that have the slot.
    sharded: AtomicBool,
    /// The server cannot or will not push to us.
    polls: AtomicBool,
}

impl Redis {
    fn new(settings: Settings, asks_uptime: bool) -> Redis {
        let post = Arc::new(Post::default());
        let servers = || Servers::new(&settings, asks_uptime, &post);
        Redis {
            servers: servers(),
            synced: (settings.replicas > 0).then(servers),
            renewing: (settings.replicas > 0).then(servers),
            scripts: Scripts::of(settings.layout),
            post,
            settings,
            sharded: AtomicBool::new(false),
            polls: AtomicBool::new(false),
        }
    }

    /// Proves address and credentials, and finds out how the server can push.
    async fn greet(&self) -> Result<()> {
        // One is enough: the others may be in the middle of a failover, and are asked when their
        // keys are needed.
        let wire = self.servers.any_master().await?;
        if let Servers::Cluster(_) = self.servers {
            let probe = redis::cmd("PUBSUB").arg("SHARDNUMSUB").to_owned();
            self.sharded.store(wire.ask(&probe).await.is_ok(), Ordering::Relaxed);
        }
        if !wire.tap.pushes {
            self.polls.store(true, Ordering::Relaxed);
            return Ok(());
        }
        // Which slot it is in does not matter for what the server permits; a node that does not
        // have it answers that it moved.
        let probe = names::inbox_prefix(None) + "probe";
        match wire.subscribe(&probe, false).await {
            Err(error) if error.code() == Some("NOPERM") => {
                self.polls.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(from_redis(error, "redis")),
            Ok(_heard) => Ok(()),
        }
    }

    /// A call about one lock: what all such scripts are given, then this one's own.
    fn call<'a>(
        &self,
        script: &'a Source,
        names: &Names,
        owner: &str,
        own: &[Argument<'_>],
    ) -> Call<'a> {
        let sharded = self.sharded.load(Ordering::Relaxed);
        let grave = names.grave(owner);
        let keys = [&names.lock, &names.state, &names.queue, &names.places, &grave];
        let inbox = self.inbox_prefix(&names.lock);
        let free = self.free_channel(&names.lock);
        let row_max = match (self.settings.order, self.settings.layout) {
            (Turn::Barging, _) => -1,
            (Turn::Fifo, Layout::Redisson) => ROW_MAX,
            // Strangers poll; nobody can know whether one of them waits.
            (Turn::Fifo, Layout::Plain) => 0,
        };
        let mut arguments = vec![
            Argument::Text(if sharded { "SPUBLISH" } else { "PUBLISH" }),
            Argument::Text(&inbox),
            Argument::Text(&free),
            Argument::Number(ms(self.settings.memory)),
            Argument::Number(row_max),
            Argument::Number(ms(GRACE)),
        ];
        arguments.extend_from_slice(own);
        script.call(&keys.map(String::as_str), &arguments)
    }

    async fn take(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let (names, owner) = (Names::of(claim.key.as_str()), claim.owner.to_string());
        let place_lease = if claim.waits { lease(claim.ttl) } else { Duration::ZERO };
        let note = claim.note.encode();
        let own = [
            Argument::Text(&owner),
            Argument::Number(ms(claim.ttl)),
            Argument::Number(ms(place_lease)),
            Argument::Text(&note),
        ];
        let call = self.call(&self.scripts.take, &names, &owner, &own);
        let refreshes = claim.waits && self.post.has_place(claim.owner);
        if claim.waits {
            self.post.open(claim.owner);
            self.post.looked(claim.owner);
        }
        let wire = self.servers.wire(&names.lock).await?;
        // Whether messages come must be known before the question is asked.
        let inbox = self.inbox(&names.lock, claim.owner);
        let heard_by = (claim.waits && wire.hears(&inbox)).then(|| Arc::downgrade(&wire));
        let (servers, wire) = match &self.synced {
            Some(synced) => (synced, synced.wire(&names.lock).await?),
            None => (&self.servers, wire),
        };
        let _turn = match refreshes {
            true => wire.refreshing.acquire().await.ok(),
            false => None,
        };
        // Once only: if the connection breaks, the request may still be on its way to the server,
        // and the core has to know that, or its release would leave no tombstone.
        let (answer, wire) = servers.ask_on(wire.clone(), &names.lock, &call).await?;
        match answer::taken(&answer)? {
            Taken::Granted(token) => {
                self.grant_replicated(&wire, claim).await?;
                self.post.close(claim.owner);
                Ok(Attempt::Granted(Grant::new(token, claim.ttl)))
            }
            Taken::Busy(refusal) => Ok(Attempt::Busy(self.busy(claim, refusal, heard_by))),
            Taken::Withdrawn => {
                Err(Error::new(ErrorKind::Internal, "this claim was withdrawn; make a new one"))
            }
        }
    }

    fn busy(&self, claim: &Claim, refusal: Refusal, heard_by: Option<Weak<Wire>>) -> Busy {
        if claim.waits {
            let behind_stranger = refusal.ahead == Some(0) && refusal.is_strangers();
            let waiting = Waiting { place: refusal.place, heard_by, behind_stranger };
            self.post.placed(claim.owner, waiting);
        }
        let mut busy = Busy::new(claim.key.clone());
        busy.retry_after = refusal.again;
        busy.ahead = refusal.ahead;
        busy.holder = refusal.holder.map(Box::new);
        busy
    }

    async fn give_back(&self, claim: &Claim, bury: Duration) -> Result<bool> {
        let (names, owner) = (Names::of(claim.key.as_str()), claim.owner.to_string());
        let own = [Argument::Text(&owner), Argument::Number(ms(bury))];
        let call = self.call(&self.scripts.release, &names, &owner, &own);
        let released = |answer: Value| match answer {
            Value::Int(what) => Ok(what == 2),
            other => Err(answer::odd("release", &other)),
        };
        let wire = self.servers.wire(&names.lock).await?;
        match self.servers.ask_on(wire.clone(), &names.lock, &call).await {
            Ok((answer, _)) => released(answer),
            // A connection that was killed while nobody used it is often noticed only now. If the
            // lock is gone already, this may have been our own doing.
            Err(error) if wire.is_broken() => {
                let again = self.servers.ask(&names.lock, &call).await?;
                if released(again)? { Ok(true) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
    }

    fn inbox_prefix(&self, lock: &str) -> String {
        match self.sharded.load(Ordering::Relaxed) {
            true => names::inbox_prefix(Some(names::slot(lock))),
            false => names::inbox_prefix(None),
        }
    }

    /// The channel on which a claim hears of its lock.
    fn inbox(&self, lock: &str, owner: Owner) -> String {
        let owner = owner.to_string();
        let client = owner.split(':').next().unwrap_or_default();
        self.inbox_prefix(lock) + client
    }

    /// The channel that says that a lock is free and nobody is next; empty if there can be none.
    fn free_channel(&self, lock: &str) -> String {
        let channel = match self.settings.layout {
            Layout::Plain => names::own("f", lock),
            Layout::Redisson => names::redisson_channel(lock),
        };
        let reachable = match self.servers.slot(lock) {
            Some(slot) => !self.sharded.load(Ordering::Relaxed) || names::slot(&channel) == slot,
            None => true,
        };
        if reachable { channel } else { String::new() }
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("place", &self.settings.place)
            .field("layout", &self.settings.layout)
            .field("polls", &self.polls)
            .field("post", &self.post)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Backend for Redis {
    fn info(&self) -> Info {
        let mut info = Info::new("redis");
        // A restart or a failover may lose the last token; then only the wall clock keeps the next
        // one above it, and a wall clock can be set back.
        info.fencing = Fencing::BestEffort;
        info.order = match self.settings.order {
            Turn::Barging => Order::Any,
            Turn::Fifo => Order::Fifo,
        };
        info.wakeup = match self.polls.load(Ordering::Relaxed) {
            true => Wakeup::Poll,
            false => Wakeup::Push,
        };
        info.min_ttl = MIN_TTL;
        info.busy_leaves_nothing = true;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.take(claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.renewed(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.post.close(claim.owner);
        let bury = if claim.doubtful { claim.ttl.max(LATE) } else { Duration::ZERO };
        self.give_back(claim, bury).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.wait_for_turn(claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        self.wait_for_loss(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.holdings(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let (names, token) = (Names::of(key.as_str()), token.to_string());
        let call = self.call(&self.scripts.evict, &names, "", &[Argument::Text(&token)]);
        match self.servers.ask(&names.lock, &call).await? {
            Value::Int(evicted) => Ok(evicted == 1),
            other => Err(answer::odd("evict", &other)),
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.examined().await
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/redis.md")]
struct Page;

/// The lease of a place in the queue, which a hand-over makes the lease of the lock: short, so that
/// a dead waiter holds nobody up for long.
fn lease(ttl: Duration) -> Duration {
    ttl.min(PLACE_LEASE)
}

/// Rounded up: what the server keeps must not end before the holder's own deadline. A key whose
/// expiry is `t` ms ends when the server's clock shows more than `t`, so that reading that clock in
/// whole milliseconds costs nothing.
fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX)
}

/// How late a request can arrive, and for how long its tombstone refuses it at least. This has
/// nothing to do with the ttl: a kernel goes on sending for `UNACKNOWLEDGED_MS` what a cut network
/// holds up, and a server that hung finds requests of old connections beside the release.
const LATE: Duration = Duration::from_secs(60);
/// The longest lease of a place in the queue.
const PLACE_LEASE: Duration = Duration::from_secs(10);
/// How many of our own waiters are served in a row while one of Redisson's listens.
const ROW_MAX: i64 = 16;
/// How long the lock is then left to Redisson: enough for an answer on a local network.
const GRACE: Duration = Duration::from_millis(5);
/// A shorter lease could not be renewed over a network.
const MIN_TTL: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_millisecond_is_a_whole_one_at_the_server() {
        let spans = [(0, 0), (1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2)];
        for (ns, whole) in spans {
            assert_eq!(ms(Duration::from_nanos(ns)), whole);
        }
        assert_eq!(ms(Duration::MAX), i64::MAX);
    }
}
