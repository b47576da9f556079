//! Repeats a call that went unanswered. Asking twice is asking once, as long as nobody forgets that
//! the first request may still be carried out.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use crate::backend::{Backend, Claim, Grant, Info, Owner, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::{ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// Repeats a call that ended `Unavailable`, a few times and with a pause. The core itself repeats
/// what it waits for; this gives `try_acquire`, `list` and `examine` more than one chance as well.
///
/// A request whose response was lost may be carried out late, also after the one that repeated it.
/// So the layer remembers the claims that it asked for more than once, and lets their release
/// refuse whatever arrives after it.
///
/// Renewals are not repeated here: the client does that, with an eye on the lease. Evictions are
/// not repeated either: the second response could not tell whether the first request did it.
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
    /// Claims of which a request went unanswered.
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

    /// Ends a claim that was refused after a request of it went unanswered: its client believes
    /// that nothing is left of it.
    async fn refused(&self, claim: &Claim) -> Result<()> {
        if claim.waits || !self.unconfirmed().contains(&claim.owner) {
            return Ok(());
        }
        self.release(claim).await.map(drop)
    }

    fn unconfirmed(&self) -> MutexGuard<'_, HashSet<Owner>> {
        self.unconfirmed.lock().unwrap_or_else(PoisonError::into_inner)
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
        claim.doubtful |= unconfirmed;
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

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.repeated(|| self.inner.examine()).await
    }
}
