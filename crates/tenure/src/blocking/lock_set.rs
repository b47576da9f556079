//! Several locks that are held together, without async.

use std::time::Duration;

use super::{Lock, Semaphore, call_when_lost, wait};
use crate::backend::{Attempt, Busy, Lost};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::lease::Lease;
use crate::token::FencingToken;

/// Several locks of one client that are acquired together, all of them or none. See
/// [`tenure::LockSet`](crate::LockSet).
///
/// # Examples
///
/// ```
/// use tenure::blocking::LockSet;
///
/// let locks = tenure::blocking::connect("memory:")?;
/// let set = LockSet::from(locks.lock("accounts/7")).and(locks.lock("rates").shared());
/// let held = set.acquire()?;
/// held.check()?;
/// held.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a set of locks does nothing until it is acquired"]
pub struct LockSet(pub(super) crate::LockSet);

impl LockSet {
    /// Adds a lock, a semaphore or another set, of the same client.
    pub fn and(self, other: impl Into<LockSet>) -> LockSet {
        LockSet(self.0.and(other.into().0))
    }

    /// How long the server keeps each lock without a renewal.
    pub fn ttl(self, ttl: Duration) -> LockSet {
        LockSet(self.0.ttl(ttl))
    }

    /// How often each lease is renewed: every third of the ttl unless set.
    pub fn renew_every(self, interval: Duration) -> LockSet {
        LockSet(self.0.renew_every(interval))
    }

    /// The longest that each lock may be held.
    pub fn max_hold(self, limit: Duration) -> LockSet {
        LockSet(self.0.max_hold(limit))
    }

    /// Free text that other clients and operators see beside the holder of each lock.
    pub fn note(self, note: impl Into<String>) -> LockSet {
        LockSet(self.0.note(note))
    }

    /// Called with every busy response, on the client's own thread.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> LockSet {
        LockSet(self.0.on_busy(f))
    }

    /// Acquires all locks, and waits for as long as one of them is busy.
    ///
    /// # Errors
    ///
    /// As for [`LockSet::acquire`](crate::LockSet::acquire).
    pub fn acquire(&self) -> Result<GuardSet> {
        self.check_process()?;
        wait(self.0.acquire()).map(GuardSet)
    }

    /// Acquires all locks, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`LockSet::acquire_within`](crate::LockSet::acquire_within).
    pub fn acquire_within(&self, timeout: Duration) -> Result<Attempt<GuardSet>> {
        self.check_process()?;
        Ok(wait(self.0.acquire_within(timeout))?.map(GuardSet))
    }

    /// Acquires all locks if all of them are free.
    ///
    /// # Errors
    ///
    /// As for [`LockSet::try_acquire`](crate::LockSet::try_acquire).
    pub fn try_acquire(&self) -> Result<Attempt<GuardSet>> {
        self.check_process()?;
        Ok(wait(self.0.try_acquire())?.map(GuardSet))
    }

    fn check_process(&self) -> Result<()> {
        self.0.client().map_or(Ok(()), |client| client.inner().executor.check())
    }
}

impl From<Lock> for LockSet {
    fn from(lock: Lock) -> LockSet {
        LockSet(lock.0.into())
    }
}

impl From<Semaphore> for LockSet {
    fn from(semaphore: Semaphore) -> LockSet {
        LockSet(semaphore.0.into())
    }
}

impl<T: Into<LockSet>> FromIterator<T> for LockSet {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> LockSet {
        LockSet(members.into_iter().map(|member| member.into().0).collect())
    }
}

/// The held locks of a [`LockSet`]: the loss of one is the loss of the set. See
/// [`tenure::GuardSet`](crate::GuardSet).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let both = locks.lock_all(["a", "b"]).acquire()?;
/// assert_ne!(both.token("a")?, both.token("b")?);
/// both.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the locks are released as soon as this value is dropped"]
pub struct GuardSet(crate::GuardSet);

impl GuardSet {
    /// A view of each lock, in the order of the keys.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.0.leases()
    }

    /// The token of the lock with this key.
    ///
    /// # Errors
    ///
    /// As for [`GuardSet::token`](crate::GuardSet::token).
    pub fn token<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Result<FencingToken> {
        self.0.token(key)
    }

    /// The least time left of all locks, by the client's own clock and without a request.
    ///
    /// # Errors
    ///
    /// [`Lost`] if one of them is no longer held.
    #[doc(alias("is_held", "is_valid"))]
    pub fn check(&self) -> Result<Duration, Lost> {
        self.0.check()
    }

    /// Calls this function, on a thread of its own, if one of the locks is lost. A release is not a
    /// loss.
    pub fn on_lost(&self, f: impl FnOnce(&Lost) + Send + 'static) {
        call_when_lost(self.0.client_ref(), self.0.lost(), f);
    }

    /// Releases all locks and waits until the server has confirmed it.
    ///
    /// # Errors
    ///
    /// As for [`GuardSet::release`](crate::GuardSet::release).
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<()> {
        wait(self.0.release())
    }
}
