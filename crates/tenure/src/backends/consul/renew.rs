//! Renew: one request for each session renews all its claims, and one more for every 64 locks
//! checks that they are still held.
//!
//! The renewal of a session does not say which locks it holds: an operator may have deleted one, or
//! a foreign client may have overwritten it. Therefore a transaction of `check-index` operations,
//! which changes nothing, compares the index of every lock with the token of its grant.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::Context;
use super::claims::ClaimRecord;
use super::connection::api::{KvEntry, TxnOp, TxnOutcome};
use super::layout::LockKeys;
use super::session::Session;
use super::{release, snapshot};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::Clock;
use crate::token::FencingToken;

/// The most operations that Consul accepts in one transaction.
const OPS_MAX: usize = 64;

/// Renews the sessions of the claims, and checks that each claim still holds its lock.
pub(super) async fn renew(context: &Context, claims: &[Claim]) -> Vec<Result<Duration>> {
    let started = Clock::Boot.now();
    let records: Vec<_> = claims.iter().map(|claim| context.claims.get(claim.owner)).collect();
    let sessions = sessions(records.iter().flatten());
    let renewals = join_all(sessions.values().map(|session| renew_session(context, session)));
    let checks = check_all(context, claims, &records);
    let (renewals, checks) = join(renewals, checks).await;
    let renewals: HashMap<&str, Result<bool>> =
        sessions.keys().map(String::as_str).zip(renewals).collect();
    let mut results = Vec::with_capacity(claims.len());
    for ((claim, record), check) in claims.iter().zip(&records).zip(checks) {
        let result = match (record, check) {
            (None, _) => Err(Error::not_held()),
            (Some(record), check) => match renewals.get(record.session.id.as_str()) {
                Some(Ok(false)) => Err(Error::gone(LostReason::SessionGone)),
                Some(Err(error)) => Err(error.clone()),
                Some(Ok(true)) | None => check.map(|()| record.session.lease_from(started)),
            },
        };
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
            context.claims.clear_grant(claim.owner);
        }
        results.push(result);
    }
    results
}

/// `false` if the session is gone.
async fn renew_session(context: &Context, session: &Arc<Session>) -> Result<bool> {
    // Concurrent calls need one renewal between them.
    let alive = session.refresh(&context.api, session.ttl / 10).await?;
    if alive {
        release::retry_failed(context, session).await;
    }
    Ok(alive)
}

async fn check_all(
    context: &Context,
    claims: &[Claim],
    records: &[Option<ClaimRecord>],
) -> Vec<Result<()>> {
    let pairs: Vec<_> = claims.iter().zip(records).collect();
    let chunks = pairs.chunks(OPS_MAX).map(|chunk| check_chunk(context, chunk));
    join_all(chunks).await.into_iter().flatten().collect()
}

/// Checks by one transaction whether each of these claims still holds its lock.
async fn check_chunk(
    context: &Context,
    chunk: &[(&Claim, &Option<ClaimRecord>)],
) -> Vec<Result<()>> {
    let mut ops = Vec::new();
    // The position in the chunk of the claim that each operation is about.
    let mut checked = Vec::new();
    for (at, (claim, record)) in chunk.iter().enumerate() {
        let token = record.as_ref().and_then(|record| record.token);
        // A renewal names its grant: it does not renew a later grant of the same owner.
        let is_named = |token: &FencingToken| claim.token.is_none_or(|named| named == *token);
        if let Some(token) = token.filter(is_named) {
            ops.push(TxnOp::CheckIndex(LockKeys::new(&claim.key).lock(), token.index()));
            checked.push(at);
        }
    }
    let mut results: Vec<Result<()>> = chunk.iter().map(|_| Err(Error::not_held())).collect();
    if ops.is_empty() {
        return results;
    }
    let refused = match context.api.transact(&ops).await {
        Ok(TxnOutcome::Committed(_)) => Vec::new(),
        Ok(TxnOutcome::Refused(refusals)) => refusals.iter().map(|refusal| refusal.op).collect(),
        Err(error) => return chunk.iter().map(|_| Err(error.clone())).collect(),
    };
    for (op, at) in checked.into_iter().enumerate() {
        let (claim, record) = chunk[at];
        results[at] = match (refused.contains(&op), record) {
            (true, Some(record)) => recheck(context, claim, record).await,
            _ => Ok(()),
        };
    }
    results
}

/// The index of the lock is not that of the grant: the lock is gone, another claim holds it, or a
/// foreign client wrote into its key, which leaves the lock with its holder.
async fn recheck(context: &Context, claim: &Claim, record: &ClaimRecord) -> Result<()> {
    // A key that was deleted and created again is another grant, also if a late request of the same
    // claim created it, as after an eviction.
    let same_key = |lock: &KvEntry| record.token.is_some_and(|token| lock.created <= token.index());
    let is_own = |lock: &KvEntry| {
        snapshot::is_held_or_overwritten(&context.claims, lock, claim.owner, record)
    };
    match context.api.read(&LockKeys::new(&claim.key).lock()).await? {
        Some(lock) if same_key(&lock) && is_own(&lock) => Ok(()),
        _ if !record.session.refresh(&context.api, Duration::ZERO).await? => {
            Err(Error::gone(LostReason::SessionGone))
        }
        Some(lock) if lock.session.is_some() => Err(Error::gone(LostReason::TakenOver)),
        _ => Err(Error::gone(LostReason::Evicted)),
    }
}

/// The sessions of these claims, by id.
fn sessions<'a>(records: impl Iterator<Item = &'a ClaimRecord>) -> HashMap<String, Arc<Session>> {
    records.map(|record| (record.session.id.clone(), record.session.clone())).collect()
}
