//! The lock as a value: who has the guard has the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::{Lost, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::janitor::{Janitor, Pending};
use crate::key::Key;
use crate::lease::Lease;
use crate::observe::Event;
use crate::shared::{Shared, User};
use crate::token::FencingToken;

/// A held lock. It belongs to whoever has this value, moves between tasks and threads, and is
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
    // Before `user`: the release has to be under way when the last handle of the client goes.
    grip: Arc<Grip>,
    user: Arc<User>,
}

impl Guard {
    pub(crate) fn new(grip: Arc<Grip>, user: Arc<User>) -> Guard {
        Guard { grip, user }
    }

    pub(crate) fn grip(&self) -> &Arc<Grip> {
        &self.grip
    }

    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// A view of this lock for others who work under it.
    pub fn lease(&self) -> &Lease {
        &self.grip.lease
    }

    /// What is held.
    pub fn key(&self) -> &Key {
        self.lease().key()
    }

    /// The token to show to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.lease().token()
    }

    /// The time left, by our own clock and without asking anybody: usable as a timeout for the next
    /// call to the resource.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock is no longer ours.
    pub fn check(&self) -> Result<Duration, Lost> {
        self.lease().check()
    }

    /// Returns when the lock is no longer ours, and says why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.lease().lost()
    }

    /// Does the work for as long as the lock is held: dropped at its next await when the lock is
    /// lost. See [`Lease::while_held`].
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

    /// Gives the lock back and waits until the server has confirmed it.
    ///
    /// Of the guards of one [`Reentrant`](crate::Reentrant) handle only the last one frees the
    /// lock.
    ///
    /// # Errors
    ///
    /// `Lost` if it was gone before: then the work may have overlapped with another holder's.
    /// `Unavailable` if the server did not confirm: the release goes on in the background, and the
    /// lease ends in any case. `Closed` in a child of `fork`: the lock is the parent's.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future leaves the effect to the background: the release still
    /// happens.
    pub async fn release(self) -> Result<()> {
        if let Err(error) = self.user.shared.home.check() {
            // In a child of `fork` the lock is the parent's. Not even dropped: that would tell
            // observers of a release.
            std::mem::forget(self);
            return Err(error);
        }
        let Guard { grip, user } = self;
        let lease = grip.lease.clone();
        let result = match Arc::into_inner(grip) {
            Some(grip) => grip.release().await,
            // An outer guard goes on holding, if there is still something to hold.
            None => lease.check().map(drop).map_err(Error::from),
        };
        drop(user);
        result
    }
}

/// The hold itself, which ends when it is dropped. Re-entrant guards share one.
#[derive(Debug)]
pub(crate) struct Grip {
    lease: Lease,
    shared: Arc<Shared>,
}

impl Grip {
    pub(crate) fn new(lease: Lease, shared: Arc<Shared>) -> Grip {
        Grip { lease, shared }
    }

    async fn release(self) -> Result<()> {
        let (held, shared) = (self.lease.held().clone(), self.shared.clone());
        // Look at the clock first: a lease that has ended is lost whatever the server still thinks.
        let ended = held.over_by(shared.clock.now());
        let pending = shared.janitor.begin(held.key.clone());
        if let Err(reason) = ended.map_or_else(|| held.finish(LostReason::Released), Err) {
            return Err(held.lost_by(reason).into());
        }
        self.forget();
        let answer = Janitor::release(&shared, held.claim.clone(), pending).await;
        match answer {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false)) => Err(held.lost_by(held.likely_reason()).into()),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Closed, "the client was shut down meanwhile")),
        }
    }

    /// Releases without an answer, under somebody's pending.
    pub(crate) fn give_back(self, pending: Pending) {
        let held = self.lease.held();
        if held.finish(LostReason::Released).is_ok() {
            self.forget();
            Janitor::withdraw(&self.shared, held.claim.clone(), pending);
        }
    }

    fn forget(&self) {
        let (held, shared) = (self.lease.held(), &self.shared);
        shared.keeper.forget(held);
        let (key, token) = (held.key.clone(), held.token);
        let spent = shared.clock.now().since(held.since);
        shared.observers.tell(|| Event::Released { key, token, held: spent });
    }
}

impl Drop for Grip {
    fn drop(&mut self) {
        let held = self.lease.held();
        if held.finish(LostReason::Released).is_ok() {
            self.forget();
            // Nobody waits for the answer; the janitor sees it through.
            let pending = self.shared.janitor.begin(held.key.clone());
            Janitor::withdraw(&self.shared, held.claim.clone(), pending);
        }
    }
}
