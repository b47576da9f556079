//! Lifecycle events of claims, for metrics, tracing and test histories.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Busy, Lost};
use crate::error::Error;
use crate::key::Key;
use crate::token::FencingToken;

/// Something that happened to a claim. Observers are called on the client's own thread and must not
/// block.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::sync::{Arc, Mutex};
/// use tenure::{Config, Event};
///
/// let waits = Arc::new(Mutex::new(Vec::new()));
/// let seen = waits.clone();
/// let config: Config = "memory:".parse()?;
/// let locks = config
///     .observe(move |event| {
///         if let Event::Granted { waited, .. } = event {
///             seen.lock().unwrap().push(*waited);
///         }
///     })
///     .connect()
///     .await?;
/// locks.lock("a").acquire().await?.release().await?;
/// assert_eq!(waits.lock().unwrap().len(), 1);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// An acquire has begun.
    Requested {
        /// Key of the lock.
        key: Key,
    },
    /// An acquire ended busy: another client held the lock at once, or for as long as
    /// `acquire_within` waits. [`Cancelled`](Event::Cancelled) follows, as for every acquire that
    /// ends without a grant. Single busy responses of a wait are told to
    /// [`Lock::on_busy`](crate::Lock::on_busy).
    Busy(Busy),
    /// A renewal failed or got no response; it is repeated until the lease ends.
    RenewalFailed {
        /// Key of the lock.
        key: Key,
        /// Fencing token of the grant.
        token: FencingToken,
        /// Time left of the lease.
        margin: Duration,
        /// Error of the backend.
        cause: Error,
    },
    /// A lock was granted.
    Granted {
        /// Key of the lock.
        key: Key,
        /// Fencing token of the grant.
        token: FencingToken,
        /// From the first request to the grant.
        waited: Duration,
    },
    /// An exclusive lock was made shared.
    Downgraded {
        /// Key of the lock.
        key: Key,
        /// Fencing token of the grant, which it keeps.
        token: FencingToken,
    },
    /// A lock was lost.
    Lost(Lost),
    /// The server does not push wake-ups: waiters poll, and may get the lock later than they could.
    /// Sent once per client, at its first wait.
    PollingFallback {
        /// Name of the backend.
        backend: &'static str,
    },
    /// A lock was released by its guard.
    Released {
        /// Key of the lock.
        key: Key,
        /// Fencing token of the grant.
        token: FencingToken,
        /// From the grant to the release. Next to nothing is a sign of `let _ = lock.acquire()`.
        held: Duration,
    },
    /// A lease was extended.
    Renewed {
        /// Key of the lock.
        key: Key,
        /// Fencing token of the grant.
        token: FencingToken,
        /// Time that was left of the lease when the response came.
        margin: Duration,
    },
    /// The server could not be reached, did not respond or cannot grant anything now, while a
    /// client connected or acquired a lock. The request is repeated for as long as `outage` or the
    /// caller's timeout allows.
    Unavailable {
        /// Key of the lock; `None` while the client connects.
        key: Option<Key>,
        /// Error of the backend.
        cause: Error,
    },
    /// An acquire ended without a grant: its timeout passed, it failed, or its future was dropped.
    Cancelled {
        /// Key of the lock.
        key: Key,
        /// From the first request on.
        waited: Duration,
    },
}

/// The observers of one client.
#[derive(Clone, Default)]
pub(crate) struct Observers(Vec<Arc<Observer>>);

type Observer = dyn Fn(&Event) + Send + Sync;

impl Observers {
    pub(crate) fn add(&mut self, observer: impl Fn(&Event) + Send + Sync + 'static) {
        self.0.push(Arc::new(observer));
    }

    pub(crate) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.0.is_empty() {
            return;
        }
        let event = event();
        for observer in &self.0 {
            shielded(|| observer(&event));
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} observers", self.0.len())
    }
}

/// Calls a function of the caller. The panic hook reports its panic, which must not end the
/// renewer's task.
pub(crate) fn shielded(call: impl FnOnce()) {
    let _panicked = catch_unwind(AssertUnwindSafe(call));
}
