//! A mutex and a condition variable without poison.
//!
//! The locks of this crate guard plain data that no critical section leaves half-changed: a thread
//! that panicked elsewhere must not turn every later call of the client into a panic as well. So
//! the poison flag of the standard library carries no information here, and is ignored in one
//! place.

use std::sync::{self, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

/// A mutex whose lock is always granted, also after a panic under it.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    pub(crate) fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock, if no thread has it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Without locking: the caller is the only user.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for guards of [`Mutex`].
#[derive(Debug, Default)]
pub(crate) struct Condvar(sync::Condvar);

impl Condvar {
    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Blocks until notified, or for no reason.
    pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while the condition holds, but not for longer than `limit`.
    pub(crate) fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout_while(guard, limit, condition);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_under_the_lock_does_not_lock_others_out() {
        let mutex = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let mut value = mutex.lock();
            *value = 2;
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
        assert_eq!(*mutex.lock(), 2);
    }

    #[test]
    fn a_bounded_wait_ends() {
        let mutex = Mutex::new(());
        let condvar = Condvar::default();
        drop(condvar.wait_timeout_while(mutex.lock(), Duration::from_millis(1), |()| true));
    }
}
