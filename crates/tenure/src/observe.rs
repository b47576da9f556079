//! What happens inside, told to whoever wants to know: metrics, traces, histories and `top` feed on
//! it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::claim::Lost;
use crate::error::Error;
use crate::key::Key;
use crate::token::FencingToken;

/// Something that happened to a claim. Told by the core, on its own thread: an observer must not
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
    /// Somebody began to ask for a lock.
    Asked {
        /// Which.
        key: Key,
    },
    /// A renewal went unanswered or failed; it will be tried again until the lease ends.
    Doubt {
        /// Which lock.
        key: Key,
        /// Its token.
        token: FencingToken,
        /// What is left of the lease.
        margin: Duration,
        /// What the backend said.
        cause: Error,
    },
    /// A lock was granted.
    Granted {
        /// Which.
        key: Key,
        /// Its token.
        token: FencingToken,
        /// From the first ask to the grant.
        waited: Duration,
    },
    /// A lock was lost.
    Lost(Lost),
    /// The server cannot or will not push: those who wait poll, and may be served later than they
    /// could. Told once per client, at its first wait.
    Polling {
        /// The backend's name.
        backend: &'static str,
    },
    /// A lock was released by its guard.
    Released {
        /// Which.
        key: Key,
        /// Its token.
        token: FencingToken,
        /// From the grant to the release. Next to nothing is a sign of `let _ = lock.acquire()`.
        held: Duration,
    },
    /// A lease was extended.
    Renewed {
        /// Which lock.
        key: Key,
        /// Its token.
        token: FencingToken,
        /// What was left of the lease when the answer came.
        margin: Duration,
    },
    /// The server could not be reached, did not answer or cannot grant anything now, when a client
    /// connected or a lock was asked for. It is tried again, for as long as `outage` or the
    /// caller's patience lasts.
    Unavailable {
        /// Which lock; `None` while the client connects.
        key: Option<Key>,
        /// What the backend said.
        cause: Error,
    },
    /// Somebody gave up: patience over, an error, or a dropped future.
    Withdrawn {
        /// Which lock.
        key: Key,
        /// From the first ask on.
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

/// Calls a user's function. Its panic is reported by the panic hook and must not end the keeper.
pub(crate) fn shielded(call: impl FnOnce()) {
    let _panicked = catch_unwind(AssertUnwindSafe(call));
}
