//! Renewing the records of row locks.

use std::time::Duration;

use super::super::lease::LockTables;
use super::super::lease::renew::{self, Renewal};
use super::{RowLocks, release};
use crate::backend::{Claim, LostReason};
use crate::error::{Error, ErrorKind, Result};

/// Whether the row lock of a claim still exists.
enum RowLockState {
    Alive,
    /// Its connection has ended, and the row lock with it.
    ConnectionLost,
    /// The claim has no row lock.
    NotHeld,
}

/// Checks the connections of the row locks, all at the same time, then extends the leases of the
/// records.
pub(crate) async fn renew(
    locks: &RowLocks,
    tables: &LockTables,
    claims: &[Claim],
) -> Vec<Result<Duration>> {
    let checks = claims.iter().map(|claim| check(locks, claim));
    let states = futures_util::future::join_all(checks).await;
    if states.iter().all(|state| matches!(state, Ok(RowLockState::ConnectionLost))) {
        // Without another request: the holders have to know before the server frees the rows.
        return claims.iter().map(|claim| Err(connection_lost(locks, tables, claim))).collect();
    }
    let renewal = match renew::renew(tables, claims).await {
        Ok(renewal) => renewal,
        Err(error) => return vec![Err(error); claims.len()],
    };
    let mut results = Vec::with_capacity(claims.len());
    for (claim, state) in claims.iter().zip(states) {
        if let Ok(RowLockState::ConnectionLost) = state {
            results.push(Err(connection_lost(locks, tables, claim)));
            continue;
        }
        let result = state.and_then(|state| lease(&renewal, claim, &state));
        if result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
            release::end_lost(locks, claim);
            tables.hints.forget(claim.owner);
        }
        results.push(result);
    }
    results
}

/// A row lock has ended with its connection: there is nothing to end at the server.
fn connection_lost(locks: &RowLocks, tables: &LockTables, claim: &Claim) -> Error {
    locks.forget(claim);
    tables.hints.forget(claim.owner);
    Error::gone(LostReason::SessionGone)
}

async fn check(locks: &RowLocks, claim: &Claim) -> Result<RowLockState> {
    let Some(lock) = locks.get(claim) else { return Ok(RowLockState::NotHeld) };
    let is_alive = lock.is_alive(claim.ttl).await?;
    Ok(if is_alive { RowLockState::Alive } else { RowLockState::ConnectionLost })
}

fn lease(renewal: &Renewal, claim: &Claim, state: &RowLockState) -> Result<Duration> {
    match state {
        RowLockState::Alive => renewal.lease(claim),
        RowLockState::ConnectionLost => Err(Error::gone(LostReason::SessionGone)),
        RowLockState::NotHeld => Err(Error::not_held()),
    }
}
