//! Releasing the turn and the named lock.

use super::super::lease::release::{self, Released};
use super::super::lease::{LockTables, response_limit};
use super::super::wake_connection::{WakeTarget, wake_sql};
use super::{NamedLocks, unlock_sql};
use crate::backend::{Claim, Owner};
use crate::error::Result;
use crate::key::Key;

/// Releases the turn, then the named lock. In the other order, a record that has expired by the
/// clock could go to another claim before this one is known to be released. The next waiter is
/// woken after both, by the packet of the second. Idempotent: it does not depend on what the client
/// remembers.
pub(crate) async fn release(
    locks: &NamedLocks,
    tables: &LockTables,
    claim: &Claim,
) -> Result<Released> {
    locks.forget(&claim.key, claim.owner);
    let mut released = release::release(tables, claim).await?;
    let unlock = unlock_sql(tables, &claim.key, claim.owner);
    let mut sql = format!("{unlock};SET SESSION wait_timeout={}", locks.wait_timeout());
    if let [WakeTarget::Client { wake_id }] = &*released.wake {
        sql = format!("{sql};{}", wake_sql(wake_id));
        released.wake.clear();
    }
    tables.main().execute(sql, response_limit(claim.ttl)).await?;
    Ok(released)
}

/// Releases the named lock of a claim that has lost its turn, and does not wait for the response.
pub(crate) fn unlock_lost(locks: &NamedLocks, tables: &LockTables, key: &Key, owner: Owner) {
    if locks.held.lock().get(key).is_some_and(|lock| lock.owner == owner) {
        tables.main().execute_detached(unlock_sql(tables, key, owner));
        locks.forget(key, owner);
    }
}
