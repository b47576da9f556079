//! Releasing a row of the lock table, or removing a queue entry, and handing the lock off.
//!
//! **State and invariant.** Only rows that name the claim as owner are changed, so that a release
//! can be repeated at any time. If entries are in the queue, the same transaction makes the first
//! one the owner: there is no moment at which the lock is free and has waiters.
//!
//! **The short way.** A claim without a hint (see `claim_hints`) is released by one UPDATE, which
//! matches only a row without waiters. If it changes nothing, the transaction follows. For an
//! unconfirmed claim it is always the transaction, because there may be a queue entry.
//!
//! **Late requests.** There is no tombstone for a cancelled claim. Its acquire was sent over the
//! same connection before this release; if that connection broke, the new one has killed it before
//! the release is executed. So no acquire of this claim can follow.

use super::super::layout::rows::KeyState;
use super::super::wake_connection::WakeTarget;
use super::{LockTables, response_limit};
use crate::backend::Claim;
use crate::error::Result;

/// What a release did.
pub(crate) struct Released {
    /// Whether the claim held the lock until now.
    pub(crate) was_held: bool,
    /// The client of the waiter that holds the lock now.
    pub(crate) wake: WakeTarget,
}

/// Releases or cancels a claim.
pub(crate) async fn release(tables: &LockTables, claim: &Claim) -> Result<Released> {
    let connection = tables.connection_for(&claim.key);
    let limit = response_limit(claim.ttl);
    // Before anything can fail: a missing hint costs a statement, and nothing else.
    let had_hint = tables.hints.forget(claim.owner);
    if !had_hint && !claim.unconfirmed {
        let sql = tables.statements.release_uncontended(claim);
        let response = connection.execute_once(sql, limit).await?;
        if response.first("released") == Some(1) {
            return Ok(Released { was_held: true, wake: WakeTarget::None });
        }
    }
    let response = connection.execute_once(tables.statements.release(claim), limit).await?;
    let was_held = response.first("was_held").unwrap_or(false);
    // If the key has no row, neither SELECT has one.
    let wake = match response.last_row().filter(|_| response.result_sets.len() > 1) {
        Some(row) => WakeTarget::after_handoff(&KeyState::read(row)?, &tables.wake_id),
        None => WakeTarget::None,
    };
    Ok(Released { was_held, wake })
}
