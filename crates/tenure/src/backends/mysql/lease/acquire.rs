//! Acquiring a row of the lock table: directly if it is free, else through the queue.
//!
//! **State.** One row per key (owner, token, end of the lease, number of waiters) and one row per
//! queue entry; see `layout::statements`.
//!
//! **Who may change it.** Every client, each under the lock of the key's row. A client that finds
//! the lock free while entries are in the queue gives it to the first entry, not to itself: so a
//! crashed holder needs no cleanup, and the order stays first come, first served.
//!
//! **Three packets**, from cheap to complete:
//!
//! 1. [`acquire_free`]: one UPDATE that matches only a free row without waiters.
//! 2. `acquire`: one INSERT … ON DUPLICATE KEY UPDATE, for a new key or a repeated request; it
//!    changes nothing if another claim waits.
//! 3. `acquire_or_queue`: a transaction that adds or refreshes the queue entry and then hands off.
//!
//! On a key that is held or waited for in another mode the packets 2 and 3 change nothing but their
//! own grant, or entry behind others, and say so; then the packet of `other_modes` follows. A
//! client that has just seen this sends it at once.
//!
//! **Invariant.** Whatever the packet did, it ends by reading the row: the claim holds exactly if
//! the row names it as owner. Affected rows are trusted only where the WHERE decides.
//!
//! **Races.** A repeated request may be delayed at the server while a renewal overtakes it: it then
//! keeps the longer lease. A request whose response did not arrive cannot be executed after the
//! release, because requests about one key share a connection, and a broken one is killed before
//! the next is used.

use super::super::layout::rows::KeyState;
use super::super::layout::statements::Requester;
use super::super::wake_connection::WakeTarget;
use super::{LockTables, other_modes, response_limit};
use crate::backend::{Attempt, Busy, Claim, Grant};
use crate::error::Result;
use crate::token::FencingToken;

/// Acquires a key that has a row, is free and has no waiters. `None` if that is not so.
pub(crate) async fn acquire_free(
    tables: &LockTables,
    claim: &Claim,
) -> Result<Option<FencingToken>> {
    let limit = response_limit(claim.ttl);
    let connection_id = &tables.record_connection(limit).await?;
    let by = &Requester { wake_id: &tables.wake_id, connection_id };
    let sql = tables.statements.acquire_free(claim, by);
    let response = tables.connection_for(&claim.key).execute(sql, limit).await?;
    // Repeated after a lost response, it changes no row, because the claim holds already: the
    // longer packet then finds the grant.
    let granted = response.last_insert_id.filter(|_| response.affected_rows == 1);
    Ok(granted.and_then(FencingToken::new))
}

/// Acquires the key, or says who holds it; a claim that waits gets a queue entry. A handoff on the
/// way may have granted the lock to another client, which the caller has to wake.
pub(crate) async fn acquire_or_queue(
    tables: &LockTables,
    claim: &Claim,
) -> Result<(Attempt<Grant>, Vec<WakeTarget>)> {
    if tables.hints.is_in_other_mode(&claim.key) {
        return other_modes::acquire(tables, claim).await;
    }
    let connection = tables.connection_for(&claim.key);
    let limit = response_limit(claim.ttl);
    let connection_id = &tables.record_connection(limit).await?;
    let by = &Requester { wake_id: &tables.wake_id, connection_id };
    let mut sql = tables.statements.acquire(claim, by);
    if claim.waits {
        // Before the request: if its outcome is unknown, the release must remove a queue entry.
        tables.hints.record_entering(claim.owner);
        sql = tables.statements.acquire_or_queue(claim, by);
        if tables.hints.is_contended(&claim.key) {
            // Probably behind others, whose releases hand off: the handoff can be left out here.
            let behind = tables.statements.queue_behind(claim, by);
            let response = connection.execute(behind, limit).await?;
            let state = response.last_row().map(KeyState::read).transpose()?;
            if let Some(state) = state.filter(|state| !state.is_free) {
                return outcome(tables, claim, &state).await;
            }
        }
    }
    let response = connection.execute(sql, limit).await?;
    match response.last_row() {
        Some(row) => outcome(tables, claim, &KeyState::read(row)?).await,
        None => Ok((Attempt::Busy(Busy::new(claim.key.clone())), Vec::new())),
    }
}

/// Records what a request found, and turns it into the response to the caller.
async fn outcome(
    tables: &LockTables,
    claim: &Claim,
    state: &KeyState,
) -> Result<(Attempt<Grant>, Vec<WakeTarget>)> {
    if let Some(token) = state.granted(claim) {
        tables.hints.record_granted(&claim.key, claim.owner, state.queued);
        return Ok((Attempt::Granted(Grant::with_range(token, claim.ttl)), Vec::new()));
    }
    if state.in_other_mode {
        tables.hints.record_other_mode(&claim.key);
        return other_modes::acquire(tables, claim).await;
    }
    let busy = state.busy(claim);
    // The token in the row is that of another owner: a grant of this claim has a higher one.
    if let Some(ahead) = busy.ahead {
        tables.hints.record_queued(claim.owner, ahead, state.token);
    }
    let wake = WakeTarget::after_handoff(state, &tables.wake_id);
    Ok((Attempt::Busy(busy), wake.into_iter().collect()))
}
