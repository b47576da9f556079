//! `mode=row`: a row lock of an open transaction, one connection per held lock.
//!
//! - here: [`RowLocks`], the claims of a client and its idle connections
//! - `acquire`, `renew`, `release`: what is done for a claim

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod renew;

use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::connection::Connection;
use super::connection::pool::Pool;
use super::layout::row::transaction_name;
use crate::backend::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// The row locks of a client.
pub(crate) struct RowLocks {
    pool: Arc<Pool>,
    claims: Mutex<HashMap<Owner, RowClaim>>,
    /// Connections without a transaction, ready for the next lock.
    idle: Mutex<Vec<Arc<Connection>>>,
    /// One permit for each lock that may be held, and so for each connection.
    permits: Arc<Semaphore>,
    /// Held while a connection is opened ahead of its use.
    opening_ahead: tokio::sync::Mutex<()>,
}

/// What the client knows of a claim.
enum RowClaim {
    /// An acquire is in progress.
    Acquiring,
    /// The claim was released: a grant that the acquire in progress gets is ended at once, or its
    /// transaction is ending now.
    Cancelled,
    Held(HeldRow),
}

/// A row that an open transaction of this client has locked.
#[derive(Clone)]
struct HeldRow {
    key: Key,
    token: FencingToken,
    connection: Arc<Connection>,
    _permit: Arc<OwnedSemaphorePermit>,
}

impl HeldRow {
    fn transaction_name(&self) -> String {
        transaction_name(self.token)
    }
}

impl RowLocks {
    pub(super) fn start(pool: &Arc<Pool>, idle: Vec<Arc<Connection>>) -> Arc<RowLocks> {
        let locks = Arc::new(RowLocks {
            pool: pool.clone(),
            claims: Mutex::default(),
            idle: Mutex::new(idle),
            permits: Arc::new(Semaphore::new(pool.config.rows)),
            opening_ahead: tokio::sync::Mutex::new(()),
        });
        let weak = Arc::downgrade(&locks);
        let mut evictions = pool.push.evictions();
        drop(tokio::spawn(async move {
            while let Some(owner) = evictions.recv().await {
                let Some(locks) = weak.upgrade() else { return };
                release::release_evicted(&locks, owner).await;
            }
        }));
        locks
    }

    /// Returns when the connection of the claim has ended; at once if it has none.
    pub(super) async fn until_closed(&self, owner: Owner) {
        let connection = match self.claims.lock().get(&owner) {
            Some(RowClaim::Held(held)) => held.connection.clone(),
            _ => return,
        };
        connection.until_closed().await;
    }

    pub(super) fn is_held(&self, owner: Owner) -> bool {
        matches!(self.claims.lock().get(&owner), Some(RowClaim::Held(_)))
    }

    /// A connection for the next lock. Another one is opened ahead, because opening takes longer
    /// than a claim with a short lease may wait for its response.
    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let found = {
            let mut idle = self.idle.lock();
            idle.retain(|connection| !connection.is_closed());
            let found = idle.pop();
            if idle.is_empty() && self.permits.available_permits() > 0 {
                drop(tokio::spawn(self.clone().open_ahead()));
            }
            found
        };
        match found {
            Some(connection) => Ok(connection),
            None => Ok(Arc::new(self.pool.open_dedicated().await?)),
        }
    }

    async fn open_ahead(self: Arc<Self>) {
        // One at a time, and only if no released lock has left an idle connection meanwhile.
        let Ok(_opening) = self.opening_ahead.try_lock() else { return };
        if let Ok(connection) = self.pool.open_dedicated().await {
            let mut idle = self.idle.lock();
            if idle.is_empty() {
                idle.push(Arc::new(connection));
            }
        }
    }

    fn no_permit(&self) -> Error {
        let limit = self.pool.config.rows;
        let message = format!(
            "{limit} row locks are held or requested, each by a connection of its own; raise \
             `rows`, or use `mode=lease`"
        );
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// A request of the same claim has no result yet.
fn in_progress() -> Error {
    Error::new(ErrorKind::Unavailable, "an earlier request of this claim is still in progress")
}
