//! Releases a lease, or removes a queue entry.
//!
//! One statement ends the claim and hands the lock off to the first waiter, with the row locked.
//!
//! **The race with a late request.** A request of this claim may have had no response, because its
//! connection broke or it was too slow, and may be carried out after this release: the lock would
//! then be held, or the queue would have an entry, for a claim that no client waits for. If the
//! core says so (`claim.unconfirmed`), the release also writes a tombstone into the row, which
//! makes every later request of this claim acquire nothing. A tombstone lasts for a minute, much
//! longer than a statement may take at the server (`statement_timeout`, 10 s).
//!
//! **The race with a lost response of the release itself.** A release that may have been carried
//! out is repeated with a tombstone. That is idempotent: the row remembers in `prior` which claim
//! released it last, so that the repetition still reports `true`.
//!
//! **Mixed rows.** The statement for exclusive claims does nothing to a row that has a holder or
//! waiter of another mode, which may be this claim's own grant after a downgrade. That it did
//! nothing may also mean that there was nothing to do; the statement for all rows then finds out.

use std::sync::Arc;

use tokio_postgres::Row;

use crate::backend::{Claim, Mode};
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::{Sql, values};
use crate::backends::postgres::error::is_missing_column;
use crate::backends::postgres::layout::columns::{get, key_bytes};
use crate::backends::postgres::layout::{holders, lease};
use crate::error::{Error, ErrorKind, Result};

pub(crate) async fn release(pool: &Arc<Pool>, claim: &Claim) -> Result<bool> {
    pool.push.unregister(claim.owner);
    let mut response = release_once(pool, claim, claim.unconfirmed).await;
    // All idle connections may have been closed by the server unnoticed: one attempt for each.
    for _ in 0..pool.config.connections {
        if !response.as_ref().is_err_and(is_unknown) {
            break;
        }
        response = release_once(pool, claim, true).await;
    }
    response
}

/// Whether the release may have been carried out.
fn is_unknown(error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable
}

async fn release_once(pool: &Arc<Pool>, claim: &Claim, leaves_tombstone: bool) -> Result<bool> {
    let (alone, with_others) = if leaves_tombstone {
        (&lease::RELEASE_WITH_TOMBSTONE, &holders::RELEASE_WITH_TOMBSTONE)
    } else {
        (&lease::RELEASE, &holders::RELEASE)
    };
    if claim.mode == Mode::Exclusive
        && !pool.mixed.contains(&claim.key)
        && let Some(row) = execute(pool, claim, alone).await?
    {
        return get(&row, "was_held");
    }
    let row = match execute(pool, claim, with_others).await {
        // Tables of an earlier version have no mixed rows.
        Err(error) if is_missing_column(&error) => None,
        row => row?,
    };
    let Some(row) = row else { return Ok(false) };
    pool.mixed.set(&claim.key, get(&row, "is_mixed")?);
    get(&row, "was_held")
}

/// `None` if the statement changed nothing.
async fn execute(pool: &Arc<Pool>, claim: &Claim, sql: &'static Sql) -> Result<Option<Row>> {
    let values = values![key_bytes(&claim.key), claim.owner.to_string()];
    Ok(pool.query(sql, values).await?.into_iter().next())
}
