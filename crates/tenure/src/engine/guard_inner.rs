//! The hold behind one or more guards: released when the last of them is released or dropped.

use std::sync::Arc;

use crate::backend::LostReason;
use crate::engine::ClientInner;
use crate::engine::releaser::{Pending, Releaser};
use crate::error::Result;
use crate::event::Event;
use crate::lease::Lease;

/// A held lock, which is released when this value is dropped. Re-entrant guards share one.
#[derive(Debug)]
pub(crate) struct GuardInner {
    pub(crate) lease: Lease,
    inner: Arc<ClientInner>,
}

impl GuardInner {
    pub(crate) fn new(lease: Lease, inner: Arc<ClientInner>) -> GuardInner {
        GuardInner { lease, inner }
    }

    /// Releases the lock and awaits the server's response.
    pub(crate) async fn release(self) -> Result<()> {
        let lease = self.lease.state().clone();
        let inner = self.inner.clone();
        // The clock is read first: a lease that has ended is lost, whatever the server still has.
        let ended = lease.ended_by(inner.clock.now());
        let pending = inner.releaser.begin(lease.key.clone());
        if let Err(reason) = ended.map_or_else(|| lease.finish(LostReason::Released), Err) {
            return Err(lease.lost_by(reason).into());
        }
        self.on_released();
        if Releaser::release(&inner, lease.claim.clone(), pending).await? {
            Ok(())
        } else {
            Err(lease.lost_by(lease.likely_reason()).into())
        }
    }

    /// Releases the lock in the background, as part of a release that was begun before.
    pub(crate) fn release_in_background(self, pending: Pending) {
        let lease = self.lease.state();
        if lease.finish(LostReason::Released).is_ok() {
            self.on_released();
            Releaser::release_in_background(&self.inner, lease.claim.clone(), pending);
        }
    }

    fn on_released(&self) {
        let lease = self.lease.state();
        let inner = &self.inner;
        inner.renewer.remove(lease);
        let (key, token) = (lease.key.clone(), lease.token);
        let held = inner.clock.now().since(lease.since);
        inner.observers.tell(|| Event::Released { key, token, held });
    }
}

impl Drop for GuardInner {
    fn drop(&mut self) {
        let lease = self.lease.state();
        if lease.finish(LostReason::Released).is_ok() {
            self.on_released();
            let pending = self.inner.releaser.begin(lease.key.clone());
            Releaser::release_in_background(&self.inner, lease.claim.clone(), pending);
        }
    }
}
