//! The handle of one lock: its settings, and the ways to acquire it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Busy, Claim, Holding, Mode, Scope};
use crate::client::{Client, Defaults};
use crate::engine::acquire::{AcquireParams, OnBusy, WaitLimit, acquire};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::key::Key;
use crate::lease::Lease;
use crate::reentrant::Reentrant;
use crate::support::backoff::Backoff;
use crate::token::FencingToken;

/// How often `until_free` polls the server, in case a wake-up was lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two of its polls, at first and at most.
const FIRST_RECHECK: Duration = Duration::from_millis(1);
const LONGEST_RECHECK: Duration = Duration::from_millis(100);

/// One lock: handle and builder in one. Clones have the same settings. Nothing is sent to the
/// server before one of the methods is awaited, and an invalid key or setting is reported there.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
///
/// let locks = tenure::connect("memory:").await?;
/// let lock = locks.lock("schema").note("v42").ttl(Duration::from_secs(10));
/// let done = lock.run(async |lease| lease.token()).await?;
/// assert!(done.get() > 0);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    client: Client,
    key: Result<Key>,
    params: LockParams,
}

#[derive(Clone)]
struct LockParams {
    ttl: Duration,
    renew_every: Option<Duration>,
    renews: bool,
    max_hold: Option<Duration>,
    note: Arc<str>,
    on_busy: Option<OnBusy>,
    mode: Mode,
}

impl Lock {
    pub(crate) fn new(client: Client, key: Result<Key>, defaults: &Defaults) -> Lock {
        let params = LockParams {
            ttl: defaults.ttl,
            renew_every: defaults.renew_every,
            renews: true,
            max_hold: None,
            note: Arc::default(),
            on_busy: None,
            mode: Mode::Exclusive,
        };
        Lock { client, key, params }
    }

    /// How long the server keeps the lock without a renewal: 30 s unless set. A shorter ttl frees
    /// the lock of a crashed holder sooner, a longer one survives longer outages. Does not turn
    /// renewal off.
    #[doc(alias("lease_time", "expire", "timeout"))]
    pub fn ttl(mut self, ttl: Duration) -> Lock {
        self.params.ttl = ttl;
        self
    }

    /// How often the lease is renewed: every third of the ttl unless set.
    #[doc(alias("extend", "watchdog"))]
    pub fn renew_every(mut self, interval: Duration) -> Lock {
        self.params.renew_every = Some(interval);
        self
    }

    /// A fixed lease: the lock ends after its ttl, whatever happens.
    pub fn without_renewal(mut self) -> Lock {
        self.params.renews = false;
        self
    }

    /// The longest that the lock may be held; then it is lost with reason `MaxHold`. Bounds work
    /// that hangs while its process lives.
    pub fn max_hold(mut self, limit: Duration) -> Lock {
        self.params.max_hold = Some(limit);
        self
    }

    /// Free text that other clients and operators see beside the holder.
    pub fn note(mut self, note: impl Into<String>) -> Lock {
        self.params.note = note.into().into();
        self
    }

    /// Holds the lock together with other shared holders; an exclusive one excludes all of them.
    /// Who waits is served in order: a waiting writer stops the readers that come after it. See
    /// `docs/modes.md` of the repository for the servers that have it.
    ///
    /// Do not acquire it again in a task that holds it: behind a waiting writer that is a deadlock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// let locks = tenure::connect("memory:").await?;
    /// let config = locks.lock("config");
    /// let one = config.clone().shared().acquire().await?;
    /// let two = config.clone().shared().acquire().await?;
    /// assert!(config.try_acquire().await?.granted().is_err()); // a writer waits for both
    /// # Ok(()) }
    /// ```
    #[doc(alias("read", "read_lock", "rwlock"))]
    pub fn shared(self) -> Lock {
        self.with_mode(Mode::Shared)
    }

    /// Called with every busy response, for "waiting for web-3 …". It must not block.
    pub fn on_busy(mut self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Lock {
        self.params.on_busy = Some(Arc::new(f));
        self
    }

    /// Acquires the lock and waits for as long as it is busy. While the server does not respond,
    /// the request is repeated for the client's `outage`.
    ///
    /// # Errors
    ///
    /// After any error nothing is held, or it is being released, or it ends within the ttl.
    /// `Unavailable` if the server did not respond for as long as `outage`; `Invalid` for a wrong
    /// key or setting; `Denied`, `Unsupported`, `Closed`.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost.** Dropping the future gives up the position in the queue and
    /// cancels the claim in the background; a grant that was already under way is released.
    /// [`Client::flush`] waits for it.
    #[doc(alias = "lock")]
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> + Send + use<> {
        let attempt = self.attempt(WaitLimit::Forever);
        async move {
            match attempt.await? {
                Attempt::Granted(guard) => Ok(guard),
                Attempt::Busy(busy) => Err(busy.into()),
            }
        }
    }

    /// Acquires the lock, waiting at most for `timeout`. The response to the first request may take
    /// 250 ms more, so that a timeout that is shorter than one round trip can be granted too.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), but `Unavailable` when `timeout` has passed without a
    /// response.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](Lock::acquire).
    #[doc(alias("try_lock_for", "lock_timeout", "try_acquire_for"))]
    pub fn acquire_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.attempt(WaitLimit::Within(timeout))
    }

    /// Acquires the lock if it is free.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), but `Unavailable` at the first request without a
    /// response.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](Lock::acquire).
    #[doc(alias("try_lock", "is_locked"))]
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.attempt(WaitLimit::None)
    }

    /// Acquires the lock, runs the work [`while_held`](Guard::while_held), and releases the lock.
    ///
    /// Work that goes on until it is told to stop ends at [`Lease::closing`]:
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// # use std::time::Duration;
    /// # let locks = tenure::connect("memory:").await?;
    /// let leading = tokio::spawn(locks.lock("leader").run(async |lease| {
    ///     let mut beats = 0;
    ///     loop {
    ///         tokio::select! {
    ///             () = lease.closing() => return beats, // the client shuts down
    ///             () = tokio::time::sleep(Duration::from_millis(1)) => beats += 1,
    ///         }
    ///     }
    /// }));
    /// # tokio::time::sleep(Duration::from_millis(20)).await;
    /// locks.shutdown(Duration::from_secs(60)).await?; // returns as soon as the leader has ended
    /// assert!(leading.await.unwrap()? > 0);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), and `Lost` if the lock was lost before the work was done.
    /// Finished work counts even if the release could not be confirmed.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost.** Dropping the future drops the work and releases the lock in
    /// the background.
    pub fn run<F, W>(&self, work: F) -> impl Future<Output = Result<W::Output>> + use<F, W>
    where
        F: FnOnce(Lease) -> W,
        W: Future,
    {
        let acquiring = self.acquire();
        async move {
            let guard = acquiring.await?;
            let work = work(guard.lease().clone());
            let output = guard.while_held(work).await?;
            match guard.release().await {
                Err(error) if error.kind() == ErrorKind::Lost => Err(error),
                Ok(()) | Err(_) => Ok(output),
            }
        }
    }

    /// A handle through which one call chain can acquire the lock again while it holds it.
    pub fn reentrant(&self) -> Reentrant {
        Reentrant::new(self.clone())
    }

    /// Holder and waiters of the lock, `None` if it is free: for operators, not for decisions,
    /// since it is out of date when it arrives.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    #[doc(alias("show", "holding", "is_locked", "who"))]
    pub fn status(&self) -> impl Future<Output = Result<Option<Holding>>> + Send + use<> {
        let client = self.client.clone();
        let key = self.full_key();
        async move {
            let key = key?;
            let backend = client.inner().backend.clone();
            let list = async move { backend.list(Scope::Key(&key)).await };
            Ok(client.hide_prefix(client.inner().admin_call(list).await?).pop())
        }
    }

    /// A hint: returns when the lock is free, without acquiring it. Another client may hold it by
    /// the time that the caller acts on this.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    #[doc(alias = "wait")]
    pub fn until_free(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let lock = self.clone();
        let claim = self.claim();
        async move {
            let (_, claim) = claim?;
            let mut backoff = Backoff::new(FIRST_RECHECK, LONGEST_RECHECK);
            while lock.status().await?.is_some() {
                let inner = lock.client.inner().clone();
                let claim = claim.clone();
                let pause = backoff.next();
                let wait = async move {
                    let not_before = inner.clock.now() + pause;
                    tokio::select! {
                        _hint = inner.backend.until_free(&claim) => {}
                        // Covers a lost message.
                        () = inner.clock.sleep(POLL_INTERVAL) => {}
                    }
                    // A hint that fires too often must not make a hot loop.
                    inner.clock.sleep_until(not_before).await;
                };
                lock.client.inner().executor.run(wait).await?;
            }
            Ok(())
        }
    }

    /// Force-releases exactly the grant with this token. `true` if it was there. Its holder is
    /// told, and the next token is higher: a resource with a fence refuses what the old holder
    /// still sends.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like; `Unsupported` where the server cannot.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Once polled, the eviction goes on in the background.
    #[doc(alias("break", "force_unlock", "steal"))]
    pub fn evict(&self, token: FencingToken) -> impl Future<Output = Result<bool>> + Send + use<> {
        let inner = self.client.inner().clone();
        let key = self.full_key();
        async move {
            let key = key?;
            let backend = inner.backend.clone();
            inner.admin_call(async move { backend.evict(&key, token).await }).await
        }
    }

    pub(crate) fn with_mode(mut self, mode: Mode) -> Lock {
        self.params.mode = mode;
        self
    }

    pub(crate) fn mode(&self) -> Mode {
        self.params.mode
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn attempt(
        &self,
        wait_limit: WaitLimit,
    ) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        let client_ref = self.client.client_ref().clone();
        let params = self.acquire_params(wait_limit);
        async move { acquire(client_ref, params?).await }
    }

    pub(crate) fn acquire_params(&self, wait_limit: WaitLimit) -> Result<AcquireParams> {
        let (key, mut claim) = self.claim()?;
        claim.waits = !matches!(wait_limit, WaitLimit::None);
        claim.fixed = !self.params.renews;
        let params = &self.params;
        let every = params.renew_every.unwrap_or(params.ttl / 3);
        if params.renews && (every.is_zero() || every >= params.ttl) {
            let (every, ttl) = (every.as_millis(), params.ttl.as_millis());
            let message = format!(
                "renewing every {every} ms cannot keep a lease of {ttl} ms; renew more often"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(AcquireParams {
            claim,
            key,
            renew_every: params.renews.then_some(every),
            max_hold: params.max_hold,
            outage: self.client.defaults().outage.unwrap_or(params.ttl),
            on_busy: params.on_busy.clone(),
            wait_limit,
        })
    }

    /// The key as the caller knows it, and a claim to it.
    pub(crate) fn claim(&self) -> Result<(Key, Claim)> {
        let inner = self.client.inner();
        let ttl = self.params.ttl;
        inner.info.check_ttl(ttl)?;
        inner.check_mode(self.params.mode)?;
        let mut claim = Claim::new(self.full_key()?, inner.next_owner(), ttl);
        claim.mode = self.params.mode;
        claim.holder_info = self.client.defaults().holder_info.with_text(self.params.note.clone());
        Ok((self.key.clone()?, claim))
    }

    fn full_key(&self) -> Result<Key> {
        self.key.clone()?.prefixed(self.client.prefix())
    }
}

impl fmt::Debug for LockParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockParams")
            .field("ttl", &self.ttl)
            .field("mode", &self.mode)
            .field("renews", &self.renews)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}
