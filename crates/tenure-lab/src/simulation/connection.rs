//! The unreliable connection of one client to the server: messages are delayed or lost at random,
//! and the connection can be cut. A client that is stopped neither sends nor receives until it goes
//! on; one that has crashed never does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};
use tokio::sync::Notify;

use super::random::Random;
use super::server::SimulatedServer;
use crate::sync::Mutex;

/// How the connection is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cut {
    #[default]
    Open,
    /// Requests arrive, responses do not.
    Responses,
    /// Nothing arrives, and calls hang.
    Both,
    /// Nothing arrives, and calls fail at once.
    Refused,
}

/// A client's connection. Clones share its state.
#[derive(Clone, Debug)]
pub(super) struct UnreliableConnection(Arc<ConnectionInner>);

#[derive(Debug)]
struct ConnectionInner {
    server: SimulatedServer,
    random: Mutex<Random>,
    /// The longest delay of a message, in milliseconds.
    max_delay: u64,
    /// One of this many messages is lost; 0 for none.
    lose_one_in: u64,
    cut: Mutex<Cut>,
    stopped: AtomicBool,
    /// Notifies calls that the client goes on, in the order in which they wait. (A watch channel
    /// wakes in random order, and then a seed would not give the same schedule again.)
    resumed: Notify,
    crashed: AtomicBool,
}

impl UnreliableConnection {
    pub(super) fn new(server: SimulatedServer, mut random: Random) -> UnreliableConnection {
        let max_delay = [1, 5, 50, 700][random.below(4) as usize];
        let lose_one_in = [0, 0, 40, 12][random.below(4) as usize];
        UnreliableConnection(Arc::new(ConnectionInner {
            server,
            random: Mutex::new(random),
            max_delay,
            lose_one_in,
            cut: Mutex::default(),
            stopped: AtomicBool::new(false),
            resumed: Notify::new(),
            crashed: AtomicBool::new(false),
        }))
    }

    /// Cuts the connection, or opens it again.
    pub(super) fn set_cut(&self, cut: Cut) {
        *self.0.cut.lock() = cut;
    }

    fn cut(&self) -> Cut {
        *self.0.cut.lock()
    }

    /// The client crashes: no later call has an effect.
    pub(super) fn crash(&self) {
        self.0.crashed.store(true, Ordering::Relaxed);
    }

    /// Stops the client, or lets it go on.
    pub(super) fn set_stopped(&self, stopped: bool) {
        self.0.stopped.store(stopped, Ordering::Relaxed);
        if !stopped {
            self.0.resumed.notify_waiters();
        }
    }

    /// Waits while the client is stopped.
    pub(super) async fn until_running(&self) {
        while self.0.stopped.load(Ordering::Relaxed) {
            // A schedule has one thread, so that nothing happens between the check and the wait.
            self.0.resumed.notified().await;
        }
    }

    /// The delay of a message, and whether it is lost.
    fn draw(&self) -> (Duration, bool) {
        let mut random = self.0.random.lock();
        let lost = self.0.lose_one_in > 0 && random.once_in(self.0.lose_one_in);
        (random.millis(self.0.max_delay + 1), lost)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.until_running().await;
        let (delay, lost) = self.draw();
        match self.cut() {
            _ if self.0.crashed.load(Ordering::Relaxed) => return std::future::pending().await,
            Cut::Refused => return Err(lost_error("connection")),
            Cut::Both => return std::future::pending().await,
            _ if lost => return Err(lost_error("request")),
            _ => tokio::time::sleep(delay).await,
        }
        let response = call.await;
        let (delay, lost) = self.draw();
        tokio::time::sleep(delay).await;
        self.until_running().await;
        match self.cut() {
            Cut::Responses | Cut::Both => std::future::pending().await,
            Cut::Refused => Err(lost_error("connection")),
            Cut::Open if lost => Err(lost_error("response")),
            Cut::Open => response,
        }
    }
}

#[async_trait]
impl Backend for UnreliableConnection {
    fn info(&self) -> Info {
        self.0.server.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.call(self.0.server.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self.call(async { Ok(self.0.server.renew(claims).await) }).await {
            Ok(renewed) => renewed,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.call(self.0.server.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        // A cut connection delivers no hints, and a stopped client gets them late.
        if self.cut() != Cut::Open {
            return std::future::pending().await;
        }
        let hint = self.0.server.until_free(claim).await;
        self.until_running().await;
        hint
    }

    async fn until_lost(&self, claim: &Claim) {
        self.0.server.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.call(self.0.server.list(scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.call(self.0.server.evict(key, token)).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.call(self.0.server.doctor()).await
    }
}

fn lost_error(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the {what} was lost"))
}
