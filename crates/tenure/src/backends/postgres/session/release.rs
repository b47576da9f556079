//! Releases an advisory lock of the session.
//!
//! The unlock, the removal from the registry and the wake-up of the next waiter are one statement.
//! The lock needs no tombstone: one task executes the requests of a claim in the order in which
//! they were sent, so that none can acquire the lock after its release. (A queue entry that is
//! added late, over a connection of the pool, ends with its own ttl.) An unlock without a
//! confirmation closes the session: its end is the only other proof that the lock is free.

use super::SessionTask;
use super::limits::SessionLimits;
use crate::backend::{Claim, Owner};
use crate::backends::postgres::config::LockMode;
use crate::backends::postgres::connection::statement::values;
use crate::backends::postgres::error;
use crate::backends::postgres::layout::advisory::{UNLOCK, UNLOCK_AND_REMOVE_CLAIM, lock_number};
use crate::backends::postgres::layout::columns::key_bytes;
use crate::backends::postgres::layout::registry;
use crate::error::Result;
use crate::key::Key;

/// Returns whether the claim held the lock until now.
pub(super) async fn release(task: &mut SessionTask, claim: &Claim) -> Result<bool> {
    task.lost_with_connection.remove(&claim.owner);
    let number = lock_number(&claim.key);
    if task.locks.get(&number).is_none_or(|lock| lock.owner != claim.owner) {
        return Ok(false);
    }
    unlock(task, number).await
}

/// Releases the lock of an evicted claim. The other locks of the session stay.
pub(super) async fn release_evicted(task: &mut SessionTask, owner: Owner) {
    let found = task.locks.iter().find(|(_, lock)| lock.owner == owner);
    let Some(number) = found.map(|(number, _)| *number) else { return };
    // If this fails, the connection is closed, and the lock ends with it.
    drop(unlock(task, number).await);
    task.pool.push.notify_lost(owner);
}

async fn unlock(task: &mut SessionTask, number: i64) -> Result<bool> {
    let (Some(connection), Some(lock)) = (task.connection.clone(), task.locks.get(&number)) else {
        return Ok(false);
    };
    let key = lock.key.clone();
    let owner = lock.owner;
    // A session without locks may be idle for ever.
    let limits_after = (task.locks.len() == 1).then_some(SessionLimits::NONE);
    let values = values![
        LockMode::Session.name(),
        key_bytes(&key),
        owner.to_string(),
        number,
        limits_after.and_then(|limits| limits.idle(connection.version)),
        limits_after.map(SessionLimits::wait),
    ];
    let mut unlocked = connection.query_once(&UNLOCK_AND_REMOVE_CLAIM, values).await;
    match &unlocked {
        Ok(_) => task.limits = limits_after.unwrap_or(task.limits),
        // Another transaction may have the registry row locked. The unlock must not wait for it,
        // and the other locks of this session must not end because of it.
        Err(error) if error::is_response(error) => {
            unlocked = connection.query_once(&UNLOCK, values![number]).await;
            remove_claim_later(task, key, owner);
        }
        Err(_) => {}
    }
    if let Err(error) = unlocked {
        task.lose_all();
        return Err(error);
    }
    // The server responded on this session, which had the lock: it was held until now.
    task.locks.remove(&number);
    task.held.lock().remove(&owner);
    Ok(true)
}

/// Removes a claim from the registry in the background. If that fails, the sweep removes the row
/// later, and the first waiter polls.
fn remove_claim_later(task: &SessionTask, key: Key, owner: Owner) {
    let pool = task.pool.clone();
    drop(tokio::spawn(async move { registry::remove_claim(&pool, &key, owner).await }));
}
