//! `mode=session`: a named lock of the connection (`GET_LOCK`) is the lock. The server frees it
//! when the connection ends; the tables say whose turn it is, hold the queue, and give the token.
//!
//! - `acquire`: acquire the named lock of a claim that has the turn
//! - `renew`: renew the records, and check that the connection is still the same
//! - `release`: release the turn and the named lock
//!
//! The server counts named locks per connection: a second claim of the same client would get the
//! lock as well. So [`NamedLocks`] remembers which claim has which key.

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod renew;

use std::collections::HashMap;
use std::time::Duration;

use super::connection::ConnectionId;
use super::layout::literals::{hex, named_lock};
use super::layout::statements::THIS_CONNECTION;
use super::lease::LockTables;
use crate::backend::{Claim, Owner};
use crate::key::Key;
use crate::support::sync::Mutex;

/// `wait_timeout` of a connection without locks: the server's own default, eight hours.
pub(crate) const IDLE_TIMEOUT: u64 = 28800;

/// The named locks of one client.
///
/// An entry is made before the acquire is sent and removed before the release is sent. For other
/// claims of this client it counts only while the connection that has the lock exists: no lock
/// outlives its connection, so the outcome of a request in an outage does not matter.
#[derive(Default)]
pub(crate) struct NamedLocks {
    held: Mutex<HashMap<Key, NamedLock>>,
}

struct NamedLock {
    owner: Owner,
    ttl: Duration,
    /// The connection that has the lock; `None` until the server has confirmed it.
    connection_id: Option<ConnectionId>,
}

impl NamedLocks {
    /// Reserves the key for this claim before the request is sent. `false` if another claim of this
    /// client has the lock, or is acquiring it.
    fn reserve(&self, tables: &LockTables, claim: &Claim) -> bool {
        let current = tables.main().current_id();
        let mut held = self.held.lock();
        let new = NamedLock { owner: claim.owner, ttl: claim.ttl, connection_id: None };
        let lock = held.entry(claim.key.clone()).or_insert(new);
        // The lock of a lost connection does not exist any more: its entry must not keep the other
        // claims of this client from the key.
        let is_stale = lock.connection_id.is_some() && lock.connection_id != current;
        if lock.owner != claim.owner && !is_stale {
            return false;
        }
        if is_stale {
            lock.connection_id = None;
        }
        lock.owner = claim.owner;
        lock.ttl = claim.ttl;
        true
    }

    /// Records which connection has the lock. `false` if the claim was released meanwhile.
    fn confirm(&self, claim: &Claim, connection_id: ConnectionId) -> bool {
        let mut held = self.held.lock();
        match held.get_mut(&claim.key).filter(|lock| lock.owner == claim.owner) {
            Some(lock) => lock.connection_id = Some(connection_id),
            None => return false,
        }
        true
    }

    /// Removes the entry of a claim.
    fn forget(&self, key: &Key, owner: Owner) {
        let mut held = self.held.lock();
        if held.get(key).is_some_and(|lock| lock.owner == owner) {
            held.remove(key);
        }
    }

    /// The connection that has the lock of this claim.
    pub(crate) fn connection_id(&self, claim: &Claim) -> Option<ConnectionId> {
        let held = self.held.lock();
        held.get(&claim.key).filter(|lock| lock.owner == claim.owner)?.connection_id.clone()
    }

    /// How long the server lets the connection be silent: the longest lease of its locks. So the
    /// server frees the locks of a stopped client, and never before their leases have ended.
    fn wait_timeout(&self) -> u64 {
        let longest = self.held.lock().values().map(|lock| lock.ttl).max().unwrap_or_default();
        if longest.is_zero() { IDLE_TIMEOUT } else { whole_seconds(longest) }
    }
}

/// Releases the named lock of a key, unless another claim of this connection has the turn: that one
/// has the lock by now, or is about to acquire it. A SELECT, because the subquery of a DO would
/// wait for a row that another transaction has locked.
fn unlock_sql(tables: &LockTables, key: &Key, owner: Owner) -> String {
    let table = tables.statements.lease;
    let name = lock_name(key);
    let key = hex(key.as_str());
    format!(
        "SELECT IF(EXISTS(SELECT 1 FROM {table} WHERE k={key} AND owner NOT IN ('','{owner}') \
         AND home={THIS_CONNECTION}),0,RELEASE_LOCK({name}))"
    )
}

/// The name of the lock of a key, as an expression.
fn lock_name(key: &Key) -> String {
    named_lock(&hex(key.as_str()))
}

/// A ttl for `wait_timeout`, rounded up.
pub(crate) fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000).try_into().unwrap_or(IDLE_TIMEOUT)
}
