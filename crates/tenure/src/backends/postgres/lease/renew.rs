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
use tokio_postgres::Row;

use crate::backend::{Claim, LostReason, Mode};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{Sql, SqlValue, values};
use crate::backends::postgres::error;
use crate::backends::postgres::layout::columns::{get, key_bytes, ttl_seconds};
use crate::backends::postgres::layout::renewal;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// What a statement for many claims did with one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RenewOutcome {
    Renewed,
    /// The claim holds the lock, and another transaction has the row locked.
    RowLocked,
    /// The row has the other form.
    Elsewhere,
    /// Another grant holds the lock.
    TakenOver,
    NotHeld,
}

/// Where a grant is in its row.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Columns,
    Holders,
}

impl Form {
    /// Where the grant of a claim of this mode is, unless something has moved it.
    fn of(mode: Mode) -> Form {
        if mode == Mode::Exclusive { Form::Columns } else { Form::Holders }
    }

    fn other(self) -> Form {
        if self == Form::Columns { Form::Holders } else { Form::Columns }
    }

    /// The statement that renews many, and the one that waits for a locked row.
    fn statements(self) -> (&'static Sql, &'static Sql) {
        match self {
            Form::Columns => (&renewal::RENEW, &renewal::RENEW_LOCKED),
            Form::Holders => (&renewal::RENEW_HOLDERS, &renewal::RENEW_HOLDER_LOCKED),
        }
    }
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
        RenewOutcome::Elsewhere if claim.mode == Mode::Exclusive => {
            Err(Error::gone(LostReason::TakenOver))
        }
        RenewOutcome::Elsewhere | RenewOutcome::NotHeld => Err(Error::not_held()),
    }))
    .await
}

/// Renews every lease whose row is not locked. Returns one outcome per claim, in order.
async fn renew_unlocked_rows(
    pool: &Arc<Pool>,
    claims: &[Claim],
    limit: Duration,
) -> Result<Vec<RenewOutcome>> {
    let mut outcomes = vec![RenewOutcome::Elsewhere; claims.len()];
    for form in [Form::Columns, Form::Holders] {
        let there: Vec<_> =
            (0..claims.len()).filter(|index| Form::of(claims[*index].mode) == form).collect();
        renew_at(pool, claims, form, &there, limit, &mut outcomes).await?;
    }
    for form in [Form::Columns, Form::Holders] {
        let moved = |index: &usize| {
            outcomes[*index] == RenewOutcome::Elsewhere
                && Form::of(claims[*index].mode).other() == form
        };
        let moved: Vec<_> = (0..claims.len()).filter(moved).collect();
        renew_at(pool, claims, form, &moved, limit, &mut outcomes).await?;
    }
    Ok(outcomes)
}

/// Renews some of the claims where their grants are, with one statement.
async fn renew_at(
    pool: &Arc<Pool>,
    claims: &[Claim],
    form: Form,
    which: &[usize],
    limit: Duration,
    outcomes: &mut [RenewOutcome],
) -> Result<()> {
    if which.is_empty() {
        return Ok(());
    }
    let values = || renew_values(which.iter().map(|index| &claims[*index]));
    let rows = pool.query_with_bypass(form.statements().0, values, limit).await?;
    if rows.len() != which.len() {
        return Err(error::unexpected("not one row per renewal"));
    }
    for (index, row) in which.iter().zip(&rows) {
        outcomes[*index] = outcome(row)?;
    }
    Ok(())
}

fn outcome(row: &Row) -> Result<RenewOutcome> {
    let facts = (get(row, "renewed")?, get(row, "was_held")?, get(row, "is_elsewhere")?);
    Ok(match facts {
        (true, _, _) => RenewOutcome::Renewed,
        (false, true, _) => RenewOutcome::RowLocked,
        (false, false, true) => RenewOutcome::Elsewhere,
        (false, false, false) if get(row, "is_taken")? => RenewOutcome::TakenOver,
        (false, false, false) => RenewOutcome::NotHeld,
    })
}

fn renew_values<'a>(claims: impl Iterator<Item = &'a Claim> + Clone) -> Vec<SqlValue> {
    let keys: Vec<_> = claims.clone().map(|claim| key_bytes(&claim.key)).collect();
    let owners: Vec<_> = claims.clone().map(|claim| claim.owner.to_string()).collect();
    let ttls: Vec<_> = claims.clone().map(|claim| ttl_seconds(claim.ttl)).collect();
    let tokens: Vec<_> = claims.map(token_number).collect();
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
    let renewing = async {
        let form = Form::of(claim.mode);
        if renew_one(pool, claim, form, lock_wait).await? {
            return Ok(claim.ttl);
        }
        // The transaction that had the row locked may have moved the grant.
        if pool.has_modes() && renew_one(pool, claim, form.other(), lock_wait).await? {
            return Ok(claim.ttl);
        }
        Err(Error::not_held())
    };
    tokio::time::timeout(limit, renewing).await.unwrap_or_else(|_| {
        let message = format!("another transaction has the row of `{}` locked", claim.key);
        Err(Error::new(ErrorKind::Unavailable, message))
    })
}

/// Whether the grant was there.
async fn renew_one(
    pool: &Arc<Pool>,
    claim: &Claim,
    form: Form,
    lock_wait: Duration,
) -> Result<bool> {
    let values = values![
        key_bytes(&claim.key),
        claim.owner.to_string(),
        ttl_seconds(claim.ttl),
        token_number(claim),
        format!("{}ms", lock_wait.as_millis().max(1)),
    ];
    Ok(!pool.query(form.statements().1, values).await?.is_empty())
}
