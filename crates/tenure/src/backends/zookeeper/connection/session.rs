//! One session at the server. When it ends, the server deletes all nodes of its claims.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, MultiWriteError};

use super::super::claims::SessionClaims;
use super::super::config::Config;
use super::super::error;
use super::super::layout::{self, NodeTree};
use super::connect;
use crate::backend::{Claim, Grant, Owner};
use crate::error::Result;
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// A session, its current connection, and what is known of its claims.
pub(crate) struct Session {
    client: Mutex<Arc<Client>>,
    /// Held while the session moves to another server.
    pub(crate) moving: tokio::sync::Mutex<()>,
    /// Notified when it has moved.
    moved: Notify,
    /// When its server last responded to a request that needs a majority.
    majority: Mutex<Instant>,
    config: Config,
    pub(crate) tree: NodeTree,
    /// How many sessions it replaces, one after the other.
    pub(crate) number: u64,
    acls: Acls<'static>,
    pub(crate) claims: SessionClaims,
}

impl Session {
    pub(crate) async fn open(config: &Config, timeout: Duration, number: u64) -> Result<Session> {
        Ok(Session {
            client: Mutex::new(Arc::new(connect::connect(config, timeout).await?)),
            moving: tokio::sync::Mutex::default(),
            moved: Notify::new(),
            majority: Mutex::new(Instant::now()),
            config: config.clone(),
            tree: config.tree.clone(),
            number,
            acls: config.acls(),
            claims: SessionClaims::new(),
        })
    }

    /// The current connection. Requests keep their order only on the same connection.
    pub(crate) fn client(&self) -> Arc<Client> {
        self.client.lock().clone()
    }

    /// Continues the session over another connection. Waits for watches of the previous one end.
    pub(crate) fn set_client(&self, client: Client) {
        *self.client.lock() = Arc::new(client);
        self.moved.notify_waiters();
    }

    /// Its server has responded to a request that needs a majority.
    pub(crate) fn note_majority(&self) {
        *self.majority.lock() = Instant::now();
    }

    /// Whether its server has responded to a request that needs a majority since then.
    pub(crate) fn had_majority_since(&self, since: Instant) -> bool {
        *self.majority.lock() > since
    }

    /// Returns when the session has left this connection.
    pub(crate) async fn until_moved(&self, from: &Arc<Client>) {
        let mut moved = std::pin::pin!(self.moved.notified());
        moved.as_mut().enable();
        // Subscribe first, then compare: a move in between is not missed.
        if Arc::ptr_eq(from, &self.client()) {
            moved.await;
        }
    }

    /// Whether the server, or the clock of the client library, ended it.
    pub(crate) fn has_ended(&self) -> bool {
        self.client().state().is_terminated()
    }

    /// For how long the server keeps the nodes of the session without hearing from it.
    pub(crate) fn timeout(&self) -> Duration {
        self.client().session_timeout()
    }

    /// For how long a response proves that a claim is held, from before its request.
    ///
    /// A follower tells the leader only from time to time which sessions it heard from. What the
    /// leader knows of a session may be as old as the last message but one, or as a tick. The
    /// client library sends a message at least every fifth of the timeout, and the tick of a server
    /// is a third of it or less. So the rest, two thirds, is safe even if the follower is cut off
    /// right after its response.
    pub(crate) fn lease(&self) -> Duration {
        self.timeout() * 2 / 3
    }

    /// The shortest timeout with such a lease, in whole milliseconds.
    pub(crate) fn timeout_for(lease: Duration) -> Duration {
        let millis = (lease * 3).as_nanos().div_ceil(2_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// A grant that a response in this session proves.
    pub(crate) fn grant(&self, claim: &Claim, token: FencingToken) -> Grant {
        Grant::with_range(token, claim.ttl.min(self.lease()))
    }

    /// The first part of the names of a claim's nodes.
    pub(crate) fn node_prefix(&self, owner: Owner) -> String {
        layout::node_prefix(owner, self.client().session_id().0)
    }

    pub(crate) fn create_options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls)
    }

    /// Proves by a majority that all these nodes exist; `false` if one does not.
    ///
    /// It is a transaction that only checks, and not a read: a follower that is cut off goes on
    /// responding to reads, while the majority may end the session and grant the lock to the next
    /// claim.
    pub(crate) async fn prove_nodes(&self, client: &Client, nodes: &[&str]) -> Result<bool> {
        let mut writer = client.new_multi_writer();
        for node in nodes {
            writer.add_check_version(node, -1).map_err(error::from_client)?;
        }
        match writer.commit().await {
            Ok(_) => Ok(true),
            Err(MultiWriteError::OperationFailed { .. }) => Ok(false),
            Err(MultiWriteError::RequestFailed { source }) => Err(error::from_client(source)),
        }
    }

    /// Creates a container node, and the missing nodes above it.
    pub(crate) async fn create_container(&self, path: &str) -> Result<()> {
        let options = self.create_options(CreateMode::Container);
        self.client().mkdir(path, &options).await.map_err(error::from_client)
    }
}

impl Drop for Session {
    /// Ends the session at the server if there is a runtime to do it on. Otherwise its timeout ends
    /// it.
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let config = self.config.clone();
            let client = self.client();
            runtime.spawn(async move { connect::close(&config, &client).await });
        }
    }
}
