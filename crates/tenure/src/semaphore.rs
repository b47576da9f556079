//! A semaphore: at most so many permits are out together, over all clients.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Busy, Lost, Mode};
use crate::engine::ClientRef;
use crate::error::Result;
use crate::guard::Guard;
use crate::lease::Lease;
use crate::lock::Lock;

/// A semaphore: handle and builder in one, as [`Lock`] is. At most `limit` permits are out
/// together, over all clients that use the key. A request for several permits gets all of them or
/// none, and is not passed by later requests for fewer.
///
/// The limit is what each request states; nothing is stored. To change it, state another one: a
/// raised limit is seen by waiters with their next request (after a third of the ttl at most), a
/// lowered one ends no permit that is out. While programs state different limits, no grant makes
/// the sum exceed the limit that its own program stated.
///
/// A key is a lock or a semaphore, not both.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let api = locks.semaphore("partner-api", 5);
/// let four = api.clone().permits(4).acquire().await?;
/// let one = api.acquire().await?;
/// assert!(api.try_acquire().await?.granted().is_err());
/// four.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    lock: Lock,
    take: u32,
    limit: u32,
}

impl Semaphore {
    pub(crate) fn new(lock: Lock, limit: u32) -> Semaphore {
        Semaphore { lock, take: 1, limit }
    }

    /// How many permits one request takes: 1 unless set. They come and go together.
    pub fn permits(self, take: u32) -> Semaphore {
        Semaphore { take, ..self }
    }

    /// How long the server keeps the permits without a renewal. See [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> Semaphore {
        Semaphore { lock: self.lock.ttl(ttl), ..self }
    }

    /// The longest that permits may be held. See [`Lock::max_hold`].
    pub fn max_hold(self, limit: Duration) -> Semaphore {
        Semaphore { lock: self.lock.max_hold(limit), ..self }
    }

    /// A fixed lease: the permits end after their ttl, whatever happens.
    pub fn without_renewal(self) -> Semaphore {
        Semaphore { lock: self.lock.without_renewal(), ..self }
    }

    /// Free text that other clients and operators see beside the holder.
    pub fn note(self, note: impl Into<String>) -> Semaphore {
        Semaphore { lock: self.lock.note(note), ..self }
    }

    /// Called with every busy response. It must not block.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Semaphore {
        Semaphore { lock: self.lock.on_busy(f), ..self }
    }

    /// Acquires the permits and waits for as long as they are out.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`]; also `Invalid` if more permits are requested than there are, and
    /// `Unsupported` where the server has no semaphores.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn acquire(&self) -> impl Future<Output = Result<Permit>> + Send + use<> {
        let lock = self.lock();
        async move { Ok(Permit { guard: lock?.acquire().await? }) }
    }

    /// Acquires the permits, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire) and [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn acquire_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Attempt<Permit>>> + Send + use<> {
        let lock = self.lock();
        async move { Ok(lock?.acquire_within(timeout).await?.map(|guard| Permit { guard })) }
    }

    /// Acquires the permits if they are free, and no other client waits.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Semaphore::acquire) and [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<Permit>>> + Send + use<> {
        let lock = self.lock();
        async move { Ok(lock?.try_acquire().await?.map(|guard| Permit { guard })) }
    }

    /// The lock behind it, whose claims are for permits.
    pub(crate) fn lock(&self) -> Result<Lock> {
        Ok(self.lock.clone().with_mode(Mode::permits(self.take, self.limit)?))
    }
}

/// Held permits of a [`Semaphore`]. They are renewed in the background, and returned when this
/// value is released or dropped. There is no fencing token: several permits are out at once, and a
/// resource cannot tell the stale ones among them.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let permit = locks.semaphore("partner-api", 5).acquire().await?;
/// let sum = permit.while_held(async { 1 + 1 }).await?;
/// assert_eq!((sum, permit.permits()), (2, 1));
/// permit.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "permits are returned as soon as this value is dropped"]
pub struct Permit {
    guard: Guard,
}

impl Permit {
    /// How many permits these are.
    pub fn permits(&self) -> u32 {
        self.guard.mode().weight()
    }

    pub(crate) fn client_ref(&self) -> &Arc<ClientRef> {
        self.guard.client_ref()
    }

    /// The time left, by the client's own clock and without a request.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the permits are no longer held.
    pub fn check(&self) -> Result<Duration, Lost> {
        self.guard.check()
    }

    /// A view of the permits, for other tasks that work under them. Its token is only for `evict`.
    pub fn lease(&self) -> &Lease {
        self.guard.lease()
    }

    /// Returns when the permits are no longer held, and says why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.guard.lost()
    }

    /// Runs the work for as long as the permits are held. See [`Lease::while_held`].
    ///
    /// # Errors
    ///
    /// [`Lost`], also if the work had just finished.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe** as far as the work is: dropping the future drops the work.
    pub fn while_held<W: Future>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<W::Output, Lost>> + use<W> {
        self.guard.while_held(work)
    }

    /// Returns the permits and waits until the server has confirmed it.
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future leaves the release to the background.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}
