//! The engine: what runs behind a client. Every handle and background task of a client shares one
//! [`ClientInner`].
//!
//! | file | what it does |
//! |---|---|
//! | `acquire/` | an acquire, seen from its caller, and as a task of its own while it waits |
//! | `downgrade.rs` | makes a held exclusive lock shared |
//! | `guard_inner.rs`, `lease_state.rs` | a held lock: who owns it, and what is known about its lease |
//! | `renewer.rs`, `schedule.rs` | the task that renews all held locks, and its timetable |
//! | `releaser/` | the task that releases, and repeats until the server responds |
//! | `executor.rs` | where these tasks run |
//! | `in_place.rs` | futures that run on the caller's thread, and outlive the caller |

pub(crate) mod acquire;
pub(crate) mod downgrade;
pub(crate) mod executor;
pub(crate) mod guard_inner;
mod in_place;
pub(crate) mod lease_state;
pub(crate) mod releaser;
pub(crate) mod renewer;
mod schedule;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, watch};

use crate::backend::{Backend, Claim, Grant, Info, Mode, Owner, Reach, Wakeup};
use crate::engine::executor::Executor;
use crate::engine::releaser::Releaser;
use crate::engine::renewer::Renewer;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Observers};
use crate::support::clock::Clock;

/// How long a call for an operator may take.
const ADMIN_LIMIT: Duration = Duration::from_secs(10);

/// What the handles and tasks of a client share. Tasks hold it directly, handles through a
/// [`ClientRef`].
#[derive(Debug)]
pub(crate) struct ClientInner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) executor: Executor,
    pub(crate) clock: Clock,
    pub(crate) status: Arc<ClientStatus>,
    pub(crate) observers: Observers,
    pub(crate) renewer: Renewer,
    pub(crate) releaser: Arc<Releaser>,
    client: [u8; 16],
    last_claim: AtomicU64,
    /// Whether `Event::PollingFallback` was sent.
    polling_told: AtomicBool,
    /// How many acquires are under way, from before their first request.
    acquiring: AtomicUsize,
    acquired: Notify,
}

/// What leases know of their client: not the client itself, which a view of a lock must not keep.
#[derive(Debug)]
pub(crate) struct ClientStatus {
    pub(crate) clock: Clock,
    closing: watch::Sender<bool>,
}

impl ClientStatus {
    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns when the client is being shut down.
    pub(crate) async fn closed(&self) {
        // Fails only without the sender, which is a field of this struct.
        let mut closing = self.closing.subscribe();
        let _never = closing.wait_for(|closing| *closing).await.map(|_| ());
    }
}

impl ClientInner {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        executor: Executor,
        observers: Observers,
    ) -> ClientInner {
        let info = backend.info();
        let clock = match info.reach {
            Reach::Process => Clock::tokio(),
            Reach::Machine | Reach::Network => Clock::Boot,
        };
        ClientInner {
            backend,
            info,
            executor,
            clock,
            status: Arc::new(ClientStatus { clock, closing: watch::Sender::new(false) }),
            observers,
            renewer: Renewer::default(),
            releaser: Arc::default(),
            client: Owner::random().client(),
            last_claim: AtomicU64::new(0),
            polling_told: AtomicBool::new(false),
            acquiring: AtomicUsize::new(0),
            acquired: Notify::new(),
        }
    }

    /// A fresh owner id, which is never reused.
    pub(crate) fn next_owner(&self) -> Owner {
        Owner::new(self.client, self.last_claim.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Refuses new claims from now on.
    pub(crate) fn close(&self) {
        self.status.closing.send_replace(true);
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.status.is_closing()
    }

    /// Returns when the client is being shut down.
    pub(crate) async fn closed(&self) {
        self.status.closed().await;
    }

    /// Begins an acquire: `shutdown` waits for it, until the returned value is dropped.
    ///
    /// # Errors
    ///
    /// `Closed` if the client is being shut down, or in a forked child.
    pub(crate) fn begin_acquire(self: &Arc<Self>) -> Result<UnderWay> {
        self.executor.check()?;
        // Counted before the check, so that either this acquire is refused or `shutdown` sees it.
        self.acquiring.fetch_add(1, Ordering::SeqCst);
        let under_way = UnderWay(self.clone());
        if self.is_closing() { Err(acquire::closed()) } else { Ok(under_way) }
    }

    /// Returns when no acquire is under way.
    pub(crate) async fn until_none_acquires(&self) {
        loop {
            let mut ended = std::pin::pin!(self.acquired.notified());
            ended.as_mut().enable();
            if self.acquiring.load(Ordering::SeqCst) == 0 {
                return;
            }
            ended.await;
        }
    }

    /// Refuses a mode that the server lacks.
    ///
    /// # Errors
    ///
    /// `Unsupported`.
    pub(crate) fn check_mode(&self, mode: Mode) -> Result<()> {
        match mode {
            Mode::Exclusive => Ok(()),
            // Not the copy in `info`: a client that connects late learns it later.
            Mode::Shared | Mode::Permits { .. } => self.backend.info().check_mode(mode),
        }
    }

    /// Calls the backend with a limit: a call that takes longer, or panics, ends as an error.
    pub(crate) async fn call<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut call = std::pin::pin!(AssertUnwindSafe(call).catch_unwind());
        // A call that is ready at its first poll needs no timer.
        let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        let outcome = match first {
            Poll::Ready(outcome) => Ok(outcome),
            Poll::Pending => {
                self.executor.before_timer();
                tokio::time::timeout(limit, call).await
            }
        };
        match outcome {
            Ok(Ok(response)) => response,
            Ok(Err(_panic)) => {
                let message = format!("the {} backend panicked; please report it", self.info.name);
                Err(Error::new(ErrorKind::Internal, message))
            }
            Err(_) => Err(Error::timed_out(self.info.name, limit)),
        }
    }

    /// Awaits the backend's hint that another request, or another look, is worth it. A backend that
    /// panics gives none.
    pub(crate) async fn hint(&self, claim: &Claim) -> Option<Grant> {
        match AssertUnwindSafe(self.backend.until_free(claim)).catch_unwind().await {
            Ok(pushed) => pushed,
            Err(_panic) => std::future::pending().await,
        }
    }

    /// Sends `Event::PollingFallback` once, at the first wait, if waiters have to poll. The server
    /// may refuse to push only after the client has connected.
    pub(crate) fn tell_if_polled(&self) {
        let polls = || self.backend.info().wakeup == Wakeup::Poll;
        if self.polling_told.load(Ordering::Relaxed) || !polls() {
            return;
        }
        if !self.polling_told.swap(true, Ordering::Relaxed) {
            self.observers.tell(|| Event::PollingFallback { backend: self.info.name });
        }
    }

    /// Calls the backend for an operator (`list`, `evict`, `doctor`), on the client's executor.
    pub(crate) async fn admin_call<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let inner = self.clone();
        self.executor.run(async move { inner.call(ADMIN_LIMIT, call).await }).await?
    }

    /// How long to wait for one response: well below the lease, so that a call that hangs leaves
    /// time for another.
    pub(crate) fn response_limit(ttl: Duration) -> Duration {
        (ttl / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// An acquire under way. What its claim may have left at the server is pending, or held by a guard,
/// before this value is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<ClientInner>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        if self.0.acquiring.fetch_sub(1, Ordering::SeqCst) == 1 && self.0.is_closing() {
            self.0.acquired.notify_waiters();
        }
    }
}

/// Shared by all handles of a client (clients, locks, guards). When the last one is dropped,
/// pending releases are awaited for a moment, and the background tasks end.
#[derive(Debug)]
pub(crate) struct ClientRef {
    pub(crate) inner: Arc<ClientInner>,
}

impl Drop for ClientRef {
    fn drop(&mut self) {
        if self.inner.executor.is_forked() {
            // The client's thread does not exist in a forked child, so that nothing can be released
            // here; and closing the copied sockets would disturb the parent, which shares them.
            return std::mem::forget(self.inner.clone());
        }
        // At the end of `main`, nothing else would wait for a release that is under way.
        if !self.inner.executor.is_here() {
            self.inner.releaser.wait(&self.inner.clock);
        }
        self.inner.releaser.close();
        self.inner.renewer.stop();
    }
}
