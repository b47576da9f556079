//! Releasing a row of the lock table, or removing a queue entry, and handing the lock off.
//!
//! **State and invariant.** Only rows that name the claim as owner are changed, so that a release
//! can be repeated at any time. If entries are in the queue, the same transaction makes the first
//! one the owner: there is no moment at which the lock is free and has waiters.
//!
//! **The short ways.** A claim without a hint (see `claim_hints`) is released by one UPDATE, which
//! matches only a row without waiters. If it changes nothing, or if others are known to wait, the
//! lock is handed off by one UPDATE, which matches only if there is a next one; see
//! `layout::handoff`. If that changes nothing, the transaction follows. For a claim that may be in
//! the queue, and for an unconfirmed one, it is always the transaction.
//!
//! **Other modes.** A claim in another mode is released by the packet of `other_modes`, and so is
//! an exclusive one that finds the key held or waited for in another mode.
//!
//! **Late requests.** There is no tombstone for a cancelled claim. Its acquire was sent over the
//! same connection before this release; if that connection broke, the new one has killed it before
//! the release is executed. So no acquire of this claim can follow.

use super::super::config::LockMode;
use super::super::layout::rows::KeyState;
use super::super::wake_connection::{WakeTarget, wake_limit};
use super::claim_hints::EndingClaim;
use super::{LockTables, other_modes, response_limit};
use crate::backend::{Claim, Mode};
use crate::error::Result;

/// What a release did.
pub(crate) struct Released {
    /// Whether the claim held the lock until now.
    pub(crate) was_held: bool,
    /// The clients of the waiters that hold the lock now.
    pub(crate) wake: Vec<WakeTarget>,
}

/// Releases or cancels a claim.
pub(crate) async fn release(tables: &LockTables, claim: &Claim) -> Result<Released> {
    let connection = tables.connection_for(&claim.key);
    let limit = response_limit(claim.ttl);
    // Before anything can fail: a missing hint costs a statement, and nothing else.
    let state = tables.hints.forget(claim.owner);
    if claim.mode != Mode::Exclusive || state == EndingClaim::Downgraded {
        return other_modes::release(tables, claim).await;
    }
    let mut short = None;
    if state != EndingClaim::Queued && !claim.unconfirmed {
        if state == EndingClaim::Uncontended {
            short = release_uncontended(tables, claim).await?;
        }
        if short.is_none() {
            short = hand_off(tables, claim).await?;
        }
    }
    if let Some(released) = short {
        return Ok(released);
    }
    if tables.hints.is_in_other_mode(&claim.key) {
        return other_modes::release(tables, claim).await;
    }
    let response = connection.execute_once(tables.statements.release(claim), limit).await?;
    let was_held = response.first("was_held").unwrap_or(false);
    // If the key has no row, neither SELECT has one.
    let state = response.last_row().filter(|_| response.result_sets.len() > 1);
    let Some(state) = state.map(KeyState::read).transpose()? else {
        return Ok(Released { was_held, wake: Vec::new() });
    };
    if state.in_other_mode {
        tables.hints.record_other_mode(&claim.key);
        // The claim may hold in another mode, or be in front of others that do not want the key
        // alone: what has ended above is not there any more.
        let released = other_modes::release(tables, claim).await?;
        return Ok(Released { was_held: was_held || released.was_held, ..released });
    }
    let wake = WakeTarget::after_handoff(&state, &tables.wake_id);
    Ok(Released { was_held, wake: wake.into_iter().collect() })
}

/// Releases a lock that no claim waits for. `None` if that is not so.
async fn release_uncontended(tables: &LockTables, claim: &Claim) -> Result<Option<Released>> {
    let sql = tables.statements.release_uncontended(claim);
    let connection = tables.connection_for(&claim.key);
    let response = connection.execute_once(sql, response_limit(claim.ttl)).await?;
    let was_held = response.affected_rows == 1;
    Ok(was_held.then_some(Released { was_held, wake: Vec::new() }))
}

/// Passes a held lock to the first waiter, whose client is woken by the same packet where that is
/// not too early. `None` if the claim does not hold it, or there is no waiter.
async fn hand_off(tables: &LockTables, claim: &Claim) -> Result<Option<Released>> {
    let sql = tables.statements.hand_off_held(claim, &tables.wake_id);
    let connection = tables.connection_for(&claim.key);
    let limit = response_limit(claim.ttl);
    let mut response = match tables.statements.mode {
        LockMode::Lease => connection.execute_first(sql, limit).await?,
        LockMode::Session | LockMode::Row => connection.execute_once(sql, limit).await?,
    };
    if response.affected_rows == 0 {
        return Ok(None);
    }
    // The second statement wakes the next client.
    if let Some(woken) = response.rest.take() {
        drop(tokio::time::timeout(wake_limit(claim.ttl), woken).await);
    }
    let is_own = response.last_insert_id.is_some_and(|token| token > 0);
    let wake = match response.first("wake_id") {
        _ if is_own => Some(WakeTarget::ThisClient),
        Some(wake_id) => Some(WakeTarget::Client { wake_id }),
        None => None,
    };
    Ok(Some(Released { was_held: true, wake: wake.into_iter().collect() }))
}
