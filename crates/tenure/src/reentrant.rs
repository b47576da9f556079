//! Re-entry, asked for by name: one call chain takes the same lock again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::claim::Attempt;
use crate::error::Result;
use crate::guard::{Grip, Guard};
use crate::lock::Lock;

/// A handle through which one call chain can take a lock again while it has it: that succeeds at
/// once, keeps the token, and counts on the client; the server sees one holder, and the last
/// release frees.
///
/// It is not `Clone` and its verbs take `&mut self`, so that two tasks cannot enter together.
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
    held: Weak<Grip>,
}

impl Reentrant {
    pub(crate) fn new(lock: Lock) -> Reentrant {
        Reentrant { lock, held: Weak::new() }
    }

    /// Takes the lock, or takes it again. See [`Lock::acquire`].
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`]; and `Lost` if the lock that an outer guard stands for is gone.
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

    /// Takes the lock, or takes it again, waiting at most this long. See [`Lock::acquire_within`].
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Reentrant::acquire).
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`Lock::acquire`].
    pub async fn acquire_within(&mut self, patience: Duration) -> Result<Attempt<Guard>> {
        if let Some(again) = self.again()? {
            return Ok(Attempt::Granted(again));
        }
        let attempt = self.lock.acquire_within(patience).await?;
        Ok(attempt.map(|guard| self.remember(guard)))
    }

    /// Takes the lock if it is free or ours. See [`Lock::try_acquire`].
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

    /// Another guard of what an outer one holds. Looks at the lease first: an outer guard whose
    /// lock is gone must not let anybody in.
    fn again(&self) -> Result<Option<Guard>> {
        let Some(grip) = self.held.upgrade() else { return Ok(None) };
        let guard = Guard::new(grip, self.lock.client().user().clone());
        guard.check()?;
        Ok(Some(guard))
    }

    fn remember(&mut self, guard: Guard) -> Guard {
        self.held = Arc::downgrade(guard.grip());
        guard
    }
}
