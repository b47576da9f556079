//! Bounds every call: what is not answered in time is `Unavailable`.

use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Backend, Claim, Grant, Info, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// Bounds every call to the server. The core bounds its calls by the lease already; this is for a
/// bound that is tighter, such as a node of a quorum.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::{Client, backends::Memory, layers::Timeout};
///
/// let locks = Client::new(Timeout::new(Memory::new(), Duration::from_millis(50)));
/// ```
#[derive(Debug)]
pub struct Timeout<B> {
    inner: B,
    limit: Duration,
}

impl<B: Backend> Timeout<B> {
    /// Every call to `inner` gets this long.
    pub fn new(inner: B, limit: Duration) -> Timeout<B> {
        Timeout { inner, limit }
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        match tokio::time::timeout(self.limit, call).await {
            Ok(answer) => answer,
            Err(_) => Err(self.no_answer()),
        }
    }

    fn no_answer(&self) -> Error {
        let (name, limit) = (self.inner.info().name, self.limit.as_millis());
        let message = format!("no answer from {name} within {limit} ms");
        Error::new(ErrorKind::Unavailable, message)
    }
}

#[async_trait]
impl<B: Backend> Backend for Timeout<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.bounded(self.inner.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match tokio::time::timeout(self.limit, self.inner.renew(claims)).await {
            Ok(answers) => answers,
            Err(_) => claims.iter().map(|_| Err(self.no_answer())).collect(),
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.bounded(self.inner.release(claim)).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.inner.until_free(claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        self.inner.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.bounded(self.inner.list(scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.bounded(self.inner.evict(key, token)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.bounded(self.inner.examine()).await
    }
}
