//! The way from one client to the server: messages are late or lost as the dice say, and the way
//! can be cut. A client that is stopped sends and hears nothing, one that is dead never again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};
use tokio::sync::Notify;

use super::dice::Dice;
use super::server::Server;

/// How the way is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Cut {
    #[default]
    Open,
    /// Requests arrive, answers do not.
    Answers,
    /// Nothing arrives, and calls hang.
    Both,
    /// Nothing arrives, and calls fail at once.
    Refused,
}

/// The way; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Way(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    server: Server,
    dice: Mutex<Dice>,
    /// The longest that a message takes, in milliseconds.
    slowest: u64,
    /// One of so many messages is lost; 0 for none.
    lose: u64,
    cut: Mutex<Cut>,
    stopped: AtomicBool,
    /// Rings when the client goes on. In the order of asking: a watch wakes in an order by chance,
    /// and then a seed would not play the same schedule again.
    goes_on: Notify,
    dead: AtomicBool,
}

impl Way {
    pub(super) fn new(server: Server, mut dice: Dice) -> Way {
        let slowest = [1, 5, 50, 700][dice.below(4) as usize];
        let lose = [0, 0, 40, 12][dice.below(4) as usize];
        let (dice, cut, goes_on) = (Mutex::new(dice), Mutex::default(), Notify::new());
        let (stopped, dead) = (AtomicBool::new(false), AtomicBool::new(false));
        Way(Arc::new(Inner { server, dice, slowest, lose, cut, stopped, goes_on, dead }))
    }

    pub(super) fn cut(&self, cut: Cut) {
        *self.0.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }

    fn is_cut(&self) -> Cut {
        *self.0.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process is gone: nothing that it still does can be seen by anybody.
    pub(super) fn die(&self) {
        self.0.dead.store(true, Ordering::Relaxed);
    }

    pub(super) fn stop(&self, stopped: bool) {
        self.0.stopped.store(stopped, Ordering::Relaxed);
        if !stopped {
            self.0.goes_on.notify_waiters();
        }
    }

    /// Waits while the client is stopped.
    pub(super) async fn runs(&self) {
        while self.0.stopped.load(Ordering::Relaxed) {
            // Nothing comes between the look and the wait: a schedule has one thread.
            self.0.goes_on.notified().await;
        }
    }

    fn toss(&self) -> (Duration, bool) {
        let mut dice = self.0.dice.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = self.0.lose > 0 && dice.once_in(self.0.lose);
        (dice.millis(self.0.slowest + 1), lost)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.runs().await;
        let (late, lost) = self.toss();
        let cut = self.is_cut();
        match cut {
            _ if self.0.dead.load(Ordering::Relaxed) => return std::future::pending().await,
            Cut::Refused => return Err(gone("connection")),
            Cut::Both => return std::future::pending().await,
            _ if lost => return Err(gone("request")),
            _ => tokio::time::sleep(late).await,
        }
        let answer = call.await;
        let (late, lost) = self.toss();
        tokio::time::sleep(late).await;
        self.runs().await;
        let cut = self.is_cut();
        match cut {
            Cut::Answers | Cut::Both => std::future::pending().await,
            Cut::Refused => Err(gone("connection")),
            Cut::Open if lost => Err(gone("answer")),
            Cut::Open => answer,
        }
    }
}

#[async_trait]
impl Backend for Way {
    fn info(&self) -> Info {
        self.0.server.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.call(self.0.server.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self.call(async { Ok(self.0.server.renew(claims).await) }).await {
            Ok(answers) => answers,
            Err(error) => claims.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.call(self.0.server.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        // Hints come, or do not; a stopped client hears them late.
        if self.is_cut() != Cut::Open {
            return std::future::pending().await;
        }
        let hint = self.0.server.until_free(claim).await;
        self.runs().await;
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

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.call(self.0.server.examine()).await
    }
}

fn gone(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the {what} was lost"))
}
