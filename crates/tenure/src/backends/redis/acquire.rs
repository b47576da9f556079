//! Acquiring: one script that grants the lock, or joins its queue.
//!
//! **State.** At the server a lock is one key with an expiry, the lease, which holds the owner, or
//! a marker for readers or permits, whose owners and leases lie beside it (`lua/holders.lua`).
//! Beside it lie its state (the last token), its queue (owners by sequence) and one entry for each
//! waiter, with a lease of its own: the ttl, at most [`ENTRY_LEASE_MAX`]. A tombstone refuses a
//! claim that was cancelled. `layout` has the keys; `lua/acquire.lua` the script.
//!
//! **Who may change it.** Only scripts, each of which the server runs alone: acquire, release,
//! evict, renew. Foreign clients (Redisson, the string locks) write the lock key and know nothing
//! of the rest; so do earlier versions of tenure, for which a marker is a holder.
//!
//! **Invariants.**
//! - The lock key is written only where there is none, and in the same script as its token.
//! - The same owner gets the same grant: requesting again grants nothing twice, refreshes the
//!   lease or the queue entry, and keeps the sequence. So the engine may repeat a request whose
//!   response was lost.
//! - Every mode is a weight against a limit, and the first waiter whose entry is alive is granted
//!   for as long as it fits, never a newcomer, whichever script finds that it does (`hand_off` in
//!   `lua/handoff.lua`).
//! - A downgrade changes the grant with its token or nothing.
//! - At a handoff the rest of the entry's lease becomes the lease of the lock. The waiter counts it
//!   from before its last request *that got a response*, which the server carried out later: so its
//!   deadline is never after the server's, without another round trip.
//!
//! **Races.**
//! - *The handoff comes before the busy response is read.* The claim is registered with the push
//!   router before the request is sent, and whether messages can arrive is decided before it too:
//!   a claim that was not subscribed by then rechecks once after it has subscribed.
//! - *The request arrives after the claim was cancelled.* See `release`, which leaves a tombstone.
//! - *The connection breaks after the request was sent.* The request is not repeated here: it may
//!   still be on its way, and the engine has to know that to release with a tombstone.

use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use super::Redis;
use super::connection::Connection;
use super::layout::Keys;
use super::layout::response::{holder, millis, number, text, token, unexpected};
use super::push::QueueEntry;
use super::{release, replicas};
use crate::backend::{Attempt, Busy, Claim, Grant, Holder, LostReason, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// The longest lease of a queue entry.
const ENTRY_LEASE_MAX: Duration = Duration::from_secs(10);

/// The lease of a queue entry, which a handoff makes the lease of the lock: short, so that a dead
/// waiter does not delay the next one for long.
pub(super) fn entry_lease(ttl: Duration) -> Duration {
    ttl.min(ENTRY_LEASE_MAX)
}

pub(super) async fn try_acquire(redis: &Redis, claim: &Claim) -> Result<Attempt<Grant>> {
    let keys = Keys::of(claim.key.as_str());
    let entry_lease = if claim.waits { entry_lease(claim.ttl) } else { Duration::ZERO };
    let call = redis.scripts.acquire(keys, claim, entry_lease);
    // From here on, messages to the claim are kept.
    let refreshes = claim.waits && redis.push.register(claim.owner);
    let connection = redis.servers.connection(keys.lock).await?;
    // Decided before the request is sent: a message that is sent between this request and a later
    // subscription is missed.
    let channel = redis.channels.client(keys.lock, claim.owner);
    let notified_on = claim.waits && connection.is_subscribed(&channel);
    let notified_on = notified_on.then(|| Arc::downgrade(&connection));
    // With replicas, the grant is written on the connection that then waits for them.
    let (servers, connection) = match &redis.grant_servers {
        Some(servers) => (servers, servers.connection(keys.lock).await?),
        None => (&redis.servers, connection),
    };
    // After a connection was replaced, all waiters refresh at once.
    let _turn = if refreshes { connection.refreshes.acquire().await.ok() } else { None };
    // Once only: if the connection breaks, the request may still be on its way to the server, and
    // the engine has to know that, or its release would leave no tombstone.
    let (response, connection) = servers.run_on(connection.clone(), keys.lock, &call).await?;
    match AcquireResponse::read(&response)? {
        AcquireResponse::Granted(token) => {
            confirm_replicated(redis, &connection, claim).await?;
            redis.push.unregister(claim.owner);
            Ok(Attempt::Granted(grant(claim, token, claim.ttl)))
        }
        AcquireResponse::Busy(response) => {
            Ok(Attempt::Busy(busy(redis, claim, response, notified_on)))
        }
        AcquireResponse::Cancelled => {
            Err(Error::new(ErrorKind::Internal, "this claim was cancelled; make a new one"))
        }
        AcquireResponse::NotHeld => Err(Error::not_held()),
        AcquireResponse::TakenOver => Err(Error::gone(LostReason::TakenOver)),
        AcquireResponse::OtherKind(used) => {
            redis.push.unregister(claim.owner);
            Err(Error::other_kind(&claim.key, used))
        }
    }
}

/// A grant to this claim: an exclusive one owns a range of tokens, and a downgrade keeps it.
pub(super) fn grant(claim: &Claim, token: FencingToken, ttl: Duration) -> Grant {
    if claim.mode == Mode::Exclusive || claim.token.is_some() {
        return Grant::with_range(token, ttl);
    }
    Grant::new(token, ttl)
}

fn busy(
    redis: &Redis,
    claim: &Claim,
    response: BusyResponse,
    notified_on: Option<Weak<Connection>>,
) -> Busy {
    if claim.waits {
        let foreign = response.holder.as_ref().is_some_and(|holder| holder.token.is_none());
        let entry = QueueEntry {
            sequence: response.sequence,
            channel: redis.channels.client(claim.key.as_str(), claim.owner),
            notified_on,
            behind_foreign_client: response.ahead == Some(0) && foreign,
        };
        redis.push.queued(claim.owner, entry);
    }
    let mut busy = Busy::new(claim.key.clone());
    busy.retry_after = response.retry_after;
    busy.ahead = response.ahead;
    busy.holder = response.holder.map(Box::new);
    busy.holders = response.holders;
    busy
}

/// Makes sure that enough replicas have a grant, and releases it if they do not.
async fn confirm_replicated(redis: &Redis, connection: &Connection, claim: &Claim) -> Result<()> {
    let limit = claim.ttl / 5;
    let confirmed = replicas::confirm(&redis.config, connection, limit, &claim.key).await;
    // A downgrade is repeated: a replica that has not got it still has the exclusive grant.
    if confirmed.is_err() && claim.token.is_none() {
        release::with_tombstone(redis, claim, Duration::ZERO).await?;
    }
    confirmed
}

/// The response of `lua/acquire.lua`.
#[derive(Debug)]
enum AcquireResponse {
    Busy(BusyResponse),
    Granted(FencingToken),
    /// The claim was cancelled before this request arrived.
    Cancelled,
    /// The grant to downgrade is gone, and the lock is free.
    NotHeld,
    /// The grant to downgrade is gone, and others hold the lock.
    TakenOver,
    /// The key is in use as a lock or as a semaphore, and the claim wants the other.
    OtherKind(Mode),
}

/// Who holds the lock, and the claim's own queue entry.
#[derive(Debug)]
struct BusyResponse {
    retry_after: Option<Duration>,
    ahead: Option<u32>,
    sequence: u64,
    /// The oldest of them.
    holder: Option<Holder>,
    holders: u32,
}

impl AcquireResponse {
    fn read(response: &Value) -> Result<AcquireResponse> {
        AcquireResponse::parse(response).ok_or_else(|| unexpected("acquire", response))
    }

    fn parse(response: &Value) -> Option<AcquireResponse> {
        let Value::Array(parts) = response else { return None };
        match &parts[..] {
            [Value::Int(1), token, ..] => Some(AcquireResponse::Granted(self::token(token)?)),
            [Value::Int(-1)] => Some(AcquireResponse::Cancelled),
            [Value::Int(-2)] => Some(AcquireResponse::NotHeld),
            [Value::Int(-3)] => Some(AcquireResponse::TakenOver),
            [Value::Int(-4)] => Some(AcquireResponse::OtherKind(Mode::Exclusive)),
            [Value::Int(-5)] => Some(AcquireResponse::OtherKind(Mode::permits(1, 1).ok()?)),
            [Value::Int(0), retry_after, ahead, sequence, shown @ .., holders] => {
                Some(AcquireResponse::Busy(BusyResponse {
                    retry_after: millis(retry_after),
                    ahead: number(ahead).and_then(|ahead| u32::try_from(ahead).ok()),
                    sequence: text(sequence).parse().unwrap_or(0),
                    holder: holder(shown),
                    holders: u32::try_from(number(holders)?).ok()?,
                }))
            }
            _ => None,
        }
    }
}
