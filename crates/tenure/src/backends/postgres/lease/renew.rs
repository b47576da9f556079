//! Renews leases: many in one statement, and none that waits for another.
//!
//! Two things could delay a renewal that could be carried out: the locked row of another lease in
//! the same statement, and requests on the same connection that wait for a locked row. So the first
//! statement skips locked rows, which are then renewed one by one, and a renewal without a response
//! is also sent over a connection of its own. A renewal never shortens a lease, so that it may be
//! carried out twice.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::backend::{Claim, LostReason};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{SqlValue, values};
use crate::backends::postgres::error;
use crate::backends::postgres::layout::columns::{get, key_bytes, ttl_seconds};
use crate::backends::postgres::layout::lease;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// What the first statement did with a claim.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RenewOutcome {
    Renewed,
    /// The claim holds the lock, and another transaction has the row locked.
    RowLocked,
    /// Another grant holds the lock.
    TakenOver,
    NotHeld,
}

pub(crate) async fn renew(pool: &Arc<Pool>, claims: &[Claim]) -> Vec<Result<Duration>> {
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let limit = shortest / 16;
    let outcomes = match renew_unlocked_rows(pool, claims, limit).await {
        Ok(outcomes) => outcomes,
        Err(error) => return vec![Err(error); claims.len()],
    };
    let locked = outcomes.iter().filter(|outcome| **outcome == RenewOutcome::RowLocked).count();
    let lock_wait = limit / u32::try_from(locked.max(1)).unwrap_or(u32::MAX);
    join_all(claims.iter().zip(outcomes).map(async |(claim, outcome)| match outcome {
        RenewOutcome::Renewed => Ok(claim.ttl),
        RenewOutcome::RowLocked => renew_locked_row(pool, claim, limit, lock_wait).await,
        RenewOutcome::TakenOver => Err(Error::gone(LostReason::TakenOver)),
        RenewOutcome::NotHeld => Err(Error::not_held()),
    }))
    .await
}

/// Renews every lease whose row is not locked. Returns one outcome per claim, in order.
async fn renew_unlocked_rows(
    pool: &Arc<Pool>,
    claims: &[Claim],
    limit: Duration,
) -> Result<Vec<RenewOutcome>> {
    let rows = pool.query_with_bypass(&lease::RENEW, || renew_values(claims), limit).await?;
    let outcome = |row| {
        Ok(match (get(row, "renewed")?, get(row, "was_held")?, get(row, "is_taken")?) {
            (true, _, _) => RenewOutcome::Renewed,
            (false, true, _) => RenewOutcome::RowLocked,
            (false, false, true) => RenewOutcome::TakenOver,
            (false, false, false) => RenewOutcome::NotHeld,
        })
    };
    let outcomes: Vec<RenewOutcome> = rows.iter().map(outcome).collect::<Result<_>>()?;
    if outcomes.len() != claims.len() {
        return Err(error::unexpected("not one row per renewal"));
    }
    Ok(outcomes)
}

fn renew_values(claims: &[Claim]) -> Vec<SqlValue> {
    let keys: Vec<_> = claims.iter().map(|claim| key_bytes(&claim.key)).collect();
    let owners: Vec<_> = claims.iter().map(|claim| claim.owner.to_string()).collect();
    let ttls: Vec<_> = claims.iter().map(|claim| ttl_seconds(claim.ttl)).collect();
    let tokens: Vec<_> = claims.iter().map(token_number).collect();
    values![keys, owners, ttls, tokens]
}

fn token_number(claim: &Claim) -> Option<i64> {
    claim.token.map(FencingToken::as_i64)
}

/// Renews a lease whose row is locked: waits in the row's own lock queue, in which other requests
/// cannot overtake it, for no longer than `lock_wait`, and for no longer than `limit` in total.
async fn renew_locked_row(
    pool: &Arc<Pool>,
    claim: &Claim,
    limit: Duration,
    lock_wait: Duration,
) -> Result<Duration> {
    let values = values![
        key_bytes(&claim.key),
        claim.owner.to_string(),
        ttl_seconds(claim.ttl),
        token_number(claim),
        format!("{}ms", lock_wait.as_millis().max(1)),
    ];
    match tokio::time::timeout(limit, pool.query(&lease::RENEW_LOCKED, values)).await {
        Ok(rows) if rows.as_ref().is_ok_and(Vec::is_empty) => Err(Error::not_held()),
        Ok(rows) => rows.map(|_| claim.ttl),
        Err(_) => {
            let message = format!("another transaction has the row of `{}` locked", claim.key);
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}
