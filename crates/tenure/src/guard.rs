//! The guard: a held lock as a value.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Lost, Mode};
use crate::engine::ClientRef;
use crate::engine::downgrade::downgrade;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease::Lease;
use crate::token::FencingToken;

/// A held lock. It belongs to the owner of this value, moves between tasks and threads, and is
/// renewed in the background until it is released or dropped.
///
/// Dropping it releases the lock as well: the release is sent in the background and not awaited.
/// Call [`release`](Guard::release) to wait for it and to learn whether the lock was still yours.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let sum = guard.while_held(async { 1 + 1 }).await?;
/// assert_eq!(sum, 2);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    // Before `client_ref`: the release has to be under way when the last handle is dropped.
    hold: Arc<GuardInner>,
    client_ref: Arc<ClientRef>,
}

impl Guard {
    pub(crate) fn new(hold: Arc<GuardInner>, client_ref: Arc<ClientRef>) -> Guard {
        Guard { hold, client_ref }
    }

    pub(crate) fn hold(&self) -> &Arc<GuardInner> {
        &self.hold
    }

    pub(crate) fn client_ref(&self) -> &Arc<ClientRef> {
        &self.client_ref
    }

    /// A view of this lock, for other tasks that work under it.
    #[doc(alias = "clone")]
    pub fn lease(&self) -> &Lease {
        &self.hold.lease
    }

    /// Key of the lock.
    pub fn key(&self) -> &Key {
        self.lease().key()
    }

    /// How the key is held. See [`Lease::mode`].
    pub fn mode(&self) -> Mode {
        self.lease().mode()
    }

    /// The token to show to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.lease().token()
    }

    /// The time left, by the client's own clock and without a request: usable as a timeout for the
    /// next call to the resource.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock is no longer held.
    #[doc(alias("is_held", "is_valid", "remaining"))]
    pub fn check(&self) -> Result<Duration, Lost> {
        self.lease().check()
    }

    /// Returns when the lock is no longer held, and says why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.lease().lost()
    }

    /// Runs the work for as long as the lock is held; the work is dropped at its next await when
    /// the lock is lost. See [`Lease::while_held`].
    ///
    /// # Errors
    ///
    /// [`Lost`], also if the work had just finished: its last step may have come too late.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe** as far as the work is: dropping the future drops the work.
    pub fn while_held<W: Future>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<W::Output, Lost>> + use<W> {
        self.lease().while_held(work)
    }

    /// Ready when [`Client::shutdown`](crate::Client::shutdown) has begun. See [`Lease::closing`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        self.lease().closing()
    }

    /// Makes an exclusive lock shared, without letting it go: no writer comes in between, and
    /// readers that wait at the head of the queue are let in. The token stays. A shared lock stays
    /// as it is.
    ///
    /// From the call on the lock counts as shared, also after an error: the server may have let
    /// readers in. The call can be repeated.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// let locks = tenure::connect("memory:").await?;
    /// let mut writer = locks.lock("config").acquire().await?;
    /// // … write …
    /// writer.downgrade().await?;
    /// let reader = locks.lock("config").shared().acquire().await?; // beside the first
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// `Lost` if it was lost before. `Unavailable` if the server did not confirm for as long as the
    /// ttl. `Invalid` for permits, and for a re-entrant lock that another guard of the same handle
    /// holds too. `Unsupported` where the server has no shared locks.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Once polled, the downgrade goes on in the background.
    pub async fn downgrade(&mut self) -> Result<()> {
        if Arc::strong_count(&self.hold) > 1 {
            let message = "another guard of this re-entrant handle holds the lock exclusively";
            return Err(Error::invalid(message));
        }
        downgrade(&self.client_ref.inner, self.lease().state()).await
    }

    /// Releases the lock and waits until the server has confirmed it.
    ///
    /// Of the guards of one [`Reentrant`](crate::Reentrant) handle only the last one frees the
    /// lock.
    ///
    /// # Errors
    ///
    /// `Lost` if it was lost before: then the work may have overlapped with another holder's.
    /// `Unavailable` if the server did not confirm: the release goes on in the background, and the
    /// lease ends in any case. `Closed` in a child of `fork`: the lock is the parent's.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future leaves the effect to the background: the release still
    /// happens.
    #[doc(alias = "unlock")]
    pub async fn release(self) -> Result<()> {
        if let Err(error) = self.client_ref.inner.executor.check() {
            // In a child of `fork` the lock is the parent's. The guard is not dropped either: that
            // would tell observers of a release.
            std::mem::forget(self);
            return Err(error);
        }
        let Guard { hold, client_ref } = self;
        let lease = hold.lease.clone();
        let result = match Arc::into_inner(hold) {
            Some(hold) => hold.release().await,
            // An outer guard goes on holding, if there is still something to hold.
            None => lease.check().map(drop).map_err(Error::from),
        };
        drop(client_ref);
        result
    }
}
