//! Releases a row lock: ends its transaction.
//!
//! The end of the transaction, the removal from the registry and the wake-up of the next waiter are
//! one message. If it is not confirmed, the connection is closed, which ends the transaction too: a
//! connection is never used again while it may hold a lock.

use std::sync::Arc;

use super::{HeldRow, RowClaim, RowLocks, in_progress};
use crate::backend::{Claim, Owner};
use crate::backends::postgres::error;
use crate::backends::postgres::layout::row::unlock_text;
use crate::error::Result;

/// Returns whether the claim held the lock until now. Fails while another request of the claim is
/// in progress, which may still leave something behind: the engine repeats the release then.
pub(crate) async fn release(locks: &Arc<RowLocks>, claim: &Claim) -> Result<bool> {
    let owner = claim.owner;
    let held = {
        let mut claims = locks.claims.lock();
        let Some(state) = claims.remove(&owner) else { return Ok(false) };
        claims.insert(owner, RowClaim::Cancelled);
        match state {
            RowClaim::Held(held) => held,
            RowClaim::Acquiring | RowClaim::Cancelled => return Err(in_progress()),
        }
    };
    let locks = locks.clone();
    // In a task: a caller that is dropped must not leave the claim `Cancelled` for ever.
    let task = tokio::spawn(async move { end_cancelled(&locks, held, owner).await });
    task.await.unwrap_or_else(|_| Err(error::closed()))
}

/// Ends the grant of a claim that is `Cancelled`, and then removes the claim.
pub(super) async fn end_cancelled(locks: &RowLocks, held: HeldRow, owner: Owner) -> Result<bool> {
    let ended = end_transaction(locks, held, owner).await;
    locks.claims.lock().remove(&owner);
    ended
}

/// Releases the lock of an evicted claim.
pub(super) async fn release_evicted(locks: &RowLocks, owner: Owner) {
    let held = {
        let mut claims = locks.claims.lock();
        match claims.remove(&owner) {
            Some(RowClaim::Held(held)) => held,
            // Not held yet, or no longer: the other request of the claim decides.
            Some(state) => return drop(claims.insert(owner, state)),
            None => return,
        }
    };
    // If this fails, the connection is closed, and the lock ends with it.
    drop(end_transaction(locks, held, owner).await);
    locks.pool.push.notify_lost(owner);
}

/// Returns whether the transaction held the lock until now.
async fn end_transaction(locks: &RowLocks, held: HeldRow, owner: Owner) -> Result<bool> {
    if held.connection.is_closed() {
        return Ok(false);
    }
    match held.connection.batch(unlock_text(&held.key, owner)).await {
        Ok(name) => {
            let was_held = name == Some(held.transaction_name());
            locks.idle.lock().push(held.connection);
            Ok(was_held)
        }
        Err(error) => {
            held.connection.close();
            // In an aborted transaction: the lock was released when it was aborted.
            if error::is_aborted(&error) { Ok(false) } else { Err(error) }
        }
    }
}
