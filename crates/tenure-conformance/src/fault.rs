//! A layer that goes wrong on purpose: calls are slow, requests or answers get lost, hints do not
//! come. It is written against the public trait, as anybody's layer would be.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope, Wakeup};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};

/// What goes wrong.
#[derive(Clone, Debug)]
pub struct Faults {
    /// How long a call takes before it takes effect, and again until its answer is there.
    pub delay: Duration,
    /// Of every so many asks and renewals one request is lost, and one answer; 0 for none.
    pub lose_every: u64,
    /// Whether hints come.
    pub hints: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { delay: Duration::ZERO, lose_every: 0, hints: true }
    }
}

/// A backend behind faults. What a test switches off stays off until it is switched on again.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    faults: Faults,
    calls: AtomicU64,
    cut: tokio::sync::watch::Sender<Cut>,
}

/// How the way to the server is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// It is not.
    #[default]
    Open,
    /// Requests arrive, answers do not.
    Answers,
    /// Nothing arrives, and calls hang.
    Hung,
    /// Nothing arrives, and calls fail at once.
    Refused,
    /// Renewals fail at once; the rest goes through.
    Renewals,
}

impl<B: Backend> Faulty<B> {
    /// That backend with these faults.
    pub fn new(inner: B, faults: Faults) -> Faulty<B> {
        Faulty { inner, faults, calls: AtomicU64::new(0), cut: Default::default() }
    }

    /// Cuts or heals the way to the server.
    pub fn cut(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }

    /// How many calls there were.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.pause().await;
        self.pass(Cut::Answers).await?;
        let answer = call.await;
        self.pause().await;
        self.pass(Cut::Open).await?;
        answer
    }

    /// A call of which now and then the request or the answer is lost.
    async fn lossy<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let (number, every) = (self.calls() + 1, self.faults.lose_every);
        let lost = |which: u64| every > 0 && number % every == which;
        if lost(0) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return Err(gone("request"));
        }
        let answer = self.call(call).await;
        if lost(1) { Err(gone("answer")) } else { answer }
    }

    /// Lets a message through unless the way is cut further than this.
    async fn pass(&self, open: Cut) -> Result<()> {
        let cut = *self.cut.borrow();
        match cut {
            Cut::Open | Cut::Renewals => Ok(()),
            Cut::Answers if open == Cut::Answers => Ok(()),
            Cut::Refused => Err(gone("connection")),
            Cut::Answers | Cut::Hung => std::future::pending().await,
        }
    }

    async fn pause(&self) {
        if !self.faults.delay.is_zero() {
            tokio::time::sleep(self.faults.delay).await;
        }
    }
}

#[async_trait]
impl<B: Backend> Backend for Faulty<B> {
    fn info(&self) -> Info {
        let mut info = self.inner.info();
        if !self.faults.hints {
            info.wakeup = Wakeup::Poll;
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.lossy(self.inner.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if *self.cut.borrow() == Cut::Renewals {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return claims.iter().map(|_| Err(gone("renewal"))).collect();
        }
        match self.lossy(async { Ok(self.inner.renew(claims).await) }).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); claims.len()],
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.call(self.inner.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        match self.faults.hints {
            true => self.inner.until_free(claim).await,
            false => std::future::pending().await,
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        match self.faults.hints {
            true => self.inner.until_lost(claim).await,
            false => std::future::pending().await,
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.call(self.inner.list(scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.call(self.inner.evict(key, token)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.call(self.inner.examine()).await
    }
}

fn gone(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the {what} was lost, as this test wants it"))
}
