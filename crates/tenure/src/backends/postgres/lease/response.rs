//! Reads the response to a request for any mode: `layout::holders::ACQUIRE`.
//!
//! As for exclusive claims: either the row after the statement (`is_current`), or the row as it
//! was, if the claim was refused without a change. The claim holds the key if and only if
//! `is_current` is true and it is one of the holders.
//!
//! **A busy response shows the token of the row**, the highest that the key has given out, and not
//! that of a holder: a push to this claim that is not above it is of a grant that has ended since.

use tokio_postgres::Row;

use super::acquire::retry_after;
use crate::backend::{Attempt, Busy, Claim, Grant, Holder, HolderInfo, Mode};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::error;
use crate::backends::postgres::layout::columns::{duration, get, mode, token};
use crate::error::{Error, Result};

pub(super) fn read(pool: &Pool, claim: &Claim, row: &Row) -> Result<Attempt<Grant>> {
    pool.mixed.set(&claim.key, get(row, "is_mixed")?);
    let own: Option<i64> = get(row, "own_token")?;
    if let (true, Some(own)) = (get(row, "is_current")?, own) {
        pool.push.unregister(claim.owner);
        let own = token(own)?.ok_or_else(|| error::unexpected("a grant with token 0"))?;
        return Ok(Attempt::Granted(pool.grant(claim, own)));
    }
    if get(row, "is_other_kind")? {
        let used = if claim.mode.is_lock() { Mode::permits(1, 1)? } else { Mode::Exclusive };
        return Err(Error::other_kind(&claim.key, used));
    }
    if let Some(highest) = token(get(row, "token")?)? {
        pool.push.ignore_up_to(claim.owner, highest);
    }
    let ahead: Option<i64> = get(row, "rank")?;
    let holders: i32 = get(row, "holders")?;
    let first_end: Option<f64> = get(row, "first_end")?;
    let mut busy = Busy::new(claim.key.clone());
    busy.ahead = ahead.and_then(|ahead| u32::try_from(ahead).ok());
    busy.holders = u32::try_from(holders).unwrap_or_default();
    busy.holder = oldest_holder(row)?.map(Box::new);
    let first_end = duration(first_end.unwrap_or_default());
    busy.retry_after = Some(retry_after(pool, &busy, first_end));
    Ok(Attempt::Busy(busy))
}

/// The oldest holder, if one is left.
fn oldest_holder(row: &Row) -> Result<Option<Holder>> {
    let Some(note) = get::<Option<String>>(row, "note")? else { return Ok(None) };
    Ok(Some(Holder {
        mode: mode(get(row, "mode")?)?,
        token: token(get(row, "holder_token")?)?,
        held_for: Some(duration(get(row, "held_for")?)),
        ttl_left: Some(duration(get(row, "ttl_left")?)),
        ..Holder::new(&HolderInfo::decode(&note))
    }))
}
