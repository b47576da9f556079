//! Renew: extends leases, and finds out why a lease cannot be extended.
//!
//! A renewal names the grant that it extends by key, owner and token, and creates nothing. It never
//! shortens a lease, and does not revive one that has expired: the key may be another owner's by
//! then, even if no row shows it yet.

use std::time::Duration;

use super::acquire::whole_ms;
use super::connection::open::{LOCK_TIMEOUT, set_lock_timeout};
use super::connection::store::OpenStore;
use super::holders::fits;
use super::layout::row::{self, ClaimRow};
use super::transaction::{Abort, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Claim, LostReason};
use crate::error::{Error, Result};
use crate::token::FencingToken;

/// How many renewals are made in one transaction, which takes some milliseconds: with more, other
/// processes would wait too long for the write lock.
const BATCH: usize = 1000;
/// The shortest time that a renewal waits for the write lock of the file.
const SHORTEST_LOCK_TIMEOUT: Duration = Duration::from_millis(50);

const RENEW: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND place = 0 AND owner = ?2 AND expires > ?5 AND (?6 IS NULL OR token = ?6)";

/// The outcome of the renewal of one claim.
pub(super) enum Renewed {
    Extended,
    /// The row is still in the file, but its lease has ended.
    Expired,
    NotHeld,
    TakenOver,
}

/// Extends the leases of these claims, in batches of one transaction each.
pub(super) fn renew(store: &mut OpenStore, claims: &[Claim]) -> Vec<Result<Duration>> {
    if !store.is_file_in_place() {
        return claims.iter().map(|_| Err(Error::gone(LostReason::SessionGone))).collect();
    }
    // One call has to leave time for another before the lease ends.
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or(LOCK_TIMEOUT);
    set_lock_timeout((shortest / 4).clamp(SHORTEST_LOCK_TIMEOUT, LOCK_TIMEOUT));
    let mut outcomes = Vec::with_capacity(claims.len());
    for batch in claims.chunks(BATCH) {
        let renewed = store.transact(|transaction| {
            let renewals = batch.iter().map(|claim| renew_one(transaction, claim));
            renewals.collect::<Result<Vec<_>, _>>()
        });
        match renewed {
            Ok(renewed) => {
                let each = batch.iter().zip(renewed);
                outcomes.extend(each.map(|(claim, renewed)| outcome(store, claim, renewed)));
            }
            Err(error) => outcomes.extend(batch.iter().map(|_| Err(error.clone()))),
        }
    }
    set_lock_timeout(LOCK_TIMEOUT);
    outcomes
}

/// Extends the lease of the grant that the claim names, in whichever mode it holds: the claim may
/// say how it held before a downgrade.
pub(super) fn renew_one(
    transaction: &mut WriteTransaction<'_>,
    claim: &Claim,
) -> Result<Renewed, Abort> {
    let key = claim.key.as_str();
    let ttl = whole_ms(claim.ttl);
    let owner = owner_bytes(claim.owner);
    let token = claim.token.map(FencingToken::as_i64);
    let change = (key, &owner[..], ttl, transaction.end_of(ttl), transaction.now, token);
    if transaction.execute(RENEW, change)? > 0 {
        return Ok(Renewed::Extended);
    }
    let head = transaction.head(&claim.key)?;
    let several = head.as_ref().is_some_and(ClaimRow::is_marker);
    if several && transaction.renew_one_of_several(&claim.key, claim.owner, ttl, claim.token)? {
        return Ok(Renewed::Extended);
    }
    let mut holders = row::all_holders(transaction.connection, &claim.key)?;
    if let Some(own) = holders.iter().find(|holder| holder.owner == claim.owner) {
        // A later grant of the same owner, as after an eviction, is not the one that is named.
        let named = claim.token.is_none() || claim.token == own.token;
        return Ok(if named { Renewed::Expired } else { Renewed::NotHeld });
    }
    holders.retain(|holder| holder.expires > transaction.now);
    // A claim that fits beside the holders was not replaced by them.
    Ok(if fits(&holders, claim.mode) { Renewed::NotHeld } else { Renewed::TakenOver })
}

pub(super) fn outcome(store: &mut OpenStore, claim: &Claim, renewed: Renewed) -> Result<Duration> {
    if let Renewed::Extended = renewed {
        return Ok(claim.ttl);
    }
    if store.evicted.remove(&claim.owner) {
        return Err(Error::gone(LostReason::Evicted));
    }
    Err(match renewed {
        Renewed::TakenOver => Error::gone(LostReason::TakenOver),
        Renewed::Expired => Error::gone(LostReason::Expired),
        Renewed::NotHeld | Renewed::Extended => Error::not_held(),
    })
}
