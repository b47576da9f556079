//! A layer that injects faults: calls are slow, requests or responses are lost, hints do not come.
//! It uses only the public trait, like any layer outside of this repository.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Scope, Wakeup};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};

/// The faults to inject.
#[derive(Clone, Debug)]
pub struct Faults {
    /// How long a call takes before its effect, and again until its response.
    pub delay: Duration,
    /// Of this many acquires and renewals one request is lost, and one response; 0 for none.
    pub lose_every: u64,
    /// Whether hints are delivered.
    pub hints: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { delay: Duration::ZERO, lose_every: 0, hints: true }
    }
}

/// A backend with injected faults. A cut lasts until the test opens the connection again.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    faults: Faults,
    calls: AtomicU64,
    cut: tokio::sync::watch::Sender<Cut>,
}

/// How the connection to the server is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cut {
    /// It is not cut.
    #[default]
    Open,
    /// Requests arrive, responses do not.
    Responses,
    /// Nothing arrives, and calls hang.
    Hung,
    /// Nothing arrives, and calls fail at once.
    Refused,
    /// Renewals fail at once; other requests pass.
    Renewals,
}

impl<B: Backend> Faulty<B> {
    /// Injects these faults into a backend.
    pub fn new(inner: B, faults: Faults) -> Faulty<B> {
        Faulty { inner, faults, calls: AtomicU64::new(0), cut: Default::default() }
    }

    /// Cuts the connection to the server, or opens it again.
    pub fn cut(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }

    /// Number of calls so far.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.pause().await;
        self.pass(Cut::Responses).await?;
        let response = call.await;
        self.pause().await;
        self.pass(Cut::Open).await?;
        response
    }

    /// A call whose request or response is lost now and then.
    async fn lossy<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        let number = self.calls() + 1;
        let every = self.faults.lose_every;
        let lost = |which: u64| every > 0 && number % every == which;
        if lost(0) {
            self.calls.fetch_add(1, Ordering::Relaxed);
            return Err(lost_error("request"));
        }
        let response = self.call(call).await;
        if lost(1) { Err(lost_error("response")) } else { response }
    }

    /// Lets a message pass, unless the connection is cut. `allowed` is a cut that lets it pass.
    async fn pass(&self, allowed: Cut) -> Result<()> {
        let cut = *self.cut.borrow();
        match cut {
            Cut::Open | Cut::Renewals => Ok(()),
            Cut::Responses if allowed == Cut::Responses => Ok(()),
            Cut::Refused => Err(lost_error("connection")),
            Cut::Responses | Cut::Hung => std::future::pending().await,
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
            return claims.iter().map(|_| Err(lost_error("renewal"))).collect();
        }
        match self.lossy(async { Ok(self.inner.renew(claims).await) }).await {
            Ok(renewed) => renewed,
            Err(error) => vec![Err(error); claims.len()],
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.call(self.inner.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        if self.faults.hints {
            self.inner.until_free(claim).await
        } else {
            std::future::pending().await
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        if self.faults.hints {
            self.inner.until_lost(claim).await;
        } else {
            std::future::pending().await
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.call(self.inner.list(scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.call(self.inner.evict(key, token)).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.call(self.inner.doctor()).await
    }
}

fn lost_error(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("the {what} was lost by an injected fault"))
}
