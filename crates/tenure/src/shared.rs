//! What all handles and background tasks of one client share.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::watch;

use crate::backend::{Backend, Info, Owner, Reach, Wakeup};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::janitor::Janitor;
use crate::keeper::Keeper;
use crate::observe::{Event, Observers};

/// The inside of a client. Tasks hold it; users hold it through [`User`].
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) info: Info,
    pub(crate) home: Home,
    pub(crate) clock: Clock,
    pub(crate) observers: Observers,
    pub(crate) keeper: Keeper,
    pub(crate) janitor: Arc<Janitor>,
    client: [u8; 16],
    last_claim: AtomicU64,
    /// It was told that waiters poll.
    polling_told: AtomicBool,
    closing: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn new(backend: Arc<dyn Backend>, home: Home, observers: Observers) -> Shared {
        let info = backend.info();
        let clock = match info.reach {
            Reach::Process => Clock::tokio(),
            Reach::Machine | Reach::Network => Clock::Boot,
        };
        Shared {
            backend,
            info,
            home,
            clock,
            observers,
            keeper: Keeper::default(),
            janitor: Arc::default(),
            client: Owner::random().client(),
            last_claim: AtomicU64::new(0),
            polling_told: AtomicBool::new(false),
            closing: watch::Sender::new(false),
        }
    }

    /// An owner that nobody was before.
    pub(crate) fn next_owner(&self) -> Owner {
        Owner::new(self.client, self.last_claim.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// No new claims from now on.
    pub(crate) fn close(&self) {
        self.closing.send_replace(true);
    }

    pub(crate) fn is_closing(&self) -> bool {
        *self.closing.borrow()
    }

    /// Returns when the client is being shut down.
    pub(crate) async fn closed(&self) {
        // An error means that the sender is gone, and it is a field of ours.
        let mut closing = self.closing.subscribe();
        let _never = closing.wait_for(|closing| *closing).await.map(|_| ());
    }

    /// Makes a call that ends: after `limit`, or by a panic of the backend, it ends as an error.
    pub(crate) async fn call<T>(
        &self,
        limit: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut call = std::pin::pin!(AssertUnwindSafe(call).catch_unwind());
        // What is answered at once needs no timer.
        let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
        let answer = match first {
            Poll::Ready(answer) => Ok(answer),
            Poll::Pending => tokio::time::timeout(limit, call).await,
        };
        match answer {
            Ok(Ok(answer)) => answer,
            Ok(Err(_panic)) => {
                let message = format!("the {} backend panicked; please report it", self.info.name);
                Err(Error::new(ErrorKind::Internal, message))
            }
            Err(_) => {
                let (name, limit) = (self.info.name, limit.as_millis());
                let message = format!("no answer from {name} within {limit} ms");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Tells once, when somebody waits, that waiters poll. The server may have refused to push only
    /// after the client was made.
    pub(crate) fn tell_if_polled(&self) {
        let polls = || self.backend.info().wakeup == Wakeup::Poll;
        if self.polling_told.load(Ordering::Relaxed) || !polls() {
            return;
        }
        if !self.polling_told.swap(true, Ordering::Relaxed) {
            self.observers.tell(|| Event::Polling { backend: self.info.name });
        }
    }

    /// Asks something for people, where the client's tasks run.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let shared = self.clone();
        self.home.run(async move { shared.call(LOOK, call).await }).await?
    }

    /// How long to wait for one answer: well below the lease, so that a hung call leaves time for
    /// another.
    pub(crate) fn answer_limit(ttl: Duration) -> Duration {
        (ttl / 4).clamp(Duration::from_millis(20), Duration::from_secs(5))
    }
}

/// What every handle of the user has a share in. When the last one goes, what was dropped is given
/// back, and the background work ends.
#[derive(Debug)]
pub(crate) struct User {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for User {
    fn drop(&mut self) {
        if self.shared.home.is_forked() {
            // Nobody here gives anything back, and what a copy would close is still in use by the
            // process that it was made of: sockets, and their places in its event queue.
            return std::mem::forget(self.shared.clone());
        }
        // At the end of `main` nobody else would wait for a release that is on its way.
        if !self.shared.home.is_here() {
            self.shared.janitor.wait(self.shared.clock.now(), LAST_WAIT);
        }
        self.shared.janitor.close();
        self.shared.keeper.stop();
    }
}

/// How long a question for people may take.
const LOOK: Duration = Duration::from_secs(10);

/// The longest that dropping the last handle may block, and only if a release is pending.
const LAST_WAIT: Duration = Duration::from_secs(1);
