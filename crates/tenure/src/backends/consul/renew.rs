//! Renew: one request for each session renews all its claims, and one more for every 64 locks
//! checks that they are still held.
//!
//! The renewal of a session does not say which locks it holds: an operator may have deleted one, or
//! a foreign client may have overwritten it. Therefore a transaction of `check-index` operations,
//! which changes nothing, compares the index of every grant's key with the one that it got.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};

use super::Context;
use super::claims::{ClaimRecord, GrantKey, StoredGrant};
use super::connection::api::{TxnOp, TxnOutcome};
use super::layout::LockKeys;
use super::release;
use super::session::Session;
use super::snapshot::KeySnapshot;
use crate::backend::{Claim, LostReason, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::Clock;

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
        let grant = record.as_ref().and_then(|record| record.grant);
        // A renewal names its grant: it does not renew a later grant of the same owner.
        let is_named = |grant: &StoredGrant| claim.token.is_none_or(|named| named == grant.token);
        if let Some(grant) = grant.filter(is_named) {
            let key = grant.name(&LockKeys::new(&claim.key), claim.owner);
            ops.push(TxnOp::CheckIndex(key, grant.index));
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

/// The key does not have the index of the grant: the grant is gone, another claim holds it, a
/// foreign client wrote into its key, which leaves that with its session, or a downgrade was
/// carried out of which there is no response.
async fn recheck(context: &Context, claim: &Claim, record: &ClaimRecord) -> Result<()> {
    let keys = LockKeys::new(&claim.key);
    let snapshot = KeySnapshot::new(&claim.key, context.api.read_tree(keys.tree()).await?);
    // A key that was deleted and created again is another grant with another token, also if a late
    // request of the same claim created it, as after an eviction.
    let own = snapshot.own_grant(&context.claims, claim.owner, record)?;
    let is_exclusive = record.grant.is_some_and(|grant| grant.key == GrantKey::Lock);
    let mode = if is_exclusive { Mode::Exclusive } else { Mode::Shared };
    match own {
        Some(own) if record.grant.is_some_and(|grant| grant.token == own.token) => {
            context.claims.set_granted(claim.owner, own);
            Ok(())
        }
        _ if !record.session.refresh(&context.api, Duration::ZERO).await? => {
            Err(Error::gone(LostReason::SessionGone))
        }
        _ if !snapshot.fits(mode) => Err(Error::gone(LostReason::TakenOver)),
        _ => Err(Error::gone(LostReason::Evicted)),
    }
}

/// The sessions of these claims, by id.
fn sessions<'a>(records: impl Iterator<Item = &'a ClaimRecord>) -> HashMap<String, Arc<Session>> {
    records.map(|record| (record.session.id.clone(), record.session.clone())).collect()
}
