//! Waiting: until a claim should send its request again, or has been granted by a push; and until
//! a held claim may be lost.
//!
//! **State.** At the server, the claim's queue entry. In the client, its registration with the
//! push router: the sequence of that entry, unread messages, and the connection on which messages
//! arrive. The script that hands the lock to the entry publishes one message on the channel of the
//! entry's client.
//!
//! **Invariant.** A return without a grant is only a hint: the claim's next request decides. A
//! missed message therefore costs time, at most a third of the entry's lease, and no lock. A pushed
//! grant is believed only if it names the sequence of the last response (see `push`).
//!
//! **Races.**
//! - *A message before the wait.* It is kept from before the request until it is read here.
//! - *A message before the subscription.* If the channel was not subscribed to when the request was
//!   sent, the claim subscribes, and then rechecks once at the server.
//! - *The connection is replaced while the claim waits.* The claims whose messages would not arrive
//!   any more are woken, subscribe on the new connection, and recheck.
//!
//! **Foreign clients** do not know the queue. Redisson publishes on a channel of the lock when it
//! releases; to that only the first waiter subscribes, so that one release does not wake all. The
//! string locks publish nothing: there the first waiter polls.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::acquire::{entry_lease, grant};
use super::config::Layout;
use super::connection::Servers;
use super::error::from_redis;
use super::layout::ClientPrefix;
use super::push::ForeignSubscription;
use super::{Redis, admin};
use crate::backend::{Claim, Grant, Scope};
use crate::error::Result;
use crate::support::backoff::jitter;
use crate::support::wakeups::Signal;

/// The pause between two polls is between these two.
const POLL_MIN: Duration = Duration::from_millis(50);
const POLL_MAX: Duration = Duration::from_millis(150);
/// If the end of a lease is not known, whether the lock is free is checked after this.
const UNKNOWN_LEASE: Duration = Duration::from_secs(1);

/// Connects, which proves address and credentials, and finds out whether the server can push or
/// waiters have to poll.
pub(super) async fn probe(redis: &Redis) -> Result<()> {
    // One server is enough: the others may be in the middle of a failover, and are connected to
    // when their keys are needed.
    let connection = redis.servers.any_master().await?;
    if let Servers::Cluster(_) = redis.servers {
        let probe = redis::cmd("PUBSUB").arg("SHARDNUMSUB").to_owned();
        redis.channels.set_sharded(connection.execute(&probe).await.is_ok());
    }
    if !connection.can_push() {
        redis.polls.store(true, Ordering::Relaxed);
        return Ok(());
    }
    // Which slot the channel is in does not matter for what the server permits; a node that does
    // not have it responds with a redirection.
    let channel = format!("{}probe", ClientPrefix(None));
    match connection.subscribe(&channel, false).await {
        Err(error) if error.code() == Some("NOPERM") => {
            redis.polls.store(true, Ordering::Relaxed);
            Ok(())
        }
        Err(error) => Err(from_redis(error, "redis")),
        Ok(_subscription) => Ok(()),
    }
}

/// Returns when the claim should send its request again, or with the grant that the server pushed.
pub(super) async fn until_free(redis: &Redis, claim: &Claim) -> Option<Grant> {
    let owner = claim.owner;
    if redis.push.waiting(owner).is_none() {
        until_free_unqueued(redis, claim).await;
        return None;
    }
    if redis.polls.load(Ordering::Relaxed) {
        poll_pause().await;
        return None;
    }
    loop {
        let waiting = redis.push.waiting(owner)?;
        let signal = match waiting.try_next() {
            Some(signal) => signal,
            None if !waiting.entry.is_notified() => {
                subscribe(redis, claim).await;
                return None;
            }
            None if waiting.entry.behind_foreign_client => tokio::select! {
                signal = waiting.next() => signal,
                () = until_foreign_release(redis, claim) => return None,
            },
            None => waiting.next().await,
        };
        match signal {
            Signal::Granted { token, .. } if is_whole_grant(redis, claim) => {
                redis.push.unregister(owner);
                return Some(grant(claim, token, entry_lease(claim.ttl)));
            }
            Signal::Granted { .. } => return None,
            Signal::Recheck { .. } if !waiting.entry.is_notified() => {
                subscribe(redis, claim).await;
                return None;
            }
            Signal::Recheck { after } => {
                tokio::time::sleep(after).await;
                return None;
            }
            // A grant of this claim was over before it was read. It keeps waiting.
            Signal::Evicted { .. } => {}
        }
    }
}

/// Returns when the held claim may be lost.
pub(super) async fn until_lost(redis: &Redis, claim: &Claim) {
    if redis.polls.load(Ordering::Relaxed) {
        return std::future::pending().await;
    }
    let message = redis.push.watch_held(claim.owner);
    if redis.push.was_evicted(claim.owner) {
        return;
    }
    // In a box, which is dropped: this future lives for as long as the lock is held, and the state
    // of a subscription on its way is four fifths of it.
    Box::pin(subscribe(redis, claim)).await;
    // Whatever it says, the engine checks by a renewal.
    message.await;
}

/// Whether a pushed grant is all that was requested. What the replicas have is known only after a
/// request; and the lease of a queue entry is too short for a grant that is never renewed. In these
/// cases the same owner's request returns the same grant, with the whole ttl.
fn is_whole_grant(redis: &Redis, claim: &Claim) -> bool {
    redis.config.replicas == 0 && !claim.fixed
}

/// Makes messages to the claim arrive. Earlier ones are missed, so that the caller has to recheck.
async fn subscribe(redis: &Redis, claim: &Claim) {
    let channel = redis.channels.client(claim.key.as_str(), claim.owner);
    let Ok(connection) = redis.servers.connection(claim.key.as_str()).await else {
        return poll_pause().await;
    };
    if connection.is_subscribed(&channel) {
        return;
    }
    match connection.subscribe(&channel, redis.channels.is_sharded()).await {
        Ok(subscription) => subscription.keep(),
        Err(error) => {
            if error.code() == Some("NOPERM") {
                redis.polls.store(true, Ordering::Relaxed);
            }
            redis.servers.report_stale();
            poll_pause().await;
        }
    }
}

/// Returns when the lock of a foreign client may be free.
async fn until_foreign_release(redis: &Redis, claim: &Claim) {
    if redis.config.layout == Layout::Plain {
        return poll_pause().await;
    }
    if let Some(foreign) = redis.push.foreign(claim.owner) {
        let _recheck = foreign.messages.next().await;
        return;
    }
    match subscribe_to_free(redis, claim).await {
        // The lock may have become free in between: recheck, and wait for a message after that.
        Some(foreign) => redis.push.set_foreign(claim.owner, foreign),
        None => poll_pause().await,
    }
}

/// Subscribes to the channel that says that the lock is free, if there is one.
async fn subscribe_to_free(redis: &Redis, claim: &Claim) -> Option<ForeignSubscription> {
    let channel = redis.channels.free(claim.key.as_str())?.to_string();
    if redis.polls.load(Ordering::Relaxed) {
        return None;
    }
    let messages = redis.push.foreign_messages(&channel);
    let connection = redis.servers.connection(claim.key.as_str()).await.ok()?;
    let sharded = redis.channels.is_sharded();
    let subscription = connection.subscribe(&channel, sharded).await.ok()?;
    let foreign = ForeignSubscription { subscription, messages };
    // The caller rechecks after this.
    foreign.forget_messages();
    Some(foreign)
}

/// For a claim that has no queue entry: returns when the lock is free and no waiter is next.
async fn until_free_unqueued(redis: &Redis, claim: &Claim) {
    let Some(foreign) = subscribe_to_free(redis, claim).await else {
        return poll_pause().await;
    };
    let holdings = admin::list(redis, Scope::Key(&claim.key)).await;
    let Some(holding) = holdings.ok().and_then(|mut holdings| holdings.pop()) else { return };
    let leases = holding.holders.iter().map(|holder| holder.ttl_left);
    let lease = leases.map(|left| left.unwrap_or(UNKNOWN_LEASE)).min().unwrap_or(UNKNOWN_LEASE);
    // The end of a lease publishes no message. Either way it is time to recheck.
    let limit = lease + Duration::from_millis(1);
    let _timed_out = tokio::time::timeout(limit, foreign.messages.next()).await.is_err();
}

async fn poll_pause() {
    tokio::time::sleep(jitter(POLL_MIN, POLL_MAX)).await;
}
