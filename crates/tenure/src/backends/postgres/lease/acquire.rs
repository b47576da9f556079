//! Acquires a lease, or waits for it in the queue of its row.
//!
//! **State.** One row per key has the holder, the end of its lease, and the queue. All decisions
//! are made by one statement with that row locked: see `layout::lease`, which describes the row and
//! its invariants. This file sends the statement and reads its response.
//!
//! **The response.** Either the row after the statement (`is_current` is true), or, if the claim
//! does not wait and the lock is held, the row as it was (false). The claim holds the lock if and
//! only if `is_current` is true and the row's owner is this claim. That covers a grant by an
//! earlier request whose response was lost, and a handoff while this request was on its way.
//!
//! **Mixed rows.** The statement for exclusive claims does nothing to a row that has a holder or
//! waiter of another mode. The response is then the row as it was, and it explains no refusal: the
//! claim waits, or holds the lock, or the lock is free, or readers hold it. The statement for all
//! rows is sent next.
//!
//! **The race with pushed grants.** A release hands the lock off to the first waiter and pushes the
//! token to it, over the listening connection. This response comes over any connection. So either
//! can arrive first:
//! - *The push before the response that created the queue entry.* The claim is registered with the
//!   router before the request is sent, so that the push is kept.
//! - *The push of a grant that has already ended* (the lease expired during an outage, or it was
//!   evicted), after a busy response that shows the next holder. The waiter would count the stale
//!   grant as its own, beside the holder. A busy response therefore tells the router the token that
//!   it showed, and the router discards pushed grants up to it.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::{downgrade, response};
use crate::backend::{Attempt, Busy, Claim, Grant, Holder, HolderInfo, Mode};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{SqlValue, values};
use crate::backends::postgres::error::{self, is_missing_column};
use crate::backends::postgres::layout::columns::{
    duration, get, key_bytes, mode_fields, note, token, ttl_seconds,
};
use crate::backends::postgres::layout::{holders, lease};
use crate::backends::postgres::wait::POLL_INTERVAL;
use crate::error::Result;

/// A lease that is about to expire is not polled more often than this.
const MIN_RETRY: Duration = Duration::from_millis(2);

pub(crate) async fn try_acquire(pool: &Arc<Pool>, claim: &Claim) -> Result<Attempt<Grant>> {
    if let (Mode::Shared, Some(token)) = (claim.mode, claim.token) {
        return downgrade::downgrade(pool, claim, token).await.map(Attempt::Granted);
    }
    if claim.waits {
        pool.push.register(claim.owner);
        // Before the request: what is pushed while no connection listens is lost.
        pool.listen().await?;
    }
    loop {
        let attempt = if claim.mode == Mode::Exclusive && !pool.mixed.contains(&claim.key) {
            acquire_alone(pool, claim).await?
        } else {
            acquire_with_others(pool, claim).await?
        };
        if let Some(attempt) = attempt {
            return Ok(attempt);
        }
    }
}

/// Acquires exclusively, if the row is not mixed. `None` if it is, or if another statement has to
/// be sent to find out.
async fn acquire_alone(pool: &Arc<Pool>, claim: &Claim) -> Result<Option<Attempt<Grant>>> {
    let rows = pool.query(&lease::ACQUIRE, acquire_values(pool, claim)).await?;
    // No row: another client inserted it while the statement ran, so that the insert found a
    // conflict or a holder that the snapshot of the SELECT does not show.
    let Some(row) = rows.first() else { return Ok(None) };
    let attempt = read_response(pool, claim, row)?;
    if attempt.is_none() {
        pool.mixed.set(&claim.key, true);
    }
    Ok(attempt)
}

fn acquire_values(pool: &Pool, claim: &Claim) -> Vec<SqlValue> {
    values![
        key_bytes(&claim.key),
        claim.owner.to_string(),
        ttl_seconds(claim.ttl),
        note(&claim.holder_info),
        claim.waits,
        pool.channel.clone(),
    ]
}

/// Acquires in any mode, on any row. `None` if there was no row to read, as in [`acquire_alone`].
async fn acquire_with_others(pool: &Arc<Pool>, claim: &Claim) -> Result<Option<Attempt<Grant>>> {
    let mut values = acquire_values(pool, claim);
    values.extend(values![mode_fields(claim.mode)]);
    let rows = match pool.query(&holders::ACQUIRE, values).await {
        // Tables of an earlier version have no mixed rows: the lease of a holder ended while its
        // row was read.
        Err(error) if claim.mode == Mode::Exclusive && is_missing_column(&error) => {
            pool.mixed.set(&claim.key, false);
            return Ok(None);
        }
        rows => rows?,
    };
    rows.first().map(|row| response::read(pool, claim, row)).transpose()
}

/// `None` if the row was mixed.
fn read_response(pool: &Pool, claim: &Claim, row: &Row) -> Result<Option<Attempt<Grant>>> {
    let is_current: bool = get(row, "is_current")?;
    let owner: Option<String> = get(row, "owner")?;
    let token = token(get(row, "token")?)?;
    let ttl_left = duration(get(row, "ttl_left")?);
    let is_own = owner.as_ref().is_some_and(|owner| *owner == claim.owner.to_string());
    if is_current && is_own {
        pool.push.unregister(claim.owner);
        let token = token.ok_or_else(|| error::unexpected("a grant with token 0"))?;
        return Ok(Some(Attempt::Granted(pool.grant(claim, token))));
    }
    let is_marker = owner.as_ref().is_none_or(|owner| owner.starts_with('~'));
    let is_refused = !is_own && !is_marker && !ttl_left.is_zero();
    if !is_current && (claim.waits || !is_refused) {
        return Ok(None);
    }
    if let Some(token) = token {
        pool.push.ignore_up_to(claim.owner, token);
    }
    let held_for = duration(get(row, "held_for")?);
    let holder_note: String = get(row, "note")?;
    let ahead: Option<i64> = get(row, "rank")?;
    let mut busy = Busy::new(claim.key.clone());
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    busy.retry_after = Some(retry_after(pool, &busy, ttl_left));
    busy.holders = 1;
    busy.holder = Some(Box::new(Holder {
        token,
        held_for: Some(held_for),
        ttl_left: Some(ttl_left),
        ..Holder::new(&HolderInfo::decode(&holder_note))
    }));
    Ok(Some(Attempt::Busy(busy)))
}

/// When to try again: at the end that may let a waiter in.
pub(super) fn retry_after(pool: &Pool, busy: &Busy, end: Duration) -> Duration {
    let end = end.max(MIN_RETRY);
    if !pool.config.pooled {
        return end;
    }
    // There are no wake-ups: waiters near the front poll often, those behind less often.
    let rank = busy.ahead.unwrap_or(0).min(100);
    end.min(POLL_INTERVAL * rank.saturating_add(1))
}
