//! Acquires a row lock in a transaction of its own.
//!
//! **State.** The lock is the lock of a row in `tenure_row`, held by an open transaction on a
//! connection that serves this lock only. The transaction has the token in its name
//! (`application_name`), by which renewals, listings and evictions recognise it. The registry
//! (`tenure_board`) has owner, token and queue. In the client, [`RowClaim`] says how far a claim
//! has come.
//!
//! **Who changes it.** The server ends the transaction when the connection ends, when it is idle
//! for longer than the lease, or when an operator cancels a statement of it. A foreign client may
//! lock the row too; the server excludes it.
//!
//! **Invariants.**
//! - A connection is idle (and reused) only after its transaction has ended with a confirmation;
//!   otherwise it is closed. So no connection carries a lock into the next claim.
//! - A grant is told only after it is in the registry: evictions and listings go by that.
//! - A repeated request of the holder is granted only after the server has responded within that
//!   very transaction: the engine counts the lease from this request on.
//!
//! **The race that this prevents.** A caller may be dropped, and its claim released, while the
//! acquire is in progress at the server. The acquire runs in a task of its own, and the claim is
//! `Acquiring` meanwhile. A release in that time only sets the claim to `Cancelled` and fails, so
//! that the engine repeats it; when the grant arrives, the task ends it at once instead of leaving
//! a lock without a holder.

use std::sync::Arc;

use super::release::end_cancelled;
use super::renew::renew_one;
use super::{HeldRow, RowClaim, RowLocks, in_progress};
use crate::backend::Claim;
use crate::backends::postgres::connection::Connection;
use crate::backends::postgres::error;
use crate::backends::postgres::layout::row::{lock_text, register_holder};
use crate::error::{Error, ErrorKind, Result};
use crate::token::FencingToken;

/// Returns the token, if the row is free and no other waiter is in front.
pub(crate) async fn try_acquire(
    locks: &Arc<RowLocks>,
    claim: &Claim,
) -> Result<Option<FencingToken>> {
    let held = match locks.claims.lock().get(&claim.owner) {
        Some(RowClaim::Held(held)) if !held.connection.is_closed() => Some(held.token),
        Some(RowClaim::Acquiring | RowClaim::Cancelled) => return Err(in_progress()),
        Some(RowClaim::Held(_)) | None => None,
    };
    if let Some(token) = held {
        return match renew_one(locks, claim).await {
            Ok(_) => Ok(Some(token)),
            Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
            Err(_) => Err(ended()),
        };
    }
    locks.claims.lock().insert(claim.owner, RowClaim::Acquiring);
    let locks = locks.clone();
    let claim = claim.clone();
    // In a task: an acquire whose caller was dropped must not leave a lock behind.
    let task = tokio::spawn(async move {
        let acquired = acquire(&locks, &claim).await;
        record(&locks, &claim, acquired).await
    });
    task.await.unwrap_or_else(|_| Err(error::closed()))
}

async fn acquire(locks: &Arc<RowLocks>, claim: &Claim) -> Result<Option<HeldRow>> {
    let Ok(permit) = locks.permits.clone().try_acquire_owned() else {
        return Err(locks.no_permit());
    };
    let connection = locks.connection().await?;
    let Some(token) = lock_row(&connection, claim).await? else {
        // In the background: the caller does not wait until the connection can be reused.
        let locks = locks.clone();
        drop(tokio::spawn(async move {
            let _permit = permit;
            match connection.batch("ROLLBACK".to_owned()).await {
                Ok(_) => locks.idle.lock().push(connection),
                Err(_) => connection.close(),
            }
        }));
        return Ok(None);
    };
    if let Err(error) = register_holder(&locks.pool, claim, token, connection.pid).await {
        connection.close();
        return Err(error);
    }
    Ok(Some(HeldRow { key: claim.key.clone(), token, connection, _permit: Arc::new(permit) }))
}

/// Locks the row in a new transaction. A failure closes the connection, which ends the transaction.
async fn lock_row(connection: &Arc<Connection>, claim: &Claim) -> Result<Option<FencingToken>> {
    match connection.batch(lock_text(claim, connection.version)).await {
        Ok(token) => {
            let parsed = token.map(|token| token.parse());
            parsed.transpose().map_err(|_| error::unexpected("a token that is not a number"))
        }
        Err(error) => {
            connection.close();
            Err(error)
        }
    }
}

/// Records the outcome of an acquire, or ends the grant if the claim was released meanwhile. The
/// claim stays `Cancelled` until that is done.
async fn record(
    locks: &RowLocks,
    claim: &Claim,
    acquired: Result<Option<HeldRow>>,
) -> Result<Option<FencingToken>> {
    let unwanted = {
        let mut claims = locks.claims.lock();
        let cancelled = matches!(claims.get(&claim.owner), Some(RowClaim::Cancelled));
        match acquired {
            Ok(Some(held)) if cancelled => held,
            Ok(Some(held)) => {
                let token = held.token;
                claims.insert(claim.owner, RowClaim::Held(held));
                return Ok(Some(token));
            }
            not_granted => {
                claims.remove(&claim.owner);
                return not_granted.map(|_| None);
            }
        }
    };
    end_cancelled(locks, unwanted, claim.owner).await?;
    Ok(None)
}

/// The transaction that held the lock has ended since the last request.
fn ended() -> Error {
    let message = "the connection of this lock has ended; acquire it again";
    Error::new(ErrorKind::Unavailable, message)
}
