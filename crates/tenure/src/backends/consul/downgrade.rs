//! Downgrade: one transaction deletes the lock, if it has the index of the grant, and creates a
//! shared grant of the same claim. So the lock is never free in between, and readers that watch it
//! are woken.
//!
//! The key of the grant is another one then, with a higher index. The holder keeps its token, so
//! the index of the grant is stored in the value: `list`, `evict`, `renew` and conditions find the
//! grant by it. Every later writer has a higher index than both, every earlier one a lower than
//! both.
//!
//! Repeated, the check of the index fails, and the shared grant with that token is found. A request
//! that arrives late finds another lock, or none; between the two transactions of a release with an
//! unknown outcome the lock is still there, and the tombstone refuses the request.

use super::Context;
use super::claims::{ClaimRecord, GrantKey, StoredGrant};
use super::connection::api::{RefusalReason, TxnOp, TxnOutcome, decisive_reason};
use super::grant_request::written;
use super::layout::{LockKeys, LockRecord, Marker};
use super::snapshot::KeySnapshot;
use crate::backend::{Claim, Grant, LostReason, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::support::clock::Clock;
use crate::token::FencingToken;

/// How often it is tried, if a foreign client writes into the lock's key meanwhile.
const TRIES_MAX: usize = 3;

/// Makes the exclusive grant with this token shared.
pub(super) async fn downgrade(
    context: &Context,
    claim: &Claim,
    token: FencingToken,
) -> Result<Grant> {
    let started = Clock::Boot.now();
    let record = context.claims.get(claim.owner).ok_or_else(Error::not_held)?;
    if !record.session.refresh_if_stale(&context.api).await? {
        return Err(Error::gone(LostReason::SessionGone));
    }
    let keys = LockKeys::new(&claim.key);
    let mut known = record.grant.filter(|grant| grant.token == token);
    for _ in 0..TRIES_MAX {
        let lock = known.filter(|grant| grant.key == GrantKey::Lock);
        if let Some(lock) = lock
            && let Some(shared) = exchange(context, claim, &record, &keys, lock).await?
        {
            return Ok(granted(context, claim, &record, shared, started));
        }
        // It is shared already, or lost, or a foreign client has changed the index.
        known = find(context, claim, &record, &keys, token).await?;
        match known {
            Some(shared) if shared.key != GrantKey::Lock => {
                return Ok(granted(context, claim, &record, shared, started));
            }
            Some(_) => {}
            None => return Err(Error::gone(LostReason::TakenOver)),
        }
    }
    let message = "a foreign client keeps writing into the key of the lock";
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// Exchanges the lock for a shared grant. `None` if the lock has another index.
async fn exchange(
    context: &Context,
    claim: &Claim,
    record: &ClaimRecord,
    keys: &LockKeys,
    lock: StoredGrant,
) -> Result<Option<StoredGrant>> {
    let (owner, held, marker) = (claim.owner, keys.held(claim.owner), keys.marker(Marker::Holders));
    let value = LockRecord {
        owner,
        ttl: record.session.ttl,
        lock_delay: context.lock_delay,
        mode: Mode::Shared,
        downgraded: Some(lock.token.index()),
        holder_info: claim.holder_info.clone(),
    };
    let session = record.session.id.clone();
    let ops = [
        TxnOp::CheckAbsent(keys.tombstone(owner)),
        TxnOp::CheckIndex(keys.lock(), lock.index),
        TxnOp::Delete(keys.lock()),
        TxnOp::CheckAbsent(held.clone()),
        TxnOp::Lock { key: held.clone(), session, flags: 0, value: value.encode() },
        TxnOp::Set(marker.clone(), owner.to_string()),
    ];
    // Without a response, a release has to look for both grants.
    let earlier = context.claims.begin_request(owner);
    let outcome = context.api.transact(&ops).await?;
    context.claims.end_request(owner, earlier);
    match outcome {
        TxnOutcome::Committed(entries) => {
            let set = written(&entries, &marker)?;
            let first = set.created == set.modified;
            let key = GrantKey::Held { first };
            let index = written(&entries, &held)?.modified;
            Ok(Some(StoredGrant { token: lock.token, index, key }))
        }
        TxnOutcome::Refused(refusals) => match decisive_reason(&refusals) {
            RefusalReason::SessionGone => Err(Error::gone(LostReason::SessionGone)),
            RefusalReason::CheckFailed | RefusalReason::LockDelay => Ok(None),
        },
    }
}

/// The grant with this token, as it is stored now.
async fn find(
    context: &Context,
    claim: &Claim,
    record: &ClaimRecord,
    keys: &LockKeys,
    token: FencingToken,
) -> Result<Option<StoredGrant>> {
    let snapshot = KeySnapshot::new(&claim.key, context.api.read_tree(keys.tree()).await?);
    let own = snapshot.own_grant(&context.claims, claim.owner, record)?;
    Ok(own.filter(|grant| grant.token == token))
}

fn granted(
    context: &Context,
    claim: &Claim,
    record: &ClaimRecord,
    shared: StoredGrant,
    started: crate::support::clock::Moment,
) -> Grant {
    context.claims.set_granted(claim.owner, shared);
    let lease = record.session.lease_from(started);
    Grant::with_range(shared.token, lease.min(claim.ttl))
}
