//! The handle of one lock: its settings, and the three ways to take it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{Ask, OnBusy, Patience, acquire};
use crate::backend::Scope;
use crate::claim::{Attempt, Busy, Claim, Holding};
use crate::client::{Client, Defaults};
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::key::Key;
use crate::lease::Lease;
use crate::reentrant::Reentrant;
use crate::token::FencingToken;

/// One lock: handle and builder in one. Settings travel with clones; nothing is asked of the server
/// before one of the verbs is awaited, and a wrong key or setting is reported there.
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
    settings: Settings,
}

#[derive(Clone)]
struct Settings {
    ttl: Duration,
    renew_every: Option<Duration>,
    renews: bool,
    max_hold: Option<Duration>,
    note: Arc<str>,
    on_busy: Option<OnBusy>,
}

impl Lock {
    pub(crate) fn new(client: Client, key: Result<Key>, defaults: &Defaults) -> Lock {
        let settings = Settings {
            ttl: defaults.ttl,
            renew_every: defaults.renew_every,
            renews: true,
            max_hold: None,
            note: Arc::default(),
            on_busy: None,
        };
        Lock { client, key, settings }
    }

    /// How long the server keeps the lock without hearing from us: 30 s unless set. Shorter frees
    /// the lock of a crashed holder sooner, longer bears longer outages. Does not turn renewal off.
    pub fn ttl(mut self, ttl: Duration) -> Lock {
        self.settings.ttl = ttl;
        self
    }

    /// How often the lease is renewed: every third of the ttl unless set.
    pub fn renew_every(mut self, interval: Duration) -> Lock {
        self.settings.renew_every = Some(interval);
        self
    }

    /// A fixed lease: the lock ends after its ttl, whatever happens.
    pub fn without_renewal(mut self) -> Lock {
        self.settings.renews = false;
        self
    }

    /// The longest that the lock may be held; then it is lost with reason `MaxHold`. Bounds work
    /// that hangs while its process lives.
    pub fn max_hold(mut self, limit: Duration) -> Lock {
        self.settings.max_hold = Some(limit);
        self
    }

    /// Free text that others see beside the holder.
    pub fn note(mut self, note: impl Into<String>) -> Lock {
        self.settings.note = note.into().into();
        self
    }

    /// Called with every busy answer, for "waiting for web-3 …". It must not block.
    pub fn on_busy(mut self, f: impl Fn(&Busy) + Send + Sync + 'static) -> Lock {
        self.settings.on_busy = Some(Arc::new(f));
        self
    }

    /// Takes the lock, waiting for as long as it is busy. An unreachable server is borne for the
    /// client's `outage`.
    ///
    /// # Errors
    ///
    /// After any error nothing is held, or it is being withdrawn, or it ends within the ttl.
    /// `Unavailable` if the server did not answer for as long as `outage`; `Invalid` for a wrong
    /// key or setting; `Denied`, `Unsupported`, `Closed`.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost.** Dropping the future gives up the place in the queue and
    /// withdraws the claim in the background; a grant that was already on its way is given back.
    /// [`Client::flush`] waits for it.
    pub fn acquire(&self) -> impl Future<Output = Result<Guard>> + Send + use<> {
        let attempt = self.ask(Patience::Forever);
        async move {
            match attempt.await? {
                Attempt::Granted(guard) => Ok(guard),
                Attempt::Busy(busy) => Err(busy.into()),
            }
        }
    }

    /// Takes the lock, waiting at most this long.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), but `Unavailable` when patience ends without an answer.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](Lock::acquire).
    pub fn acquire_within(
        &self,
        patience: Duration,
    ) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.ask(Patience::Within(patience))
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Lock::acquire), but `Unavailable` at the first request without an answer.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](Lock::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        self.ask(Patience::None)
    }

    /// Takes the lock, does the work [`while_held`](Guard::while_held), and gives the lock back.
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

    /// A handle through which one call chain can take the lock again while it has it.
    pub fn reentrant(&self) -> Reentrant {
        Reentrant::new(self.clone())
    }

    /// Who holds the lock, for people.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn holding(&self) -> impl Future<Output = Result<Option<Holding>>> + Send + use<> {
        let (client, key) = (self.client.clone(), self.full_key());
        async move {
            let (key, backend) = (key?, client.shared().backend.clone());
            let list = async move { backend.list(Scope::Key(&key)).await };
            Ok(client.hide_prefix(client.shared().look(list).await?).pop())
        }
    }

    /// A hint: returns when the lock is free, without taking it. By the time you read this,
    /// somebody else may have it.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn until_free(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (lock, claim) = (self.clone(), self.claim());
        async move {
            let (_, claim) = claim?;
            let mut floor = FIRST_FLOOR;
            while lock.holding().await?.is_some() {
                let (shared, claim) = (lock.client.shared().clone(), claim.clone());
                let wait = async move {
                    let look = shared.clock.now() + floor;
                    tokio::select! {
                        _hint = shared.backend.until_free(&claim) => {}
                        // Covers a lost message.
                        () = shared.clock.sleep(LOOK_AGAIN) => {}
                    }
                    // An eager hint must not make a hot loop.
                    shared.clock.sleep_until(look).await;
                };
                lock.client.shared().home.run(wait).await?;
                floor = (floor * 2).min(LAST_FLOOR);
            }
            Ok(())
        }
    }

    /// Force-releases exactly the grant with this token. `true` if it was there. Its holder learns
    /// it, and the next token is higher: a resource with a fence refuses what the old holder still
    /// sends.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like; `Unsupported` where the server cannot.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Once polled, the eviction goes on in the background.
    pub fn evict(&self, token: FencingToken) -> impl Future<Output = Result<bool>> + Send + use<> {
        let (shared, key) = (self.client.shared().clone(), self.full_key());
        async move {
            let (key, backend) = (key?, shared.backend.clone());
            shared.look(async move { backend.evict(&key, token).await }).await
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    fn ask(
        &self,
        patience: Patience,
    ) -> impl Future<Output = Result<Attempt<Guard>>> + Send + use<> {
        let (user, ask) = (self.client.user().clone(), self.make_ask(patience));
        async move { acquire(user, ask?).await }
    }

    fn make_ask(&self, patience: Patience) -> Result<Ask> {
        let (key, mut claim) = self.claim()?;
        claim.waits = !matches!(patience, Patience::None);
        claim.fixed = !self.settings.renews;
        let settings = &self.settings;
        let every = settings.renew_every.unwrap_or(settings.ttl / 3);
        if settings.renews && (every.is_zero() || every >= settings.ttl) {
            let (every, ttl) = (every.as_millis(), settings.ttl.as_millis());
            let message = format!(
                "renewing every {every} ms cannot keep a lease of {ttl} ms; renew more often"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(Ask {
            claim,
            key,
            renew_every: settings.renews.then_some(every),
            max_hold: settings.max_hold,
            outage: self.client.defaults().outage.unwrap_or(settings.ttl),
            on_busy: settings.on_busy.clone(),
            patience,
        })
    }

    /// The key as the user knows it, and a claim to it.
    fn claim(&self) -> Result<(Key, Claim)> {
        let (shared, ttl) = (self.client.shared(), self.settings.ttl);
        let info = &shared.info;
        if ttl < info.min_ttl || ttl > info.max_ttl {
            let message = format!(
                "a ttl of {ttl:?} is out of range; {} keeps leases from {:?} to {:?}",
                info.name, info.min_ttl, info.max_ttl
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        let mut claim = Claim::new(self.full_key()?, shared.next_owner(), ttl);
        claim.note = self.client.defaults().note.with_text(self.settings.note.clone());
        Ok((self.key.clone()?, claim))
    }

    fn full_key(&self) -> Result<Key> {
        self.key.clone()?.prefixed(self.client.prefix())
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("ttl", &self.ttl)
            .field("renews", &self.renews)
            .field("max_hold", &self.max_hold)
            .finish_non_exhaustive()
    }
}

/// How often a watcher without a place in the queue looks for itself.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The shortest time between two of its looks, at first and at last.
const FIRST_FLOOR: Duration = Duration::from_millis(1);
const LAST_FLOOR: Duration = Duration::from_millis(100);
