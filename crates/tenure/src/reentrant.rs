//! Re-entrant acquire, on request: one call chain acquires a lock again that it holds.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::backend::Attempt;
use crate::engine::guard_inner::GuardInner;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lock::Lock;

/// A handle through which one call chain can acquire a lock again while it holds it. That succeeds
/// at once and keeps the token. The client counts the guards: the server sees one holder, and the
/// release of the last guard frees the lock.
///
/// It is not `Clone` and its methods take `&mut self`, so that two tasks cannot enter together.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let mut lock = locks.lock("orders/42").reentrant();
/// let outer = lock.acquire().await?;
/// let inner = lock.acquire().await?;
/// assert_eq!(inner.token(), outer.token());
/// inner.release().await?;
/// assert!(outer.check().is_ok());
/// outer.release().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Reentrant {
    lock: Lock,
    hold: Weak<GuardInner>,
}

impl Reentrant {
    pub(crate) fn new(lock: Lock) -> Reentrant {
        Reentrant { lock, hold: Weak::new() }
    }

    /// Acquires the lock, or enters it again. See [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`]; and `Lost` if the lock of an outer guard is lost.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub async fn acquire(&mut self) -> Result<Guard> {
        if let Some(again) = self.again()? {
            return Ok(again);
        }
        let guard = self.lock.acquire().await?;
        Ok(self.remember(guard))
    }

    /// Acquires the lock, waiting at most for `timeout`, or enters it again. See
    /// [`Lock::acquire_within`].
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Reentrant::acquire).
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub async fn acquire_within(&mut self, timeout: Duration) -> Result<Attempt<Guard>> {
        if let Some(again) = self.again()? {
            return Ok(Attempt::Granted(again));
        }
        let attempt = self.lock.acquire_within(timeout).await?;
        Ok(attempt.map(|guard| self.remember(guard)))
    }

    /// Acquires the lock if it is free, or enters it again. See [`Lock::try_acquire`].
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Reentrant::acquire).
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub async fn try_acquire(&mut self) -> Result<Attempt<Guard>> {
        if let Some(again) = self.again()? {
            return Ok(Attempt::Granted(again));
        }
        let attempt = self.lock.try_acquire().await?;
        Ok(attempt.map(|guard| self.remember(guard)))
    }

    /// Another guard of the hold of an outer one. Checks the lease first: an outer guard whose lock
    /// is lost must not let the caller enter.
    fn again(&self) -> Result<Option<Guard>> {
        let Some(hold) = self.hold.upgrade() else { return Ok(None) };
        let guard = Guard::new(hold, self.lock.client().client_ref().clone());
        guard.check()?;
        if guard.mode() != self.lock.mode() {
            let message = "the lock was downgraded by an outer guard, which must be released first";
            return Err(Error::invalid(message));
        }
        Ok(Some(guard))
    }

    fn remember(&mut self, guard: Guard) -> Guard {
        self.hold = Arc::downgrade(guard.hold());
        guard
    }
}
