//! `mode=session`: advisory locks, all on one connection, used by one task.
//!
//! - here: [`SessionLocks`], the handle, and [`SessionTask`], the task that owns the connection
//! - `acquire`, `renew`, `release`: what the task does for each command
//! - `limits`: how long the session may be idle, and its statements may wait
//!
//! The server counts how often a session acquires an advisory lock, so that a second claim of this
//! client would get the lock too. The task therefore keeps its own map of held locks. The map is
//! exact, because no other task uses the connection and because the task executes one command after
//! the other. When the connection ends, the server has released every lock of it.

mod acquire;
pub(super) mod limits;
mod release;
mod renew;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use limits::SessionLimits;
use tokio::sync::{mpsc, oneshot};

use super::config::{LockMode, pooler_in_front};
use super::connection::Connection;
use super::connection::pool::Pool;
use super::connection::pooler;
use super::error;
use crate::backend::{Claim, Owner};
use crate::error::Result;
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// Sends commands to the task. When this handle is dropped, the task ends and the connection is
/// closed.
pub(super) struct SessionLocks {
    commands: mpsc::UnboundedSender<SessionCommand>,
    /// The owners that hold a lock now.
    held: Arc<Mutex<HashSet<Owner>>>,
}

/// A command, and where its result is sent.
enum SessionCommand {
    Acquire(Claim, oneshot::Sender<Result<Option<FencingToken>>>),
    Renew(Vec<Claim>, oneshot::Sender<Vec<Result<Duration>>>),
    Release(Claim, oneshot::Sender<Result<bool>>),
}

impl SessionLocks {
    pub(super) fn start(pool: &Arc<Pool>, connection: Arc<Connection>) -> SessionLocks {
        let (commands, receiver) = mpsc::unbounded_channel();
        let held: Arc<Mutex<HashSet<Owner>>> = Arc::default();
        let task = SessionTask {
            pool: pool.clone(),
            connection: Some(connection),
            limits: SessionLimits::NONE,
            locks: HashMap::new(),
            lost_with_connection: HashSet::new(),
            held: held.clone(),
        };
        drop(tokio::spawn(task.run(receiver, pool.push.evictions())));
        SessionLocks { commands, held }
    }

    /// Returns the token, if the lock is free and no other waiter is in front.
    pub(super) async fn try_acquire(&self, claim: &Claim) -> Result<Option<FencingToken>> {
        self.send(|reply| SessionCommand::Acquire(claim.clone(), reply)).await?
    }

    pub(super) async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self.send(|reply| SessionCommand::Renew(claims.to_vec(), reply)).await {
            Ok(results) => results,
            Err(error) => vec![Err(error); claims.len()],
        }
    }

    pub(super) async fn release(&self, claim: &Claim) -> Result<bool> {
        self.send(|reply| SessionCommand::Release(claim.clone(), reply)).await?
    }

    pub(super) fn is_held(&self, owner: Owner) -> bool {
        self.held.lock().contains(&owner)
    }

    async fn send<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> SessionCommand,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        // This fails only if the runtime has ended the task; then the receiver fails too.
        drop(self.commands.send(command(sender)));
        receiver.await.map_err(|_| error::closed())
    }
}

/// The state of the task.
struct SessionTask {
    pool: Arc<Pool>,
    connection: Option<Arc<Connection>>,
    limits: SessionLimits,
    /// By the number of the advisory lock: two keys with the same number exclude each other.
    locks: HashMap<i64, AdvisoryLock>,
    /// The owners that lost their locks with the previous connection.
    lost_with_connection: HashSet<Owner>,
    /// The owners in `locks`, shared with the handle.
    held: Arc<Mutex<HashSet<Owner>>>,
}

/// A lock that the session holds.
struct AdvisoryLock {
    key: Key,
    owner: Owner,
    token: FencingToken,
}

impl SessionTask {
    async fn run(
        mut self,
        mut commands: mpsc::UnboundedReceiver<SessionCommand>,
        mut evictions: mpsc::UnboundedReceiver<Owner>,
    ) {
        loop {
            let connection = self.connection.clone();
            let closed = async {
                match &connection {
                    Some(connection) => connection.until_closed().await,
                    None => std::future::pending().await,
                }
            };
            let command = tokio::select! {
                // A closed connection first: a command must not find locks that have ended.
                biased;
                () = closed => {
                    self.lose_all();
                    continue;
                }
                Some(owner) = evictions.recv() => {
                    release::release_evicted(&mut self, owner).await;
                    continue;
                }
                command = commands.recv() => command,
            };
            // The caller may have been dropped; the command is executed all the same.
            match command {
                None => return,
                Some(SessionCommand::Acquire(claim, reply)) => {
                    drop(reply.send(acquire::try_acquire(&mut self, &claim).await));
                }
                Some(SessionCommand::Renew(claims, reply)) => {
                    drop(reply.send(renew::renew(&mut self, &claims).await));
                }
                Some(SessionCommand::Release(claim, reply)) => {
                    drop(reply.send(release::release(&mut self, &claim).await));
                }
            }
        }
    }

    /// The current connection, or a new one.
    async fn connection(&mut self) -> Result<Arc<Connection>> {
        if let Some(connection) = &self.connection {
            if !connection.is_closed() {
                return Ok(connection.clone());
            }
            self.lose_all();
        }
        let connection = Arc::new(self.pool.open_dedicated().await?);
        if pooler::read_pid(&connection).await? != connection.pid {
            return Err(pooler_in_front(LockMode::Session));
        }
        self.connection = Some(connection.clone());
        Ok(connection)
    }

    /// Verifies that this connection still has the session that holds the locks, and makes the
    /// session active for the server, which ends an idle one. If the session has ended, all locks
    /// are lost.
    async fn verify(&mut self, connection: &Arc<Connection>) -> Result<()> {
        match pooler::read_pid(connection).await {
            Ok(pid) if pid == connection.pid => Ok(()),
            // A pooler has assigned another session to this connection.
            Ok(_) => {
                self.lose_all();
                Err(pooler_in_front(LockMode::Session))
            }
            Err(error) => {
                if connection.is_closed() {
                    self.lose_all();
                }
                Err(error)
            }
        }
    }

    /// Closes the connection, if it is not closed yet, which releases every lock of it.
    fn lose_all(&mut self) {
        if let Some(connection) = self.connection.take() {
            connection.close();
        }
        self.limits = SessionLimits::NONE;
        self.lost_with_connection = self.locks.drain().map(|(_, lock)| lock.owner).collect();
        self.held.lock().clear();
        for owner in &self.lost_with_connection {
            self.pool.push.notify_lost(*owner);
        }
    }
}
