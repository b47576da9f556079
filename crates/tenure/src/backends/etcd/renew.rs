//! Renew: a keep-alive for each lease, and a read of the claims.
//!
//! A renewal has to prove two things. That the lease lives is proven by a keep-alive, which all
//! claims on that lease share. That the claim is still there is another matter: an operator may
//! have evicted it, and another claim may hold the lock by now, while the lease lives on. So the
//! keys of the claims are read at the same time, and each must have the create revision that was
//! granted: a key with another one was written later, by the same owner.
//!
//! Neither is a proposal to the cluster. A keep-alive that is not confirmed in time loses nothing:
//! the renewal then returns what is left of the last one that was.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::Context;
use super::claims::{ClaimState, request_limit};
use super::error::{unavailable, unexpected};
use super::layout::messages::TxnResponse;
use super::layout::{self, TXN};
use super::session::{Session, Sessions};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, Result};
use crate::support::clock::{Clock, Moment};

/// How many claims are read by one transaction: servers refuse more than 128 operations in one,
/// unless configured otherwise.
const MAX_READS: usize = 100;

/// Renews these claims, with one result for each, in order.
pub(super) async fn renew(context: &Context, claims: &[Claim]) -> Vec<Result<Duration>> {
    let start = Clock::Boot.now();
    let states: Vec<_> = claims.iter().map(|claim| held(context, claim)).collect();
    let held: Vec<_> = states.iter().flatten().collect();
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let limit = request_limit(shortest);
    let reads = held.chunks(MAX_READS).map(|some| create_revisions(context, some, limit));
    let refreshed = refresh(&context.sessions, &held, start, limit);
    let (reads, ()) = join(join_all(reads), refreshed).await;
    // The reads are in the order of those claims that are held here.
    let mut revisions = reads.into_iter().flatten();
    states.into_iter().map(|state| lease_left(&state?, revisions.next(), start)).collect()
}

/// The claim, if this client holds the grant that is to be renewed or downgraded.
pub(super) fn held(context: &Context, claim: &Claim) -> Result<ClaimState> {
    let Some(state) = context.claims.get(claim) else { return Err(Error::not_held()) };
    if state.granted && state.session.has_ended() {
        return Err(Error::gone(LostReason::SessionGone));
    }
    // The request may be about an earlier grant to the same owner.
    let is_named = |state: &ClaimState| {
        claim.token.is_none_or(|token| Some(layout::revision_of(token)) == state.revision)
    };
    let state = context.claims.find_live(claim).filter(|state| state.granted && is_named(state));
    state.ok_or_else(Error::not_held)
}

/// Wants a keep-alive for every lease, and waits until each is guaranteed to last, but not for
/// longer than `limit`.
async fn refresh(sessions: &Sessions, held: &[&ClaimState], start: Moment, limit: Duration) {
    let by_id = held.iter().map(|state| (state.session.id, &state.session));
    let by_id: HashMap<i64, &Arc<Session>> = by_id.collect();
    let guaranteed = by_id.into_values().map(|session| {
        sessions.refresh(session);
        session.until_guaranteed(start + session.ttl * 5 / 6)
    });
    // A lease that is not confirmed in time counts with what is left of it.
    let _timed_out = tokio::time::timeout(limit, join_all(guaranteed)).await;
}

/// The create revisions of the keys of these claims, 0 for one that is not there.
async fn create_revisions(
    context: &Context,
    held: &[&ClaimState],
    limit: Duration,
) -> Vec<Result<i64>> {
    let read = |state: &&ClaimState| layout::keys_only(layout::get(&state.server_key));
    let request = layout::read_all(held.iter().map(read).collect());
    let response = context.connection.call::<_, TxnResponse>(TXN, request, limit).await;
    let response = match response {
        Ok(response) => response.body,
        Err(error) => return vec![Err(error); held.len()],
    };
    let read_at = layout::revision(&response);
    let ranges = layout::ranges(response);
    let created = |(at, state): (usize, &&ClaimState)| {
        let range = ranges.get(at).ok_or_else(|| unexpected("a read is missing"))?;
        let created = range.kvs.first().map_or(0, |kv| kv.create_revision);
        if Some(created) == state.revision {
            let seen = |state: &mut ClaimState| state.seen_at = state.seen_at.max(read_at);
            context.claims.update(&state.claim, seen);
        }
        Ok(created)
    };
    held.iter().enumerate().map(created).collect()
}

/// The lease of one claim from `start` on, by the create revision that was read for it.
fn lease_left(
    state: &ClaimState,
    revision: Option<Result<i64>>,
    start: Moment,
) -> Result<Duration> {
    let revision = revision.unwrap_or_else(|| Err(unexpected("a read is missing")))?;
    if state.session.has_ended() {
        return Err(Error::gone(LostReason::SessionGone));
    }
    if Some(revision) != state.revision {
        return Err(Error::not_held());
    }
    match state.session.guaranteed_until().since(start) {
        Duration::ZERO => Err(unavailable("the lease is not confirmed")),
        left => Ok(left.min(state.claim.ttl)),
    }
}
