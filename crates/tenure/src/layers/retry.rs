//! Repeats a call that went unanswered. Safe, because asking twice is asking once.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::backend::{Backend, Claim, Grant, Info, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::{ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// Repeats a call that ended `Unavailable`, a few times and with a pause. The core itself repeats
/// what it waits for; this gives `try_acquire`, `list` and `evict` more than one chance as well.
///
/// Renewals are not repeated here: the keeper does that, with an eye on the lease.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::{Client, backends::Memory, layers::Retry};
///
/// let locks = Client::new(Retry::new(Memory::new(), 3, Duration::from_millis(50)));
/// ```
#[derive(Debug)]
pub struct Retry<B> {
    inner: B,
    tries: u32,
    pause: Duration,
}

impl<B: Backend> Retry<B> {
    /// Up to `tries` calls in all, with this pause between two.
    pub fn new(inner: B, tries: u32, pause: Duration) -> Retry<B> {
        Retry { inner, tries, pause }
    }

    async fn repeated<'a, T>(
        &self,
        call: impl Fn() -> BoxFuture<'a, Result<T>> + Send,
    ) -> Result<T> {
        for _ in 1..self.tries {
            match call().await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tokio::time::sleep(self.pause).await;
                }
                answer => return answer,
            }
        }
        call().await
    }
}

#[async_trait]
impl<B: Backend> Backend for Retry<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.repeated(|| self.inner.try_acquire(claim)).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.inner.release(claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.inner.until_free(claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        self.inner.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.repeated(|| self.inner.list(scope)).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.repeated(|| self.inner.evict(key, token)).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.repeated(|| self.inner.examine()).await
    }
}
