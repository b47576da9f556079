//! Renewing the records of named locks.

use std::time::Duration;

use super::super::lease::LockTables;
use super::super::lease::renew::{self, Renewal};
use super::{NamedLocks, release};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, ErrorKind, Result};

/// Extends the leases of the records, and checks that the connection which executed the renewal is
/// the one that has the named locks.
pub(crate) async fn renew(
    locks: &NamedLocks,
    tables: &LockTables,
    claims: &[Claim],
) -> Vec<Result<Duration>> {
    let current = tables.main().current_id();
    let is_lost = |claim: &Claim| {
        let locked_by = locks.connection_id(claim);
        locked_by.is_some() && locked_by != current
    };
    if claims.iter().any(is_lost) {
        // Known without a request, which would open a new connection and so end the old one: the
        // holder has to know before the server frees the lock. The others are renewed right after.
        let replaced = || Error::new(ErrorKind::Unavailable, "the connection was replaced");
        let result = |claim: &Claim| {
            if !is_lost(claim) {
                return Err(replaced());
            }
            locks.forget(&claim.key, claim.owner);
            tables.hints.forget(claim.owner);
            Err(Error::gone(LostReason::SessionGone))
        };
        return claims.iter().map(result).collect();
    }
    let renewal = match renew::renew(tables, claims).await {
        Ok(renewal) => renewal,
        Err(error) => return vec![Err(error); claims.len()],
    };
    let mut results = Vec::with_capacity(claims.len());
    for claim in claims {
        let result = lease(locks, &renewal, claim);
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
            release::unlock_lost(locks, tables, &claim.key, claim.owner);
            tables.hints.forget(claim.owner);
        }
        results.push(result);
    }
    results
}

fn lease(locks: &NamedLocks, renewal: &Renewal, claim: &Claim) -> Result<Duration> {
    let locked_by = locks.connection_id(claim);
    // The record may still be there, but the named lock has ended with its connection.
    if locked_by.is_some_and(|id| id != *renewal.connection_id(claim)) {
        return Err(Error::gone(LostReason::SessionGone));
    }
    renewal.lease(claim)
}
