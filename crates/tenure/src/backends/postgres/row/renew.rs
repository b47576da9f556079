//! Renews row locks, each on its own connection.
//!
//! There is no lease at the server. A renewal reads the name of the transaction, which verifies
//! that it is the one that locked the row, and restarts the server's limit for idle transactions.
//!
//! An error response is proof of the opposite, also if the connection stays open: an error aborts
//! the transaction, and an aborted transaction has released its row locks already.

use std::time::Duration;

use futures_util::future::join_all;

use super::{RowClaim, RowLocks};
use crate::backend::{Claim, LostReason, Owner};
use crate::backends::postgres::error;
use crate::backends::postgres::layout::row::READ_NAME;
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

pub(crate) async fn renew(locks: &RowLocks, claims: &[Claim]) -> Vec<Result<Duration>> {
    join_all(claims.iter().map(|claim| renew_one(locks, claim))).await
}

/// Renews one claim. A connection that does not respond delays the others for no longer than the
/// limit here.
pub(super) async fn renew_one(locks: &RowLocks, claim: &Claim) -> Result<Duration> {
    match tokio::time::timeout(claim.ttl / 8, verify(locks, claim)).await {
        Ok(verified) => verified.map(|()| claim.ttl),
        Err(_) => {
            let message = "no response from PostgreSQL on the connection of this lock";
            Err(Error::new(ErrorKind::Unavailable, message))
        }
    }
}

/// Verifies that the transaction that locked the row is still open.
async fn verify(locks: &RowLocks, claim: &Claim) -> Result<()> {
    let held = match locks.claims.lock().get(&claim.owner) {
        Some(RowClaim::Held(held)) if claim.token.is_none_or(|token| token == held.token) => {
            held.clone()
        }
        _ => return Err(Error::not_held()),
    };
    match held.connection.batch(READ_NAME.to_owned()).await {
        Ok(name) if name == Some(held.transaction_name()) => Ok(()),
        Err(error) if !held.connection.is_closed() && !error::is_response(&error) => Err(error),
        Ok(_) | Err(_) => {
            held.connection.close();
            remove_grant(locks, claim.owner, held.token);
            Err(Error::gone(LostReason::SessionGone))
        }
    }
}

/// Removes a grant, unless the same owner has a later one by now.
fn remove_grant(locks: &RowLocks, owner: Owner, token: FencingToken) {
    let mut claims = locks.claims.lock();
    if matches!(claims.get(&owner), Some(RowClaim::Held(held)) if held.token == token) {
        claims.remove(&owner);
    }
}
