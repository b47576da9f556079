//! The holder's view of its lock, to be handed to everyone who works under it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::claim::Lost;
use crate::error::Result;
use crate::held::Held;
use crate::key::Key;
use crate::token::FencingToken;

/// A view of a held lock: cheap to clone, and it keeps nothing. The lock lives as long as its
/// [`Guard`](crate::Guard); afterwards every view says [`Lost`] with reason `Released`.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// let lease = guard.lease().clone();
/// let part = tokio::spawn(async move { lease.check().map(|_| lease.token()) });
/// assert_eq!(part.await.unwrap()?, guard.token());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Lease {
    held: Arc<Held>,
}

impl Lease {
    pub(crate) fn new(held: Arc<Held>) -> Lease {
        Lease { held }
    }

    pub(crate) fn held(&self) -> &Arc<Held> {
        &self.held
    }

    /// What is held.
    pub fn key(&self) -> &Key {
        &self.held.key
    }

    /// The token to show to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.held.token
    }

    /// The time left, by our own clock and without asking anybody: usable as a timeout for the next
    /// call to the resource.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock is no longer ours.
    pub fn check(&self) -> Result<Duration, Lost> {
        self.held.check()
    }

    /// Returns when the lock is no longer ours, and says why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let held = self.held.clone();
        async move { held.lost().await }
    }

    /// Does the work for as long as the lock is held: dropped at its next await when the lock is
    /// lost.
    ///
    /// The clock is read before every poll of the work and once after it ended, so that a process
    /// that was stopped past its lease does not run on for even one step. It cannot stop code that
    /// blocks.
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
        let held = self.held.clone();
        async move {
            let mut work = pin!(work);
            let mut lost = pin!(held.lost());
            poll_fn(|context| {
                if let Err(lost) = held.check() {
                    return Poll::Ready(Err(lost));
                }
                if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                    return Poll::Ready(Err(lost));
                }
                let output = std::task::ready!(work.as_mut().poll(context));
                Poll::Ready(held.check().map(|_| output))
            })
            .await
        }
    }
}
