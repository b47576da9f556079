//! A backend that is opened when it is first used: for services that start before their server.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Scope};
use crate::backends;
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::support::url::Url;
use crate::token::FencingToken;

/// Opens the backend of a URL at the first request. While that fails, each request fails, and the
/// next one begins again.
///
/// One attempt to open is shared by all requests that come meanwhile, and goes on when they are
/// dropped: it may take longer than the engine waits for one response.
pub(crate) struct Lazy {
    url: Url,
    /// What is promised before the server is known.
    provisional: Info,
    opened: Arc<OnceLock<Arc<dyn Backend>>>,
    opening: Mutex<Option<watch::Receiver<Option<Outcome>>>>,
}

/// How an attempt to open has ended.
type Outcome = Result<Arc<dyn Backend>>;

impl Lazy {
    /// # Errors
    ///
    /// `Invalid` for an unknown scheme, `Unsupported` if the backend is not built in.
    pub(crate) fn new(url: Url) -> Result<Lazy> {
        let provisional = Info { modes: Modes::ALL, ..Info::new(backends::name(&url)?) };
        Ok(Lazy { url, provisional, opened: Arc::default(), opening: Mutex::default() })
    }

    /// The backend; opens it if no other request has.
    async fn backend(&self) -> Outcome {
        if let Some(backend) = self.opened.get() {
            return Ok(backend.clone());
        }
        let mut opening = self.join();
        let outcome = match opening.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone(),
            // The task has panicked, or its runtime has ended.
            Err(_) => None,
        };
        let aborted = || Err(Error::new(ErrorKind::Unavailable, "connecting was broken off"));
        outcome.unwrap_or_else(aborted).map_err(|error| {
            let message = format!("not connected yet: {error}");
            Error::new(error.kind(), message).with_source(error)
        })
    }

    /// The attempt that is under way; begins one if there is none.
    fn join(&self) -> watch::Receiver<Option<Outcome>> {
        let mut current = self.opening.lock();
        let is_under_way = |opening: &&watch::Receiver<Option<Outcome>>| {
            opening.borrow().is_none() && opening.has_changed().is_ok()
        };
        if let Some(opening) = current.as_ref().filter(is_under_way) {
            return opening.clone();
        }
        let (sender, opening) = watch::channel(None);
        let (url, opened) = (self.url.clone(), self.opened.clone());
        // On the client's own runtime, on which every call of a backend is made.
        tokio::spawn(async move {
            let outcome = backends::open(url).await;
            if let Ok(backend) = &outcome {
                let _is_the_first = opened.set(backend.clone());
            }
            sender.send_replace(Some(outcome));
        });
        current.insert(opening).clone()
    }
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.opened.get() {
            Some(backend) => backend.fmt(f),
            None => write!(f, "{:?}, not connected yet", self.url),
        }
    }
}

#[async_trait]
impl Backend for Lazy {
    fn info(&self) -> Info {
        self.opened.get().map_or_else(|| self.provisional.clone(), |backend| backend.info())
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let backend = self.backend().await?;
        // The client could not know bounds and modes when it made the claim.
        let info = backend.info();
        info.check_ttl(claim.ttl)?;
        info.check_mode(claim.mode)?;
        backend.try_acquire(claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        match self.backend().await {
            Ok(backend) => {
                let min_ttl = backend.info().min_ttl;
                // What is left of a fixed lease may be less than the server keeps.
                let raised = |claim: &Claim| Claim { ttl: claim.ttl.max(min_ttl), ..claim.clone() };
                let claims: Vec<_> = claims.iter().map(raised).collect();
                backend.renew(&claims).await
            }
            Err(error) => vec![Err(error); claims.len()],
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        match self.opened.get() {
            Some(backend) => backend.release(claim).await,
            // No request was ever sent, so that there is nothing to release.
            None => Ok(false),
        }
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        match self.opened.get() {
            Some(backend) => backend.until_free(claim).await,
            None => std::future::pending().await,
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        match self.opened.get() {
            Some(backend) => backend.until_lost(claim).await,
            None => std::future::pending().await,
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.backend().await?.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.backend().await?.evict(key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.backend().await?.doctor().await
    }
}
