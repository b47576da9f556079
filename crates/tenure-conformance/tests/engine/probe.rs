//! A layer that records the calls of a client to its backend, and fails where a test wants it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Owner, Scope};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};

/// A backend whose calls are recorded.
#[derive(Debug)]
pub(crate) struct Probe<B> {
    inner: B,
    /// Requests to acquire.
    pub(crate) acquires: AtomicU64,
    /// Listings.
    pub(crate) lists: AtomicU64,
    /// Evictions.
    pub(crate) evictions: AtomicU64,
    /// Releases, confirmed or not.
    pub(crate) releases: AtomicU64,
    /// Releases that have to refuse a request that arrives after them.
    pub(crate) unconfirmed: AtomicU64,
    open: Mutex<HashSet<Owner>>,
    /// How many calls to acquire and evict are carried out, and their responses lost.
    pub(crate) lose: AtomicU64,
    frozen: Mutex<Option<Key>>,
}

impl<B: Backend> Probe<B> {
    /// Records the calls to that backend.
    pub(crate) fn new(inner: B) -> Probe<B> {
        Probe {
            inner,
            acquires: AtomicU64::new(0),
            lists: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
            releases: AtomicU64::new(0),
            unconfirmed: AtomicU64::new(0),
            open: Mutex::default(),
            lose: AtomicU64::new(0),
            frozen: Mutex::default(),
        }
    }

    /// Claims for which a request was sent and that no release has ended.
    pub(crate) fn open(&self) -> MutexGuard<'_, HashSet<Owner>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on a call that renews this key hangs.
    pub(crate) fn freeze(&self, key: Key) {
        *self.frozen.lock().unwrap_or_else(PoisonError::into_inner) = Some(key);
    }

    fn freezes(&self, claims: &[Claim]) -> bool {
        let frozen = self.frozen.lock().unwrap_or_else(PoisonError::into_inner);
        claims.iter().any(|claim| Some(&claim.key) == frozen.as_ref())
    }

    fn loses(&self) -> bool {
        let one_less = |left: u64| left.checked_sub(1);
        self.lose.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Unavailable, "the response was lost, as this test wants it")
}

#[async_trait]
impl<B: Backend> Backend for Probe<B> {
    fn info(&self) -> Info {
        self.inner.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.acquires.fetch_add(1, Ordering::Relaxed);
        self.open().insert(claim.owner);
        let attempt = self.inner.try_acquire(claim).await;
        if self.loses() { Err(lost()) } else { attempt }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if self.freezes(claims) {
            std::future::pending::<()>().await;
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.releases.fetch_add(1, Ordering::Relaxed);
        self.unconfirmed.fetch_add(u64::from(claim.unconfirmed), Ordering::Relaxed);
        let released = self.inner.release(claim).await?;
        self.open().remove(&claim.owner);
        Ok(released)
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.inner.until_free(claim).await
    }

    async fn until_lost(&self, claim: &Claim) {
        self.inner.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.lists.fetch_add(1, Ordering::Relaxed);
        self.inner.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        let evicted = self.inner.evict(key, token).await;
        if self.loses() { Err(lost()) } else { evicted }
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.inner.doctor().await
    }
}
