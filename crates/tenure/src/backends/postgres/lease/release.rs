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

use std::sync::Arc;

use crate::backend::Claim;
use crate::backends::postgres::connection::pool::Pool;
use crate::backends::postgres::connection::statement::values;
use crate::backends::postgres::layout::columns::{get, key_bytes};
use crate::backends::postgres::layout::lease;
use crate::error::{ErrorKind, Result};

pub(crate) async fn release(pool: &Arc<Pool>, claim: &Claim) -> Result<bool> {
    pool.push.unregister(claim.owner);
    let values = || values![key_bytes(&claim.key), claim.owner.to_string()];
    let sql = if claim.unconfirmed { &lease::RELEASE_WITH_TOMBSTONE } else { &lease::RELEASE };
    let mut response = pool.query(sql, values()).await;
    // All idle connections may have been closed by the server unnoticed: one attempt for each.
    for _ in 0..pool.config.connections {
        match response {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                response = pool.query(&lease::RELEASE_WITH_TOMBSTONE, values()).await;
            }
            _ => break,
        }
    }
    let rows = response?;
    rows.first().map_or(Ok(false), |row| get(row, "was_held"))
}
