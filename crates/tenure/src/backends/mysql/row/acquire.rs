//! Locking the row of a key for a claim that has the turn.
//!
//! **State.** The record of the key in `tenure_row` (whose turn it is) and the row of the key in
//! `tenure_row_lock`, which is locked by an open transaction. Only the claim that has the turn
//! tries to lock the row, but foreign clients may lock it too, and an evicted holder may not have
//! ended its transaction yet.
//!
//! **Invariant.** A claim is granted only if its transaction has the row lock *and* the record,
//! read after that, still names the claim. In this order no later holder can be missed: one that
//! had a later turn and the row lock would show in the record.
//!
//! **Which connection the record ends with.** While a claim waits, its record ends with the main
//! connection of its client. Once it has the row lock, the record is bound to the connection of
//! that transaction: they then end together.

use super::super::acquire::ServerLockAttempt;
use super::super::connection::{Connection, Response};
use super::super::layout::literals::hex;
use super::super::layout::rows::LockSnapshot;
use super::super::lease::{LockTables, response_limit};
use super::super::session::whole_seconds;
use super::{RowLocks, release};
use crate::backend::Claim;
use crate::error::Result;
use crate::token::FencingToken;

/// Locks the row, without waiting for it.
pub(crate) async fn acquire(
    locks: &RowLocks,
    tables: &LockTables,
    claim: &Claim,
    token: FencingToken,
) -> Result<ServerLockAttempt> {
    let Some(lock) = locks.reserve(claim)? else {
        return Ok(ServerLockAttempt::held_by_same_client());
    };
    // A repeated request of a claim that holds: only a response proves that it still does.
    if lock.is_alive(claim.ttl).await? {
        return Ok(ServerLockAttempt::Granted(token));
    }
    let response = lock_row(tables, claim, &lock.connection).await?;
    let locked = response.result_sets.first().is_some_and(|rows| !rows.is_empty());
    let row = response.result_sets.get(2).and_then(|rows| rows.first());
    let snapshot = row.map(LockSnapshot::read).transpose()?;
    let turn = snapshot.filter(|snapshot| snapshot.is_held_by(claim));
    if let Some(token) = turn.as_ref().and_then(|turn| turn.token).filter(|_| locked)
        && locks.confirm(claim, &response.connection_id)
    {
        let id = response.connection_id.to_string();
        let bind = tables.statements.bind_to_connection(claim, &id);
        // If this fails, or the turn has ended meanwhile, the next renewal finds out.
        drop(tables.connection_for(&claim.key).execute(bind, response_limit(claim.ttl)).await);
        return Ok(ServerLockAttempt::Granted(token));
    }
    release::end_transaction(locks, &claim.key, claim.owner, claim.ttl).await;
    Ok(ServerLockAttempt::blocked_or_turn_over(turn))
}

/// Tries to lock the row in a new transaction. Result sets: the row if it was locked, the row if it
/// exists, and the record. A row that does not exist is inserted and committed first.
async fn lock_row(tables: &LockTables, claim: &Claim, connection: &Connection) -> Result<Response> {
    let key = hex(claim.key.as_str());
    let wait_timeout = whole_seconds(claim.ttl);
    let select = LockSnapshot::select(&tables.statements, [&claim.key]);
    let lock = format!(
        "ROLLBACK;SET SESSION wait_timeout={wait_timeout};START TRANSACTION;\
         SELECT k FROM tenure_row_lock WHERE k={key} FOR UPDATE SKIP LOCKED;\
         SELECT k FROM tenure_row_lock WHERE k={key};{select}"
    );
    let limit = response_limit(claim.ttl);
    let response = connection.execute(lock.clone(), limit).await?;
    let row_exists = response.result_sets.get(1).is_none_or(|rows| !rows.is_empty());
    if row_exists {
        return Ok(response);
    }
    let insert = format!("ROLLBACK;INSERT IGNORE INTO tenure_row_lock (k) VALUES ({key})");
    connection.execute(format!("{insert};{lock}"), limit).await
}
