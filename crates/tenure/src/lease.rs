//! The holder's view of its lock, for every task that works under it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::{Lost, Mode};
use crate::engine::lease_state::LeaseState;
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// A view of a held lock: cheap to clone. It does not keep the lock: that ends with its
/// [`Guard`](crate::Guard), and afterwards every view returns [`Lost`] with reason `Released`.
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
    state: Arc<LeaseState>,
}

impl Lease {
    pub(crate) fn new(state: Arc<LeaseState>) -> Lease {
        Lease { state }
    }

    pub(crate) fn state(&self) -> &Arc<LeaseState> {
        &self.state
    }

    /// Key of the lock.
    pub fn key(&self) -> &Key {
        &self.state.key
    }

    /// How the key is held: a lock that was [downgraded](crate::Guard::downgrade) counts as shared
    /// from the call on.
    pub fn mode(&self) -> Mode {
        self.state.mode()
    }

    /// The token to show to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.state.token
    }

    /// The time left, by the client's own clock and without a request: usable as a timeout for the
    /// next call to the resource.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock is no longer held.
    #[doc(alias("is_held", "is_valid", "remaining"))]
    pub fn check(&self) -> Result<Duration, Lost> {
        self.state.check()
    }

    /// Returns when the lock is no longer held, and says why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let state = self.state.clone();
        async move { state.lost().await }
    }

    /// Ready when [`Client::shutdown`](crate::Client::shutdown) has begun: the work should come to
    /// its end now and release the lock, which it still holds for the grace that the shutdown
    /// gives. Never ready if the client is not shut down. The lock itself may be released or lost
    /// before.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use std::time::Duration;
    ///
    /// let locks = tenure::connect("memory:").await?;
    /// let guard = locks.lock("leader").acquire().await?;
    /// let leader = tokio::spawn(async move {
    ///     guard.closing().await;
    ///     guard.release().await
    /// });
    /// locks.shutdown(Duration::from_secs(60)).await?; // takes no time
    /// leader.await.unwrap()?;
    /// # Ok(()) }
    /// ```
    #[doc(alias("shutdown", "cancelled", "cancellation_token"))]
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = self.state.clone();
        async move { state.closing().await }
    }

    /// Whether [`Client::shutdown`](crate::Client::shutdown) has begun: for loops of blocking work,
    /// beside [`check`](Lease::check).
    pub fn is_closing(&self) -> bool {
        self.state.is_closing()
    }

    /// Runs the work for as long as the lock is held; the work is dropped at its next await when
    /// the lock is lost. A shutdown of the client does not drop it before its grace is over: work
    /// that has no end of its own awaits [`closing`](Lease::closing).
    ///
    /// The clock is read before every poll of the work and once after it ended, so that a process
    /// that was stopped past its lease does not run on for even one step. It cannot stop code that
    /// blocks.
    ///
    /// # Errors
    ///
    /// [`Lost`], also if the work had just finished: its last step may have come too late. It
    /// becomes an [`Error`](crate::Error) of kind `Lost` where `?` converts to one, and stays a
    /// [`Lost`] in a boxed error: [`ErrorKind::of`](crate::ErrorKind::of) finds both.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe** as far as the work is: dropping the future drops the work.
    pub fn while_held<W: Future>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<W::Output, Lost>> + use<W> {
        let state = self.state.clone();
        async move {
            let mut work = pin!(work);
            let mut lost = pin!(state.lost());
            poll_fn(|context| {
                if let Err(lost) = state.check() {
                    return Poll::Ready(Err(lost));
                }
                if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                    return Poll::Ready(Err(lost));
                }
                let output = std::task::ready!(work.as_mut().poll(context));
                Poll::Ready(state.check().map(|_| output))
            })
            .await
        }
    }
}
