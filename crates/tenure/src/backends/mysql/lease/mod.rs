//! The tables as one client uses them. In `mode=lease` they are all there is; in the other modes
//! they decide whose turn it is to acquire the server's own lock.
//!
//! - `acquire`: acquire a free key, or enter the queue
//! - `renew`: extend the leases of many claims in one packet
//! - `release`: release or cancel, and hand the lock off to the next waiter
//! - `other_modes`: the same for keys that are held in other modes than the exclusive one
//! - `claim_hints`: what the client remembers of its claims to save statements

pub(crate) mod acquire;
pub(crate) mod claim_hints;
pub(crate) mod other_modes;
pub(crate) mod release;
pub(crate) mod renew;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::config::LockMode;
use super::connection::Connection;
use super::layout::statements::{Statements, THIS_CONNECTION};
use crate::error::Result;
use crate::key::Key;
use claim_hints::ClaimHints;

/// The limit of a poll, and of a request of an operator.
pub(crate) const QUERY_LIMIT: Duration = Duration::from_secs(5);

/// The tables of one mode, and the connections of one client to them.
pub(crate) struct LockTables {
    pub(crate) statements: Statements,
    /// For requests that never wait for a row: renewals, polls, named locks. In `mode=session` and
    /// `mode=row` all records of this client end with this connection.
    main: Connection,
    /// Requests about one key share one connection, so that they stay in order. One that waits for
    /// its row delays others there, but no renewal.
    by_key: Vec<Connection>,
    /// The id by which other clients find this client's wake connection.
    wake_id: String,
    pub(crate) hints: ClaimHints,
}

impl LockTables {
    /// `by_key` must not be empty.
    pub(crate) fn new(
        statements: Statements,
        main: Connection,
        by_key: Vec<Connection>,
        wake_id: String,
    ) -> LockTables {
        LockTables { statements, main, by_key, wake_id, hints: ClaimHints::default() }
    }

    /// The connection for requests that never wait for a row.
    pub(crate) fn main(&self) -> &Connection {
        &self.main
    }

    /// The connection for requests about this key.
    pub(crate) fn connection_for(&self, key: &Key) -> &Connection {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.by_key[(hasher.finish() % self.by_key.len() as u64) as usize]
    }

    /// The connection for sweeping, which may wait for rows.
    pub(crate) fn sweep_connection(&self) -> &Connection {
        &self.by_key[self.by_key.len() - 1]
    }

    pub(crate) fn wake_id(&self) -> &str {
        &self.wake_id
    }

    /// The id of the connection that new records of this client end with, as an expression.
    async fn record_connection(&self, limit: Duration) -> Result<String> {
        if self.statements.mode == LockMode::Lease {
            return Ok(THIS_CONNECTION.to_owned());
        }
        let id = match self.main.current_id() {
            Some(id) => id,
            // Opens the connection.
            None => self.main.execute("DO 1".to_owned(), limit).await?.connection_id,
        };
        Ok(format!("'{id}'"))
    }
}

/// How long a request may take before its connection is abandoned. The engine stops waiting for the
/// response sooner; but a new connection costs more than waiting a little longer for the old one.
pub(crate) fn response_limit(ttl: Duration) -> Duration {
    (ttl / 2).clamp(Duration::from_secs(1), Duration::from_secs(5))
}
