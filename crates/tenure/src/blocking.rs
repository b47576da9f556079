//! The API without async: for cron jobs, build tools and scripts.
//!
//! The client's own thread does the work, so that nothing here needs a runtime, and renewals go on
//! while the caller computes or sleeps. Do not call it from async code: it blocks the thread.
//!
//! That thread does not exist in a forked child (a program that makes itself a daemon forks): there
//! every method fails with [`Closed`](crate::ErrorKind::Closed), the lock stays with the parent,
//! and `check` tells when its lease ends. Fork first, then connect.
//!
//! # Examples
//!
//! ```
//! use tenure::Attempt;
//!
//! let locks = tenure::blocking::connect("memory:")?;
//! let Attempt::Granted(guard) = locks.lock("nightly").try_acquire()? else { return Ok(()) };
//! for _page in 1..=3 {
//!     guard.check()?;
//! }
//! guard.release()?;
//! # Ok::<(), tenure::Error>(())
//! ```

mod election;
mod lock_set;
mod semaphore;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Busy, Holding, Info, Lost, LostReason};
use crate::config::Config;
use crate::engine::ClientRef;
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::lease::Lease;
use crate::token::FencingToken;

pub use self::election::{Election, Observer};
pub use self::lock_set::{GuardSet, LockSet};
pub use self::semaphore::{Permit, Semaphore};
pub(crate) use self::wait::wait;

/// Connects to the server of this URL. See [`tenure::connect`](crate::connect).
///
/// # Errors
///
/// As for [`Config::connect`].
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// assert_eq!(locks.info().name, "memory");
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn connect(url: &str) -> Result<Client> {
    url.parse::<Config>()?.connect_blocking()
}

/// A client that connects at its first use. See [`Config::connect_lazy`].
///
/// # Errors
///
/// As for [`Config::connect_lazy`].
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect_lazy("memory:")?;
/// locks.lock("a").acquire()?.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
pub fn connect_lazy(url: &str) -> Result<Client> {
    url.parse::<Config>()?.connect_lazy_blocking()
}

/// A client of one server. See [`tenure::Client`](crate::Client).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// locks.lock("a").acquire()?.release()?;
/// assert!(locks.list("")?.is_empty());
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    pub(crate) fn new(client: crate::Client) -> Client {
        Client(client)
    }

    /// The lock with this key. An invalid key is reported by the first method that is called.
    pub fn lock<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Lock {
        Lock(self.0.lock(key))
    }

    /// The set of the locks with these keys: they are acquired together, all of them or none.
    pub fn lock_all<I>(&self, keys: I) -> LockSet
    where
        I: IntoIterator<Item: TryInto<Key, Error: Into<Error>>>,
    {
        LockSet(self.0.lock_all(keys))
    }

    /// The semaphore with this key: at most `limit` permits are out together, over all clients.
    #[doc(alias("permits", "concurrency"))]
    pub fn semaphore<K: TryInto<Key, Error: Into<Error>>>(&self, key: K, limit: u32) -> Semaphore {
        Semaphore(self.0.semaphore(key, limit))
    }

    /// The election with this key: one leader at a time, over all clients.
    #[doc(alias("leader", "leadership"))]
    pub fn election<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Election {
        Election { election: self.0.election(key), client: self.clone() }
    }

    /// A client that puts a prefix before every key and removes it from keys that it returns.
    ///
    /// # Errors
    ///
    /// `Invalid` if the prefix is not fit to begin a key.
    pub fn prefixed<K: TryInto<Key, Error: Into<Error>>>(&self, prefix: K) -> Result<Client> {
        self.0.prefixed(prefix).map(Client)
    }

    /// What the server can promise.
    pub fn info(&self) -> Info {
        self.0.info()
    }

    /// Lists every held key that starts with `prefix`, for operators.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    #[doc(alias = "ls")]
    pub fn list(&self, prefix: &str) -> Result<Vec<Holding>> {
        wait(self.0.list(prefix))
    }

    /// Checks the server for settings and states that could break a guarantee, for operators.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like, if the server does not respond at all.
    pub fn doctor(&self) -> Result<Vec<Finding>> {
        wait(self.0.doctor())
    }

    /// Returns when the locks of all guards that were dropped so far are released.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has not confirmed a release by the time that its lease should
    /// have ended.
    pub fn flush(&self) -> Result<()> {
        wait(self.0.flush())
    }

    /// Shuts the client down. See [`Client::shutdown`](crate::Client::shutdown).
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server did not confirm a release.
    pub fn shutdown(&self, grace: Duration) -> Result<()> {
        wait(self.0.shutdown(grace))
    }
}

/// One lock: handle and builder in one. See [`tenure::Lock`](crate::Lock).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// let locks = tenure::blocking::connect("memory:")?;
/// let guard = locks.lock("a").ttl(Duration::from_secs(5)).acquire()?;
/// assert!(guard.check()? <= Duration::from_secs(5));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(crate::Lock);

impl Lock {
    /// How long the server keeps the lock without a renewal. Does not turn renewal off.
    pub fn ttl(self, ttl: Duration) -> Lock {
        Lock(self.0.ttl(ttl))
    }

    /// How often the lease is renewed: every third of the ttl unless set.
    pub fn renew_every(self, interval: Duration) -> Lock {
        Lock(self.0.renew_every(interval))
    }

    /// A fixed lease: the lock ends after its ttl, whatever happens.
    pub fn without_renewal(self) -> Lock {
        Lock(self.0.without_renewal())
    }

    /// The longest that the lock may be held.
    pub fn max_hold(self, limit: Duration) -> Lock {
        Lock(self.0.max_hold(limit))
    }

    /// Holds the lock together with other shared holders. See
    /// [`Lock::shared`](crate::Lock::shared).
    pub fn shared(self) -> Lock {
        Lock(self.0.shared())
    }

    /// Free text that other clients and operators see beside the holder.
    pub fn note(self, note: impl Into<String>) -> Lock {
        Lock(self.0.note(note))
    }

    /// Called with every busy response, on the client's own thread.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Lock {
        Lock(self.0.on_busy(f))
    }

    /// Acquires the lock and waits for as long as it is busy.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire`](crate::Lock::acquire).
    #[doc(alias = "lock")]
    pub fn acquire(&self) -> Result<Guard> {
        self.check_process()?;
        wait(self.0.acquire()).map(Guard)
    }

    /// Acquires the lock, waiting at most for `timeout`.
    ///
    /// # Errors
    ///
    /// As for [`Lock::acquire_within`](crate::Lock::acquire_within).
    #[doc(alias("try_lock_for", "lock_timeout"))]
    pub fn acquire_within(&self, timeout: Duration) -> Result<Attempt<Guard>> {
        self.check_process()?;
        Ok(wait(self.0.acquire_within(timeout))?.map(Guard))
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    ///
    /// As for [`Lock::try_acquire`](crate::Lock::try_acquire).
    #[doc(alias("try_lock", "is_locked"))]
    pub fn try_acquire(&self) -> Result<Attempt<Guard>> {
        self.check_process()?;
        Ok(wait(self.0.try_acquire())?.map(Guard))
    }

    /// Holder and waiters of the lock, `None` if it is free: for operators.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    #[doc(alias("show", "holding", "is_locked"))]
    pub fn status(&self) -> Result<Option<Holding>> {
        wait(self.0.status())
    }

    /// A hint: returns when the lock is free, without acquiring it.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    #[doc(alias = "wait")]
    pub fn until_free(&self) -> Result<()> {
        wait(self.0.until_free())
    }

    /// Force-releases exactly the grant with this token. `true` if it was there.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like; `Unsupported` where the server cannot.
    #[doc(alias("break", "force_unlock"))]
    pub fn evict(&self, token: FencingToken) -> Result<bool> {
        wait(self.0.evict(token))
    }

    fn check_process(&self) -> Result<()> {
        self.0.client().inner().executor.check()
    }
}

/// A held lock, renewed in the background. See [`tenure::Guard`](crate::Guard).
///
/// # Examples
///
/// ```
/// let locks = tenure::blocking::connect("memory:")?;
/// let guard = locks.lock("a").acquire()?;
/// guard.on_lost(|lost| eprintln!("{lost}"));
/// guard.release()?;
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard(crate::Guard);

impl Guard {
    /// A view of this lock, for other threads that work under it.
    pub fn lease(&self) -> &Lease {
        self.0.lease()
    }

    /// Key of the lock.
    pub fn key(&self) -> &Key {
        self.0.key()
    }

    /// The token to show to the protected resource.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// The time left, by the client's own clock and without a request.
    ///
    /// # Errors
    ///
    /// [`Lost`] if the lock is no longer held.
    #[doc(alias("is_held", "is_valid"))]
    pub fn check(&self) -> Result<Duration, Lost> {
        self.0.check()
    }

    /// Calls this function, on a thread of its own, if the lock is lost. A release is not a loss.
    pub fn on_lost(&self, f: impl FnOnce(&Lost) + Send + 'static) {
        call_when_lost(self.0.client_ref(), self.0.lost(), f);
    }

    /// Makes an exclusive lock shared, without letting it go. See
    /// [`Guard::downgrade`](crate::Guard::downgrade).
    ///
    /// # Errors
    ///
    /// As for [`Guard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(&mut self) -> Result<()> {
        wait(self.0.downgrade())
    }

    /// Releases the lock and waits until the server has confirmed it.
    ///
    /// # Errors
    ///
    /// As for [`Guard::release`](crate::Guard::release).
    #[doc(alias = "unlock")]
    pub fn release(self) -> Result<()> {
        wait(self.0.release())
    }
}

/// Calls this function, on a thread of its own, when something was lost and not released.
fn call_when_lost(
    client_ref: &Arc<ClientRef>,
    lost: impl Future<Output = Lost> + Send + 'static,
    f: impl FnOnce(&Lost) + Send + 'static,
) {
    client_ref.inner.executor.spawn(async move {
        let lost = lost.await;
        if lost.reason() != LostReason::Released {
            tokio::task::spawn_blocking(move || f(&lost));
        }
    });
}
