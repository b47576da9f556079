//! Acquire: a claim is a key at the server, and the oldest claim to a lock holds it.
//!
//! **State.** Every claim to the lock `name` is one key below `SPACE name/`, attached to the
//! client's lease. The queue is the order of create revisions, which the cluster assigns and never
//! uses twice: the claim with the smallest one holds the lock, the others wait in that order. The
//! fencing token is the create revision times 1024. etcd's Go package `concurrency` and `etcdctl lock`
//! write the same kind of keys, so that they stand in the same queue.
//!
//! **Who changes it.** Only the claim's own client writes its key, once. It is deleted by that
//! client (release), by an operator (evict), or by the server when the lease ends. A key never
//! becomes older, so that no claim gets in front of another.
//!
//! **Invariant.** A claim is granted only if one transaction, at one revision, shows its key on its
//! lease and no older claim, and if the lease is then guaranteed to outlast the grant. No second
//! read is needed: a key on a lease that has ended would not be there.
//!
//! A claim that waits is written whether the lock is held or not ([`enqueue`]): its key is its
//! queue entry. One that does not wait is written only if the queue is empty ([`write_if_free`]),
//! so that a refusal writes nothing.
//!
//! **Races.**
//! - A request without a response may be carried out at any later time. Repeated, it finds its own
//!   key and writes no second. After the claim was cancelled, it finds the tombstone that `release`
//!   has put on the same lease, and writes nothing; after the lease has ended, etcd refuses it.
//! - The predecessor may be deleted between the read and the watch for that: the watch begins at
//!   the revision after the read (see `wait`).
//! - The key may be deleted by an operator, or with its lease, while the client still counts on it:
//!   then it is [`QueuePosition::Missing`], and the claim is written once more, at the end.

use super::Context;
use super::claims::{ClaimState, Predecessor, request_limit};
use super::error::{lease_not_found, unavailable, unexpected};
use super::layout::messages::{KeyValue, RangeResponse, TxnRequest, TxnResponse};
use super::layout::{self, TXN, is_in_queue};
use crate::backend::{Attempt, Busy, Claim, Grant};
use crate::error::{Error, Result};
use crate::support::clock::{Clock, Moment};

/// How often a claim is written again that was deleted as soon as it was there.
const MAX_WRITES: usize = 3;

/// Where a claim stands in the queue of its lock.
enum QueuePosition {
    /// It is the oldest, by this create revision.
    First(i64),
    /// An older claim is in the queue.
    Behind(QueueEntry),
    /// It was not written, because the lock is held and the claim does not wait.
    Refused { holder: KeyValue },
    /// It was not written, was deleted, or its lease has ended.
    Missing,
}

/// A claim that waits.
struct QueueEntry {
    revision: i64,
    predecessor: Predecessor,
    holder: KeyValue,
    /// How many wait before it, if the read tells.
    ahead: Option<u32>,
}

/// What one transaction has read of a queue.
struct QueueRead {
    /// The youngest two claims that are not younger than this one: itself and its predecessor.
    youngest_two: RangeResponse,
    oldest: RangeResponse,
    /// The revision of both reads.
    revision: i64,
    /// Whether the same transaction wrote the claim, which therefore is the last in the queue.
    is_last: bool,
}

pub(super) async fn try_acquire(context: &Context, claim: &Claim) -> Result<Attempt<Grant>> {
    for _ in 0..MAX_WRITES {
        let requested = Clock::Boot.now();
        let state = match context.claims.find_live(claim) {
            Some(state) => state,
            None => register(context, claim).await?,
        };
        // On its way while the queue is read, so that a grant seldom has to wait for it.
        context.sessions.refresh(&state.session);
        match queue_position(context, &state).await? {
            QueuePosition::First(revision) => {
                if let Some(grant) = grant(context, &state, revision, requested).await? {
                    return Ok(Attempt::Granted(grant));
                }
            }
            QueuePosition::Behind(entry) => {
                return Ok(Attempt::Busy(wait_behind(context, claim, entry)));
            }
            QueuePosition::Refused { holder } => {
                // Nothing was written, unless the outcome of an earlier request is unknown.
                if context.claims.get(claim).is_some_and(|state| !state.unconfirmed) {
                    context.claims.remove(claim);
                }
                return Ok(Attempt::Busy(busy(claim, &holder)));
            }
            QueuePosition::Missing => {
                context.claims.update(claim, |state| state.revision = None);
            }
        }
    }
    Err(unavailable("the claim is deleted as soon as it is written"))
}

/// Enters a claim into the table, on a lease, before anything of it is sent.
async fn register(context: &Context, claim: &Claim) -> Result<ClaimState> {
    let limit = request_limit(claim.ttl);
    let session = context.sessions.session_for(&context.connection, claim.ttl, limit).await?;
    Ok(context.claims.insert(claim, session, &context.space))
}

/// Writes the claim if it is not known to be at the server, and reads where it stands.
async fn queue_position(context: &Context, state: &ClaimState) -> Result<QueuePosition> {
    let position = match state.revision {
        Some(revision) => read_position(context, state, revision).await,
        None if state.claim.waits => enqueue(context, state).await,
        None => write_if_free(context, state).await,
    };
    match position {
        // The server refuses a write on a lease that has ended. The next attempt makes a new one.
        Err(error) if lease_not_found(&error) => {
            state.session.set_ended();
            Ok(QueuePosition::Missing)
        }
        position => position,
    }
}

/// Writes the claim at the end of the queue, and reads who is before it.
async fn enqueue(context: &Context, state: &ClaimState) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    let tombstone = context.space.tombstone_key(state.session.id, state.claim.owner);
    let request = TxnRequest {
        // It may be there already, by an earlier attempt.
        compare: vec![layout::if_absent(&state.server_key), layout::if_absent(&tombstone)],
        success: vec![
            put_claim(state),
            layout::read_op(layout::youngest_two(&prefix, 0)),
            layout::read_op(layout::oldest(&prefix)),
        ],
        failure: vec![layout::read_op(layout::get(&state.server_key))],
    };
    let response = write(context, state, request).await?;
    if response.succeeded {
        return position_in(context, state, queue_read(response, true)?).await;
    }
    let ranges = layout::ranges(response);
    match layout::first(ranges.first()) {
        Some(own) => read_position(context, state, own.create_revision).await,
        None => Err(cancelled()),
    }
}

/// Writes the claim only if no other is in the queue: a refusal changes nothing at the server.
async fn write_if_free(context: &Context, state: &ClaimState) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    let tombstone = context.space.tombstone_key(state.session.id, state.claim.owner);
    let request = TxnRequest {
        compare: vec![layout::if_none_below(&prefix), layout::if_absent(&tombstone)],
        success: vec![put_claim(state), layout::read_op(layout::get(&state.server_key))],
        failure: vec![
            layout::read_op(layout::get(&state.server_key)),
            layout::read_op(layout::oldest(&prefix)),
        ],
    };
    let response = write(context, state, request).await?;
    let succeeded = response.succeeded;
    let ranges = layout::ranges(response);
    let own = layout::first(ranges.first());
    let oldest = layout::first(ranges.get(1));
    match (own, oldest) {
        (Some(own), _) if succeeded => Ok(QueuePosition::First(own.create_revision)),
        // An earlier attempt wrote it.
        (Some(own), _) => read_position(context, state, own.create_revision).await,
        (None, Some(holder)) if is_in_queue(&holder.key, &prefix) => {
            Ok(QueuePosition::Refused { holder: holder.clone() })
        }
        // The oldest belongs to a foreign client's lock with a longer name, which is not waited
        // for; whether this lock is held is not known yet.
        (None, Some(_)) => enqueue(context, state).await,
        // The queue is empty, so that it is the tombstone that was found.
        (None, None) => Err(cancelled()),
    }
}

fn put_claim(state: &ClaimState) -> layout::messages::RequestOp {
    layout::put_op(&state.server_key, state.claim.holder_info.encode(), state.session.id)
}

/// Reads where a claim stands that was written with this create revision.
async fn read_position(
    context: &Context,
    state: &ClaimState,
    revision: i64,
) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    let reads = vec![layout::youngest_two(&prefix, revision), layout::oldest(&prefix)];
    let limit = request_limit(state.claim.ttl);
    let response = context.connection.call(TXN, layout::read_all(reads), limit).await?;
    position_in(context, state, queue_read(response.body, false)?).await
}

fn queue_read(response: TxnResponse, is_last: bool) -> Result<QueueRead> {
    let revision = layout::revision(&response);
    let ranges: Result<[RangeResponse; 2], _> = layout::ranges(response).try_into();
    let [youngest_two, oldest] = ranges.map_err(|_| unexpected("a read is missing"))?;
    Ok(QueueRead { youngest_two, oldest, revision, is_last })
}

/// The position of a claim in what was read.
async fn position_in(
    context: &Context,
    state: &ClaimState,
    read: QueueRead,
) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    let youngest = &read.youngest_two.kvs;
    let Some(own) = youngest.first().filter(|kv| is_own(kv, state)) else {
        return Ok(QueuePosition::Missing);
    };
    let (Some(next), Some(holder)) = (youngest.get(1), read.oldest.kvs.first()) else {
        return Ok(QueuePosition::First(own.create_revision));
    };
    if !is_in_queue(&next.key, &prefix) || !is_in_queue(&holder.key, &prefix) {
        return position_among_all(context, state, &prefix).await;
    }
    let ahead = if read.is_last {
        // All claims of the queue, but for this one and the holder.
        u32::try_from(read.oldest.count - 2).ok()
    } else {
        (next.key == holder.key).then_some(0)
    };
    let predecessor = Predecessor { server_key: next.key.clone(), watch_from: read.revision + 1 };
    let revision = own.create_revision;
    Ok(QueuePosition::Behind(QueueEntry { revision, predecessor, holder: holder.clone(), ahead }))
}

/// The position of a claim where foreign clients have locks with longer names below its prefix,
/// such as `name/more`: all keys are read, and those are left out.
async fn position_among_all(
    context: &Context,
    state: &ClaimState,
    prefix: &[u8],
) -> Result<QueuePosition> {
    let limit = request_limit(state.claim.ttl);
    let request = layout::read_all(vec![layout::keys_only(layout::all(prefix))]);
    let response: TxnResponse = context.connection.call(TXN, request, limit).await?.body;
    let read_at = layout::revision(&response);
    let Some(all) = layout::ranges(response).pop() else { return Ok(QueuePosition::Missing) };
    let queue: Vec<_> = all.kvs.iter().filter(|kv| is_in_queue(&kv.key, prefix)).collect();
    let Some(rank) = queue.iter().position(|kv| is_own(kv, state)) else {
        return Ok(QueuePosition::Missing);
    };
    let revision = queue[rank].create_revision;
    if rank == 0 {
        return Ok(QueuePosition::First(revision));
    }
    let server_key = queue[rank - 1].key.clone();
    let predecessor = Predecessor { server_key, watch_from: read_at + 1 };
    let ahead = u32::try_from(rank - 1).ok();
    let holder = queue[0].clone();
    Ok(QueuePosition::Behind(QueueEntry { revision, predecessor, holder, ahead }))
}

/// Sends a request that may write the claim. Its outcome is unknown until there is a response to
/// the first attempt: what any earlier one has left unknown stays so.
async fn write(context: &Context, state: &ClaimState, request: TxnRequest) -> Result<TxnResponse> {
    let claim = &state.claim;
    // Before it is sent: the caller may drop this future at any time.
    let set_unconfirmed = |state: &mut ClaimState| std::mem::replace(&mut state.unconfirmed, true);
    let earlier = context.claims.update(claim, set_unconfirmed).unwrap_or(true);
    let response = context.connection.call(TXN, request, request_limit(claim.ttl)).await?;
    let unconfirmed = earlier || response.unconfirmed;
    context.claims.update(claim, |state| state.unconfirmed = unconfirmed);
    Ok(response.body)
}

/// Grants a claim that is the first, once its lease is guaranteed to last for a while. `None` if
/// the lease has ended.
async fn grant(
    context: &Context,
    state: &ClaimState,
    revision: i64,
    requested: Moment,
) -> Result<Option<Grant>> {
    let ClaimState { claim, session, .. } = state;
    let left = || session.guaranteed_until().since(Clock::Boot.now());
    let needed_until = if claim.fixed {
        // It is never renewed, and the lease that it shares may be about to end: it has to be
        // confirmed for the whole ttl first.
        requested + claim.ttl
    } else if left() <= session.ttl * 2 / 3 {
        // Kept alive before the grant. If the response is late, a third of the ttl is enough: the
        // holder can still renew within it.
        Clock::Boot.now() + session.ttl * 2 / 3
    } else {
        requested
    };
    context.sessions.extend(session, needed_until);
    let guaranteed = session.until_guaranteed(needed_until);
    // If the time runs out, the checks below decide by what is guaranteed then.
    let _timed_out = tokio::time::timeout(request_limit(claim.ttl), guaranteed).await;
    if session.has_ended() {
        return Ok(None);
    }
    let is_short = claim.fixed && session.guaranteed_until() < needed_until;
    if is_short || left() <= session.ttl / 3 {
        return Err(unavailable("the lease is not confirmed"));
    }
    let token = layout::token_of(revision)?;
    context.claims.update(claim, |state| {
        state.revision = Some(revision);
        state.granted = true;
        state.predecessor = None;
        state.seen_at = state.seen_at.max(revision);
    });
    Ok(Some(Grant::with_range(token, claim.ttl.min(session.guaranteed_until().since(requested)))))
}

/// Remembers whose deletion a claim waits for.
fn wait_behind(context: &Context, claim: &Claim, entry: QueueEntry) -> Busy {
    context.claims.update(claim, |state| {
        state.revision = Some(entry.revision);
        state.predecessor = Some(entry.predecessor);
    });
    Busy { ahead: entry.ahead.filter(|_| claim.waits), ..busy(claim, &entry.holder) }
}

fn busy(claim: &Claim, holder: &KeyValue) -> Busy {
    Busy { holder: Some(Box::new(layout::holder(holder))), ..Busy::new(claim.key.clone()) }
}

/// Whether this is the claim's key, on its lease.
fn is_own(kv: &KeyValue, state: &ClaimState) -> bool {
    kv.key == state.server_key && kv.lease == state.session.id
}

fn cancelled() -> Error {
    unavailable("the claim was cancelled before it was written")
}
