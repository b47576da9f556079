//! Bounds every call: one without a response in time is `Unavailable`.

use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Scope};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// Bounds every call to the server. The engine bounds its calls by the lease already; this is for a
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
            Ok(response) => response,
            Err(_) => Err(self.timed_out()),
        }
    }

    fn timed_out(&self) -> Error {
        Error::timed_out(self.inner.info().name, self.limit)
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
            Ok(responses) => responses,
            Err(_) => claims.iter().map(|_| Err(self.timed_out())).collect(),
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

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.bounded(self.inner.doctor()).await
    }
}
