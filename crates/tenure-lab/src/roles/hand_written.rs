//! How a client uses a hand-written scheme: retry until it is granted, believe in it, delete it.
//! Such a program has no deadline, or keeps one on `Instant`, which stands still while the machine
//! sleeps.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure::backend::{Backend, Claim, Owner, Scope};
use tenure::{Attempt, Error, ErrorKind, Key};
use tokio::task::AbortHandle;

use crate::clock::{Clock, nanos};
use crate::history::EventKind;
use crate::schemes::Usage;

/// A program that uses a scheme.
pub(super) struct HandWrittenClient {
    backend: Arc<dyn Backend>,
    usage: Usage,
    lease: Duration,
    clock: Clock,
    owner: Owner,
    report: Rc<dyn Fn(EventKind)>,
}

/// A lock that the program believes to hold.
pub(super) struct HandWrittenHold {
    claim: Claim,
    pub(super) token: Option<u64>,
    pub(super) deadline: u64,
    /// Until when the program believes that it holds; none for without end.
    believed_until: Option<Instant>,
    watchdog: RefCell<Option<AbortHandle>>,
}

impl HandWrittenHold {
    /// Whether the program still believes that it holds.
    pub(super) fn is_believed(&self) -> bool {
        self.believed_until.is_none_or(|until| Instant::now() < until)
    }
}

impl HandWrittenClient {
    pub(super) fn new(
        (backend, usage): (Arc<dyn Backend>, Usage),
        lease: Duration,
        clock: Clock,
        report: Rc<dyn Fn(EventKind)>,
    ) -> HandWrittenClient {
        HandWrittenClient { backend, usage, lease, clock, owner: Owner::random(), report }
    }

    /// Opens the connection, which otherwise the first command would do.
    pub(super) async fn connect(&self) -> tenure::Result<()> {
        let key = Key::new("lab-greeting")?;
        self.backend.list(Scope::Key(&key)).await.map(drop)
    }

    /// Retries until the lock is granted or the limit has passed.
    pub(super) async fn acquire(
        &self,
        hold: u64,
        key: &str,
        limit: Option<Duration>,
    ) -> tenure::Result<HandWrittenHold> {
        let owner = if self.usage.shared_owner { self.owner } else { Owner::random() };
        let claim = Claim::new(Key::new(key)?, owner, self.lease);
        let end = limit.map(|limit| self.clock.after(limit));
        loop {
            let sent = self.clock.now();
            let lease_end = Instant::now() + self.lease;
            if let Attempt::Granted(grant) = self.backend.try_acquire(&claim).await? {
                let watchdog = RefCell::new(self.start_watchdog(hold, &claim));
                return Ok(HandWrittenHold {
                    claim,
                    token: self.usage.tokens.then(|| grant.token.get()),
                    deadline: sent + nanos(self.lease),
                    believed_until: self.usage.deadline.then_some(lease_end),
                    watchdog,
                });
            }
            if end.is_some_and(|end| self.clock.now() >= end) {
                return Err(Error::new(ErrorKind::Busy, "the lock is held by another client"));
            }
            let left = end.map_or(Duration::MAX, |end| {
                Duration::from_nanos(end.saturating_sub(self.clock.now()))
            });
            let pause = self.usage.poll_interval.unwrap_or(Duration::MAX).min(left);
            tokio::select! {
                _hint = self.backend.until_free(&claim) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    pub(super) async fn release(&self, hold: &HandWrittenHold) -> tenure::Result<bool> {
        let released = self.backend.release(&hold.claim).await;
        if let Some(watchdog) = hold.watchdog.take() {
            watchdog.abort();
        }
        released
    }

    /// Renews until the release, without regard to the responses, or to whether there are any.
    fn start_watchdog(&self, hold: u64, claim: &Claim) -> Option<AbortHandle> {
        let backend = self.backend.clone();
        let claims = [claim.clone()];
        let (clock, lease, report) = (self.clock, self.lease, self.report.clone());
        let renewing = async move {
            let mut last = clock.now();
            loop {
                tokio::time::sleep(lease / 3).await;
                let sent = clock.now();
                // The next renewal is sent even if there is no response to this one.
                let renewed = tokio::time::timeout(lease / 3, backend.renew(&claims)).await;
                if matches!(renewed.as_deref(), Ok([Ok(_)])) && sent >= last {
                    last = sent;
                    let deadline = Some(sent + nanos(lease));
                    report(EventKind::Renewed { hold, deadline });
                }
            }
        };
        self.usage.watchdog.then(|| tokio::task::spawn_local(renewing).abort_handle())
    }
}
