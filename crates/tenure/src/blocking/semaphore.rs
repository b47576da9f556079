//! A semaphore without async.

use std::time::Duration;

use super::{call_when_lost, wait};
use crate::backend::{Attempt, Busy, Lost};
use crate::error::Result;
use crate::lease::Lease;

/// A semaphore: at most so many permits are out together. See
/// [`tenure::Semaphore`](crate::Semaphore).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let api = locks.semaphore("partner-api", 5);
/// let four = api.clone().permits(4).acquire()?;
/// let one = api.acquire()?;
/// assert!(api.try_acquire()?.granted().is_err());
/// four.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore(pub(super) crate::Semaphore);

impl Semaphore {
    /// How many permits one request takes: 1 unless set. They come and go together.
    pub fn permits(self, take: u32) -> Semaphore {
        Semaphore(self.0.permits(take))
    }

    /// How long the server keeps the permits without a renewal.
    pub fn ttl(self, ttl: Duration) -> Semaphore {
        Semaphore(self.0.ttl(ttl))
    }

    /// The longest that permits may be held.
    pub fn max_hold(self, limit: Duration) -> Semaphore {
        Semaphore(self.0.max_hold(limit))
    }

    /// A fixed lease: the permits end after their ttl, whatever happens.
    pub fn without_renewal(self) -> Semaphore {
        Semaphore(self.0.without_renewal())
    }

    /// Free text that other clients and operators see beside the holder.
    pub fn note(self, note: impl Into<String>) -> Semaphore {
        Semaphore(self.0.note(note))
    }

    /// Called with every busy response, on the client's own thread.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Semaphore {
        Semaphore(self.0.on_busy(f))
    }

    /// Acquires the permits and waits for as long as they are out.
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::acquire`](crate::Semaphore::acquire).
    pub fn acquire(&self) -> Result<Permit> {
        self.check_process()?;
        wait(self.0.acquire()).map(Permit)
    }

    /// Acquires the permits, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::acquire_within`](crate::Semaphore::acquire_within).
    pub fn acquire_within(&self, timeout: Duration) -> Result<Attempt<Permit>> {
        self.check_process()?;
        Ok(wait(self.0.acquire_within(timeout))?.map(Permit))
    }

    /// Acquires the permits if they are free, and no other client waits.
    ///
    /// # Errors
    ///
    /// As for [`Semaphore::try_acquire`](crate::Semaphore::try_acquire).
    pub fn try_acquire(&self) -> Result<Attempt<Permit>> {
        self.check_process()?;
        Ok(wait(self.0.try_acquire())?.map(Permit))
    }

    fn check_process(&self) -> Result<()> {
        self.0.lock()?.client().inner().executor.check()
    }
}

/// Held permits, renewed in the background. See [`tenure::Permit`](crate::Permit).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let permit = locks.semaphore("partner-api", 5).permits(2).acquire()?;
/// assert_eq!(permit.permits(), 2);
/// permit.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "permits are returned as soon as this value is dropped"]
pub struct Permit(crate::Permit);

impl Permit {
    /// How many permits these are.
    pub fn permits(&self) -> u32 {
        self.0.permits()
    }

    /// A view of the permits, for other threads that work under them.
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// The time left, by the client's own clock and without a request.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the permits are no longer held.
    pub fn check(&self) -> Result<Duration, Lost> {
        self.0.check()
    }

    /// Calls this function, on a thread of its own, if the permits are lost. A release is not a
    /// loss.
    pub fn on_lost(&self, f: impl FnOnce(&Lost) + Send + 'static) {
        call_when_lost(self.0.client_ref(), self.0.lost(), f);
    }

    /// Returns the permits and waits until the server has confirmed it.
    ///
    /// # Errors
    ///
    /// As for [`Permit::release`](crate::Permit::release).
    pub fn release(self) -> Result<()> {
        wait(self.0.release())
    }
}
