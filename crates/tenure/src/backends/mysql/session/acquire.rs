//! Acquiring the named lock of a claim that has the turn.
//!
//! **State.** The record of the key in `tenure_session` (whose turn it is) and the named lock of
//! the key. Only the claim that has the turn tries to acquire the named lock, but foreign clients
//! may acquire it too, and an evicted holder may not have released it yet.
//!
//! **Invariant.** A claim is granted only if its connection has the named lock *and* the record,
//! read after that, still names the claim. In this order no later holder can be missed: one that
//! had a later turn and the lock would show in the record.
//!
//! **Race between claims of one client.** The server would grant the lock to each of them, because
//! they share the connection. The key is reserved in [`NamedLocks`] before the request is sent, so
//! that only one of them sends it.

use super::super::acquire::ServerLockAttempt;
use super::super::connection::Response;
use super::super::layout::rows::LockSnapshot;
use super::super::lease::{LockTables, response_limit};
use super::{NamedLocks, lock_name, unlock_sql};
use crate::backend::Claim;
use crate::error::Result;

/// Acquires the named lock, without waiting for it.
pub(crate) async fn acquire(
    locks: &NamedLocks,
    tables: &LockTables,
    claim: &Claim,
) -> Result<ServerLockAttempt> {
    if !locks.reserve(tables, claim) {
        return Ok(ServerLockAttempt::held_by_same_client());
    }
    let sql = acquire_sql(locks, tables, claim);
    let response = tables.main().execute(sql, response_limit(claim.ttl)).await?;
    outcome(locks, tables, claim, response)
}

/// Acquires the lock, then reads the record.
fn acquire_sql(locks: &NamedLocks, tables: &LockTables, claim: &Claim) -> String {
    let name = lock_name(&claim.key);
    let wait_timeout = locks.wait_timeout();
    let select = LockSnapshot::select(&tables.statements, [&claim.key]);
    format!(
        "SELECT IF(IS_USED_LOCK({name})<=>CONNECTION_ID(),1,GET_LOCK({name},0)) AS acquired;\
         SET SESSION wait_timeout={wait_timeout};{select}"
    )
}

/// Records the lock if it is a grant; releases it if it is of no use.
fn outcome(
    locks: &NamedLocks,
    tables: &LockTables,
    claim: &Claim,
    response: Response,
) -> Result<ServerLockAttempt> {
    let acquired = response.first("acquired") == Some(1);
    let row = response.result_sets.get(1).and_then(|rows| rows.first());
    let snapshot = row.map(LockSnapshot::read).transpose()?;
    let turn = snapshot.filter(|snapshot| snapshot.is_held_by(claim));
    // The claim may have been released while the request was under way: `confirm` finds no entry
    // then, and the lock has to be released again.
    if let Some(token) = turn.as_ref().and_then(|turn| turn.token).filter(|_| acquired)
        && locks.confirm(claim, response.connection_id)
    {
        return Ok(ServerLockAttempt::Granted(token));
    }
    if acquired {
        // Over the same connection, so it is executed before the next attempt of this client.
        tables.main().execute_detached(unlock_sql(tables, &claim.key, claim.owner));
    }
    locks.forget(&claim.key, claim.owner);
    Ok(ServerLockAttempt::blocked_or_turn_over(turn))
}
