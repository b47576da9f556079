//! `mode=row`: a row lock of an open transaction is the lock. Each held lock has a connection of
//! its own, because a transaction releases all of its locks together; waiters have none.
//!
//! - `acquire`: lock the row for a claim that has the turn
//! - `renew`: renew the records, and check the connection of each row lock
//! - `release`: end the transaction

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod renew;

use std::collections::HashMap;
use std::time::Duration;

use super::connection::{ConnectOptions, Connection, ConnectionId};
use super::layout::statements::ROW_CONNECTION_PREFIX;
use super::lease::response_limit;
use crate::backend::{Claim, Owner};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::support::sync::Mutex;

/// The row locks of one client, and the connections for them.
pub(crate) struct RowLocks {
    options: ConnectOptions,
    runtime: tokio::runtime::Handle,
    max_connections: usize,
    pool: Mutex<RowPool>,
}

#[derive(Default)]
struct RowPool {
    idle: Vec<Connection>,
    held: HashMap<Key, RowLock>,
}

#[derive(Clone)]
struct RowLock {
    owner: Owner,
    connection: Connection,
    /// The id of the connection that has the row lock; `None` until the server has confirmed it.
    connection_id: Option<ConnectionId>,
}

impl RowLocks {
    pub(crate) fn new(
        options: &ConnectOptions,
        runtime: tokio::runtime::Handle,
        max_connections: usize,
    ) -> RowLocks {
        let options = ConnectOptions { id_prefix: ROW_CONNECTION_PREFIX, ..options.clone() };
        RowLocks { options, runtime, max_connections, pool: Mutex::default() }
    }

    /// Reserves the key and a connection for this claim. `None` if another claim of this client has
    /// the key.
    fn reserve(&self, claim: &Claim) -> Result<Option<RowLock>> {
        let mut pool = self.pool.lock();
        // At most one connection per key: a second one could only find the row locked.
        if let Some(lock) = pool.held.get(&claim.key) {
            return Ok(Some(lock.clone()).filter(|lock| lock.owner == claim.owner));
        }
        let connection = match pool.idle.pop() {
            Some(connection) => connection,
            None if pool.held.len() < self.max_connections => {
                Connection::start(self.options.clone(), &self.runtime)
            }
            None => return Err(all_in_use(self.max_connections)),
        };
        let lock = RowLock { owner: claim.owner, connection, connection_id: None };
        pool.held.insert(claim.key.clone(), lock.clone());
        Ok(Some(lock))
    }

    /// Records which connection has the row lock. `false` if the claim was released meanwhile.
    fn confirm(&self, claim: &Claim, connection_id: &ConnectionId) -> bool {
        let mut pool = self.pool.lock();
        match pool.held.get_mut(&claim.key).filter(|lock| lock.owner == claim.owner) {
            Some(lock) => lock.connection_id = Some(connection_id.clone()),
            None => return false,
        }
        true
    }

    /// Removes the row lock of a claim.
    fn remove(&self, key: &Key, owner: Owner) -> Option<RowLock> {
        let mut pool = self.pool.lock();
        pool.held.get(key).filter(|lock| lock.owner == owner)?;
        pool.held.remove(key)
    }

    /// Forgets a row lock that has ended with its connection.
    fn forget(&self, claim: &Claim) {
        if let Some(lock) = self.remove(&claim.key, claim.owner) {
            self.put_back(lock.connection);
        }
    }

    /// Returns a connection whose transaction has ended.
    fn put_back(&self, connection: Connection) {
        self.pool.lock().idle.push(connection);
    }

    /// The row lock of a claim.
    fn get(&self, claim: &Claim) -> Option<RowLock> {
        let pool = self.pool.lock();
        pool.held.get(&claim.key).filter(|lock| lock.owner == claim.owner).cloned()
    }

    /// The connection that has the row lock of this claim.
    pub(crate) fn connection(&self, claim: &Claim) -> Option<(Connection, ConnectionId)> {
        let lock = self.get(claim)?;
        Some((lock.connection, lock.connection_id?))
    }
}

impl RowLock {
    /// Whether the connection is still the one that has the row lock. The request also keeps the
    /// connection from being idle for too long. There is none if the connection was abandoned: it
    /// would open a new one, which ends the old one, before the holder knows of the loss.
    async fn is_alive(&self, ttl: Duration) -> Result<bool> {
        let Some(id) = &self.connection_id else { return Ok(false) };
        if self.connection.current_id().as_ref() != Some(id) {
            return Ok(false);
        }
        let response = self.connection.execute("DO 1".to_owned(), response_limit(ttl)).await?;
        Ok(response.connection_id == *id)
    }
}

fn all_in_use(max_connections: usize) -> Error {
    let message = format!(
        "all {max_connections} connections of this client hold a row lock; raise \
         `?connections=`, or use `?mode=lease`"
    );
    Error::new(ErrorKind::Unavailable, message)
}
