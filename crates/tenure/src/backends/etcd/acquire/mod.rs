//! Acquire: a claim is a key at the server, and the oldest claims to a key hold it, as far as they
//! fit beside one another.
//!
//! **State.** Every claim to the lock `name` is one key below `SPACE name/`, attached to the
//! client's lease. The queue is the order of create revisions, which the cluster assigns and never
//! uses twice. An exclusive claim holds if it is the oldest; a shared one if no claim before it is
//! exclusive; one to permits if the permits up to it are there. The others wait in that order. The
//! fencing token is the create revision times 1024. etcd's Go package `concurrency` and `etcdctl
//! lock` write the same kind of keys, so that they stand in the same queue, as exclusive claims:
//! they wait for every older key, and readers wait for them.
//!
//! **Who changes it.** Only the claim's own client writes its key: once, and once more to downgrade
//! it or to state another limit, which leaves its create revision as it is. It is deleted by that
//! client (release), by an operator (evict), or by the server when the lease ends. A key never
//! becomes older, so that no claim gets in front of another.
//!
//! **Invariant.** A claim is granted only if one transaction, at one revision, shows its key on its
//! lease and no older claim that excludes it, and if the lease is then guaranteed to outlast the
//! grant. No second read is needed: a key on a lease that has ended would not be there. What was
//! granted stays so, because older claims only leave or become shared, and younger ones do not
//! count.
//!
//! A claim that waits is written whether the key is held or not ([`enqueue`]): its key is its
//! queue entry. One that does not wait is written only if it is granted by that (`newcomer`), so
//! that a refusal writes nothing. `position` reads where a claim stands.
//!
//! **Races.**
//! - A request without a response may be carried out at any later time. Repeated, it finds its own
//!   key and writes no second. After the claim was cancelled, it finds the tombstone that `release`
//!   has put on the same lease, and writes nothing; after the lease has ended, etcd refuses it. A
//!   late downgrade compares the create revision of its key, and changes that one grant or nothing.
//! - The predecessor may be deleted between the read and the watch for that: the watch begins at
//!   the revision after the read (see `wait`).
//! - The key may be deleted by an operator, or with its lease, while the client still counts on it:
//!   then it is [`QueuePosition::Missing`], and the claim is written once more, at the end.

mod downgrade;
mod newcomer;
mod position;

pub(super) use self::downgrade::downgrade;
use self::newcomer::write_if_free;
use self::position::{QueueEntry, QueuePosition, QueueRead, position_in, reads};
use super::Context;
use super::claims::{ClaimState, request_limit};
use super::error::{lease_not_found, unavailable};
use super::layout::messages::{RequestOp, TxnRequest, TxnResponse};
use super::layout::{self, TXN, queue};
use super::release::release;
use crate::backend::{Attempt, Busy, Claim, Grant, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::{Clock, Moment};

/// How often a claim is written again that was deleted as soon as it was there.
const MAX_WRITES: usize = 3;

pub(super) async fn try_acquire(context: &Context, claim: &Claim) -> Result<Attempt<Grant>> {
    for _ in 0..MAX_WRITES {
        let requested = Clock::Boot.now();
        let state = match context.claims.find_live(claim) {
            Some(state) => with_limit_of(context, claim, state)?,
            None => register(context, claim).await?,
        };
        // On its way while the queue is read, so that a grant seldom has to wait for it.
        context.sessions.refresh(&state.session);
        match queue_position(context, &state).await {
            Ok(QueuePosition::Granted(revision)) => {
                if let Some(grant) = grant(context, &state, revision, requested).await? {
                    return Ok(Attempt::Granted(grant));
                }
            }
            Ok(QueuePosition::Behind(entry)) => {
                return Ok(Attempt::Busy(wait_behind(context, claim, entry)));
            }
            Ok(QueuePosition::Refused(holders)) => {
                // Nothing was written, unless the outcome of an earlier request is unknown.
                if context.claims.get(claim).is_some_and(|state| !state.unconfirmed) {
                    context.claims.remove(claim);
                }
                return Ok(Attempt::Busy(holders.busy(claim)));
            }
            Ok(QueuePosition::Missing) => {
                context.claims.update(claim, |state| state.revision = None);
            }
            Err(error) if error.kind() == ErrorKind::Invalid => {
                // Refused because of its kind: claims of the other kind must not wait for its key.
                // If this fails, the caller's own release is next.
                let _released = release(context, claim).await;
                return Err(error);
            }
            Err(error) => return Err(error),
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

/// A claim that waits for permits is judged by the limit that it states now.
///
/// It cannot state another number of permits: it may have left room for those behind it already.
fn with_limit_of(context: &Context, claim: &Claim, mut state: ClaimState) -> Result<ClaimState> {
    let (Mode::Permits { take, of }, Mode::Permits { take: wanted, of: limit }) =
        (state.claim.mode, claim.mode)
    else {
        return Ok(state);
    };
    if take != wanted {
        let message = format!("`{}` is waited for with {take} permits; cancel that", claim.key);
        return Err(Error::invalid(message));
    }
    if of != limit && !state.granted {
        state.claim.mode = claim.mode;
        state.limit_changed = true;
        context.claims.update(claim, |kept| {
            kept.claim.mode = claim.mode;
            kept.limit_changed = true;
        });
    }
    Ok(state)
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
    let tombstone = context.space.tombstone_key(state.session.id, state.claim.owner);
    let mut success = vec![put_claim(state)];
    success.extend(reads(context, state, 0).into_iter().map(layout::read_op));
    let request = TxnRequest {
        // It may be there already, by an earlier attempt.
        compare: vec![layout::if_absent(&state.server_key), layout::if_absent(&tombstone)],
        success,
        failure: vec![layout::read_op(layout::get(&state.server_key))],
    };
    let response = write(context, state, request).await?;
    if response.succeeded {
        return position_in(context, state, QueueRead::new(response, true)).await;
    }
    let ranges = layout::ranges(response);
    match layout::first(ranges.first()) {
        Some(own) => read_position(context, state, own.create_revision).await,
        None => Err(cancelled()),
    }
}

fn put_claim(state: &ClaimState) -> RequestOp {
    layout::put_op(&state.server_key, queue::value(&state.claim), state.session.id)
}

/// Reads where a claim stands that was written with this create revision.
async fn read_position(
    context: &Context,
    state: &ClaimState,
    revision: i64,
) -> Result<QueuePosition> {
    let mut request = layout::read_all(reads(context, state, revision));
    if state.limit_changed {
        // The claims behind it are judged by what its key says. That keeps its create revision.
        request.compare = vec![layout::if_created_at(&state.server_key, revision)];
        request.success.insert(0, put_claim(state));
    }
    let is_put = state.limit_changed;
    let limit = request_limit(state.claim.ttl);
    let response: TxnResponse = context.connection.call(TXN, request, limit).await?.body;
    if !response.succeeded {
        return Ok(QueuePosition::Missing);
    }
    if is_put {
        context.claims.update(&state.claim, |state| state.limit_changed = false);
    }
    position_in(context, state, QueueRead::new(response, false)).await
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
        state.waits_for = None;
        state.seen_at = state.seen_at.max(revision);
    });
    Ok(Some(Grant::with_range(token, claim.ttl.min(session.guaranteed_until().since(requested)))))
}

/// Remembers what a claim waits for.
fn wait_behind(context: &Context, claim: &Claim, entry: QueueEntry) -> Busy {
    context.claims.update(claim, |state| {
        state.revision = Some(entry.revision);
        state.waits_for = Some(entry.waits_for);
    });
    Busy { ahead: entry.ahead.filter(|_| claim.waits), ..entry.holders.busy(claim) }
}

fn cancelled() -> Error {
    unavailable("the claim was cancelled before it was written")
}
