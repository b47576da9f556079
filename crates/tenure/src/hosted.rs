//! A backend that is opened outside of a client, on a thread of its own.
//!
//! Backends spawn tasks: keep-alives, watches, the readers of connections. Those live on the
//! runtime that the backend is opened and called on. If that were the caller's, a runtime that is
//! blocked or has ended would lose every lock, which is what the thread of a client is there to
//! prevent. So a backend that a caller opens by itself, to put layers around it or to get its
//! conditions, has a thread of its own, and every call runs there.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Scope};
use crate::engine::executor::Executor;
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// A backend with a thread of its own, so that its keep-alives go on when the caller's runtime is
/// blocked or has ended. Clones share backend and thread, which ends with the last of them.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "etcd")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Client, backends::Etcd};
///
/// let etcd: tenure::Hosted<Etcd> = Etcd::open("etcd://10.0.0.1").await?;
/// let locks = Client::new(etcd.clone());
/// # Ok(()) }
/// # #[cfg(not(feature = "etcd"))] fn main() {}
/// ```
pub struct Hosted<B: ?Sized> {
    // Before `executor`: the backend is closed while its tasks can still run.
    backend: Arc<B>,
    executor: Arc<Executor>,
}

impl<B: ?Sized + Send + Sync + 'static> Hosted<B> {
    /// Opens a backend on a new thread.
    pub(crate) async fn open(
        opening: impl Future<Output = Result<Arc<B>>> + Send + 'static,
    ) -> Result<Hosted<B>> {
        let executor = Arc::new(Executor::thread()?);
        let backend = executor.run_while_wanted(opening).await??;
        Ok(Hosted { backend, executor })
    }

    /// Calls the backend on its own thread. Dropping the future drops the call.
    pub(crate) async fn call<T, F>(
        &self,
        work: impl FnOnce(Arc<B>) -> F + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let backend = self.backend.clone();
        self.executor.run_while_wanted(async move { work(backend).await }).await?
    }
}

/// For methods that are not `async`. An `async` one would run on the caller's runtime.
impl<B: ?Sized> Deref for Hosted<B> {
    type Target = B;
    fn deref(&self) -> &B {
        &self.backend
    }
}

impl<B: ?Sized> Clone for Hosted<B> {
    fn clone(&self) -> Hosted<B> {
        Hosted { backend: self.backend.clone(), executor: self.executor.clone() }
    }
}

impl<B: ?Sized + fmt::Debug> fmt::Debug for Hosted<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

#[async_trait]
impl<B: Backend + ?Sized> Backend for Hosted<B> {
    fn info(&self) -> Info {
        self.backend.info()
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let claim = claim.clone();
        self.call(|backend| async move { backend.try_acquire(&claim).await }).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let count = claims.len();
        let claims = claims.to_vec();
        let renewed = self.call(|backend| async move { Ok(backend.renew(&claims).await) });
        renewed.await.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let claim = claim.clone();
        self.call(|backend| async move { backend.release(&claim).await }).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        let claim = claim.clone();
        let hint = self.call(|backend| async move { Ok(backend.until_free(&claim).await) });
        hint.await.ok().flatten()
    }

    async fn until_lost(&self, claim: &Claim) {
        let claim = claim.clone();
        let hint = self.call(|backend| async move {
            backend.until_lost(&claim).await;
            Ok(())
        });
        // Fails only without the thread: then the end of the lease shows the loss.
        let _hint = hint.await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let (key, prefix) = match scope {
            Scope::Key(key) => (Some(key.clone()), String::new()),
            Scope::Prefix(prefix) => (None, prefix.to_owned()),
        };
        let list = |backend: Arc<B>| async move {
            match &key {
                Some(key) => backend.list(Scope::Key(key)).await,
                None => backend.list(Scope::Prefix(&prefix)).await,
            }
        };
        self.call(list).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let key = key.clone();
        self.call(move |backend| async move { backend.evict(&key, token).await }).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.call(|backend| async move { backend.doctor().await }).await
    }
}
