//! Ending the transaction that has the row lock of a claim.

use std::time::Duration;

use super::super::lease::response_limit;
use super::super::session::IDLE_TIMEOUT;
use super::RowLocks;
use crate::backend::{Claim, Owner};
use crate::key::Key;

/// Ends the transaction of a claim, if it has one. The claim gives its connection up before the
/// request is sent. If the end is not confirmed, or this future is dropped, the connection is
/// closed, which ends the transaction as well.
pub(crate) async fn end_transaction(locks: &RowLocks, key: &Key, owner: Owner, ttl: Duration) {
    let Some(lock) = locks.remove(key, owner) else { return };
    if lock.connection.execute_once(end_sql(), response_limit(ttl)).await.is_ok() {
        locks.put_back(lock.connection);
    }
}

/// Ends the transaction of a lost claim, and does not wait for the response: the holder has to
/// learn of the loss before another client can lock the row.
pub(crate) fn end_lost(locks: &RowLocks, claim: &Claim) {
    if let Some(lock) = locks.remove(&claim.key, claim.owner) {
        lock.connection.execute_detached(end_sql());
        locks.put_back(lock.connection);
    }
}

/// Ends a transaction, and lets its connection be idle for longer than a lease.
fn end_sql() -> String {
    format!("COMMIT;SET SESSION wait_timeout={IDLE_TIMEOUT}")
}
