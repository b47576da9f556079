//! Repeats a request that got no response. Requests are idempotent, as long as the layer remembers
//! that the first one may still be carried out.

use std::collections::HashSet;
use std::sync::MutexGuard;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Owner, Scope};
use crate::error::{ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// Repeats a call that ended `Unavailable`, a few times and with a pause. The engine itself repeats
/// the requests of a waiting acquire; this gives `try_acquire`, `list` and `doctor` more than one
/// chance as well.
///
/// A request whose response was lost may be carried out late, also after the one that repeated it.
/// So the layer remembers the claims for which it sent more than one request, and lets their
/// release refuse requests that arrive after it.
///
/// Renewals are not repeated here: the client does that, within the lease. Evictions are not
/// repeated either: the second response could not tell whether the first request evicted.
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
    /// Claims of which a request got no response.
    unconfirmed: Mutex<HashSet<Owner>>,
}

impl<B: Backend> Retry<B> {
    /// Up to `tries` calls in all, with this pause between two.
    pub fn new(inner: B, tries: u32, pause: Duration) -> Retry<B> {
        Retry { inner, tries, pause, unconfirmed: Mutex::default() }
    }

    /// One request to acquire. From before it is sent until its response is there, and for good if
    /// there is none, the claim counts as unconfirmed; also if the caller drops this future.
    async fn acquire_once(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let earlier = !self.unconfirmed().insert(claim.owner);
        let response = self.inner.try_acquire(claim).await;
        let unknown = matches!(&response, Err(error) if error.kind() == ErrorKind::Unavailable);
        if !earlier && !unknown {
            self.unconfirmed().remove(&claim.owner);
        }
        response
    }

    /// Ends a claim that was refused after one of its requests got no response: its client
    /// assumes that the server keeps nothing of it.
    async fn refused(&self, claim: &Claim) -> Result<()> {
        if claim.waits || !self.unconfirmed().contains(&claim.owner) {
            return Ok(());
        }
        self.release(claim).await.map(drop)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, HashSet<Owner>> {
        self.unconfirmed.lock()
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
                response => return response,
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
        let attempt = self.repeated(|| Box::pin(self.acquire_once(claim))).await?;
        if let Attempt::Busy(_) = attempt {
            self.refused(claim).await?;
        }
        Ok(attempt)
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let unconfirmed = self.unconfirmed().contains(&claim.owner);
        let mut claim = claim.clone();
        claim.unconfirmed |= unconfirmed;
        let released = self.inner.release(&claim).await?;
        self.unconfirmed().remove(&claim.owner);
        Ok(released)
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
        self.inner.evict(key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.repeated(|| self.inner.doctor()).await
    }
}
