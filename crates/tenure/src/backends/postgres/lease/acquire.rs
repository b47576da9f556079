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

use crate::backend::{Attempt, Busy, Claim, Grant, Holder, HolderInfo};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::values;
use crate::backends::postgres::error;
use crate::backends::postgres::layout::columns::{
    duration, get, key_bytes, note, token, ttl_seconds,
};
use crate::backends::postgres::layout::lease;
use crate::backends::postgres::wait::POLL_INTERVAL;
use crate::error::Result;

/// A lease that is about to expire is not polled more often than this.
const MIN_RETRY: Duration = Duration::from_millis(2);

pub(crate) async fn try_acquire(pool: &Arc<Pool>, claim: &Claim) -> Result<Attempt<Grant>> {
    if claim.waits {
        pool.push.register(claim.owner);
        // Before the request: what is pushed while no connection listens is lost.
        pool.listen().await?;
    }
    loop {
        let values = values![
            key_bytes(&claim.key),
            claim.owner.to_string(),
            ttl_seconds(claim.ttl),
            note(&claim.holder_info),
            claim.waits,
            pool.channel.clone(),
        ];
        let rows = pool.query(&lease::ACQUIRE, values).await?;
        // No row: another client inserted it while the statement ran, so that the insert found a
        // conflict or a holder that the snapshot of the SELECT does not show.
        let Some(row) = rows.first() else { continue };
        return read_response(pool, claim, row);
    }
}

fn read_response(pool: &Pool, claim: &Claim, row: &Row) -> Result<Attempt<Grant>> {
    let is_current: bool = get(row, "is_current")?;
    let owner: Option<String> = get(row, "owner")?;
    let token = token(get(row, "token")?)?;
    if is_current && owner.is_some_and(|owner| owner == claim.owner.to_string()) {
        pool.push.unregister(claim.owner);
        let token = token.ok_or_else(|| error::unexpected("a grant with token 0"))?;
        return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
    }
    if let Some(token) = token {
        pool.push.ignore_up_to(claim.owner, token);
    }
    let ttl_left = duration(get(row, "ttl_left")?);
    let held_for = duration(get(row, "held_for")?);
    let holder_note: String = get(row, "note")?;
    let ahead: Option<i64> = get(row, "rank")?;
    let mut busy = Busy::new(claim.key.clone());
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    let mut retry_after = ttl_left.max(MIN_RETRY);
    if pool.config.pooled {
        // There are no wake-ups: waiters near the front poll often, those behind less often.
        let rank = busy.ahead.unwrap_or(0).min(100);
        retry_after = retry_after.min(POLL_INTERVAL * rank.saturating_add(1));
    }
    busy.retry_after = Some(retry_after);
    busy.holder = Some(Box::new(Holder {
        token,
        held_for: Some(held_for),
        ttl_left: Some(ttl_left),
        ..Holder::new(&HolderInfo::decode(&holder_note))
    }));
    Ok(Attempt::Busy(busy))
}
