//! Release: deletes every row of an owner for a key, and hands the key to the next waiters.
//!
//! The row is deleted and the key is offered to the first waiters in one transaction, so that a new
//! claim cannot come between the two.
//!
//! Other backends leave a tombstone when an unconfirmed claim is released, because a late request
//! could still arrive and acquire the lock. Here it cannot: the requests of a client are executed
//! by one thread in the order in which they were sent, so that every earlier request of the claim
//! has been executed when its release is. A claim of a process that dies is found by its session.

use rusqlite::OptionalExtension;

use super::connection::store::OpenStore;
use super::transaction::{Abort, WriteTransaction};
use super::wake_socket::owner_bytes;
use crate::backend::{Claim, Owner};
use crate::error::Result;
use crate::key::Key;

const DELETE_HOLDER: &str =
    "DELETE FROM claim WHERE key = ?1 AND place = 0 AND owner = ?2 RETURNING expires";
const DELETE_WAITER: &str = "DELETE FROM claim WHERE key = ?1 AND owner = ?2 AND place > 0";

/// Releases a held lock, or removes a queue entry. `true` if the claim held its key until now.
pub(super) fn release(store: &mut OpenStore, claim: &Claim) -> Result<bool> {
    store.queued.remove(&claim.owner);
    store.evicted.remove(&claim.owner);
    store.transact(|transaction| delete_owner(transaction, &claim.key, claim.owner))
}

fn delete_owner(
    transaction: &mut WriteTransaction<'_>,
    key: &Key,
    owner: Owner,
) -> Result<bool, Abort> {
    let bytes = owner_bytes(owner);
    let mut delete = transaction.connection.prepare_cached(DELETE_HOLDER)?;
    let mut held: Option<i64> =
        delete.query_row((key.as_str(), &bytes[..]), |row| row.get(0)).optional()?;
    if held.is_none() {
        held = transaction.delete_one_of_several(key, owner)?;
        let waiters = transaction.execute(DELETE_WAITER, (key.as_str(), &bytes[..]))?;
        if held.is_none() && waiters == 0 {
            return Ok(false);
        }
    }
    // A waiter that leaves may let others in as well: readers behind a writer.
    transaction.settle(key)?;
    Ok(held.is_some_and(|expires| expires > transaction.now))
}
