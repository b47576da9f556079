//! When the lease of the held locks ends, as this process sees it, and the moments before its end
//! at which it has to be given up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tenure::{GuardSet, Lease};

use super::clock::{self, Moment};
use super::reporter::{Loss, LossText};

/// The end of the lease of the held locks: of several the first.
pub(super) struct LeaseEnd<'a> {
    held: &'a GuardSet,
    deadline: &'static AtomicU64,
    end: Moment,
    /// The longest time left that was ever read: the ttl, whichever of flag, URL and default set
    /// it.
    ttl: Duration,
}

impl<'a> LeaseEnd<'a> {
    /// Reads the lease and publishes the launcher's deadline.
    pub(super) fn new(held: &'a GuardSet, deadline: &'static AtomicU64) -> LeaseEnd<'a> {
        let mut lease = LeaseEnd { held, deadline, end: clock::now(), ttl: Duration::ZERO };
        lease.read();
        lease
    }

    /// Reads the end of the lease and publishes the launcher's deadline. Returns the loss if a lock
    /// is lost.
    pub(super) fn read(&mut self) -> Option<Loss> {
        match self.held.check() {
            Ok(left) => {
                self.ttl = self.ttl.max(left);
                self.end = clock::now() + left;
                let at = self.end.saturating_sub(self.ttl / 12).as_nanos();
                self.deadline.store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Release);
                None
            }
            Err(lost) => Some(lost.into()),
        }
    }

    /// The loss of the lock whose lease ends first: it could not be renewed.
    pub(super) fn not_renewed(&self) -> Loss {
        let left = |lease: &&Lease| lease.check().unwrap_or_default();
        Loss::new(self.held.leases().min_by_key(left), LossText::NOT_RENEWED)
    }

    /// When a lease that was not renewed is given up.
    pub(super) fn give_up_at(&self) -> Moment {
        self.end.saturating_sub(self.ttl / 4)
    }

    /// When every process that works under the lock has to be dead.
    pub(super) fn kill_at(&self) -> Moment {
        self.end.saturating_sub(self.ttl / 10)
    }
}
