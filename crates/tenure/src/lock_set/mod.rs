//! Several locks that are held together: all of them, or none.
//!
//! **State at the server.** Nothing of its own: each lock of a set is a claim like any other.
//!
//! **Order.** The keys are sorted by their bytes, prefix included, and acquired one after the
//! other. Every client sorts alike, so that two sets with common keys never wait for each other in
//! a circle. While one lock is waited for, those before it are held and renewed. To request all of
//! them at once was rejected: then they are held out of order for a moment, and others see `Busy`
//! for a set that is not granted in the end.
//!
//! **Invariant.** A guard is in [`Held`] from the moment of its grant, without an await in between.
//! However collecting ends (a busy lock, an error, a loss, a dropped future), `Held` is dropped and
//! releases its locks in reverse order.

mod guard_set;

use std::sync::Arc;
use std::time::Duration;

pub use self::guard_set::GuardSet;
use self::guard_set::Held;
use crate::backend::{Attempt, Busy};
use crate::client::Client;
use crate::engine::ClientRef;
use crate::engine::acquire::{AcquireParams, WaitLimit, acquire};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::semaphore::Semaphore;

/// Several locks of one client that are acquired together, all of them or none: handle and builder
/// in one, as [`Lock`] is. [`Client::lock_all`] makes one of exclusive locks; locks of other modes
/// and semaphores are collected, or added with [`and`](LockSet::and).
///
/// The keys are acquired one after the other in the order of their bytes, under one deadline, so
/// that two sets never wait for each other in a circle. That holds within one set only: do not
/// acquire a set while holding another lock.
///
/// It costs one request for each lock. While the set waits for one lock, it holds those before it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::LockSet;
///
/// let locks = tenure::connect("memory:").await?;
/// let set = LockSet::from(locks.lock("accounts/7"))
///     .and(locks.lock("rates").shared())
///     .and(locks.semaphore("partner-api", 5).permits(2));
/// let held = set.acquire_within(Duration::from_secs(5)).await?.granted()?;
/// assert!(held.check()? <= Duration::from_secs(30)); // the least time left of the three
/// held.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a set of locks does nothing until it is acquired"]
pub struct LockSet {
    members: Vec<Result<Lock>>,
}

impl LockSet {
    /// Adds a lock, a semaphore or another set. All of them have to be of one client, and no key
    /// may come twice: both is reported by the first method that is awaited.
    pub fn and(mut self, other: impl Into<LockSet>) -> LockSet {
        self.members.extend(other.into().members);
        self
    }

    /// How long the server keeps each lock without a renewal. See [`Lock::ttl`].
    pub fn ttl(self, ttl: Duration) -> LockSet {
        self.map(|lock| lock.ttl(ttl))
    }

    /// How often each lease is renewed: every third of the ttl unless set.
    pub fn renew_every(self, interval: Duration) -> LockSet {
        self.map(|lock| lock.renew_every(interval))
    }

    /// The longest that each lock may be held. See [`Lock::max_hold`].
    pub fn max_hold(self, limit: Duration) -> LockSet {
        self.map(|lock| lock.max_hold(limit))
    }

    /// Free text that other clients and operators see beside the holder of each lock.
    pub fn note(self, note: impl Into<String>) -> LockSet {
        let note = note.into();
        self.map(|lock| lock.note(note.clone()))
    }

    /// Called with every busy response, which names the key. It must not block.
    pub fn on_busy(self, f: impl Fn(&Busy) + Send + Sync + 'static) -> LockSet {
        let f = Arc::new(f);
        self.map(|lock| {
            let f = f.clone();
            lock.on_busy(move |busy| f(busy))
        })
    }

    /// Acquires all locks, and waits for as long as one of them is busy.
    ///
    /// # Errors
    ///
    /// After any error none of them is held, or those that were are being released. As for
    /// [`Lock::acquire`]; also `Lost` if a lock that was held already is lost while another one is
    /// waited for; and `Invalid` for an empty set, for a key that is in it twice, and for locks of
    /// different clients.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost.** Dropping the future releases what is held so far in the
    /// background, and gives up the position in the queue of the lock that is waited for.
    pub fn acquire(&self) -> impl Future<Output = Result<GuardSet>> + Send + use<> {
        let attempt = self.attempt(WaitLimit::Forever);
        async move {
            match attempt.await? {
                Attempt::Granted(held) => Ok(held),
                Attempt::Busy(busy) => Err(busy.into()),
            }
        }
    }

    /// Acquires all locks, waiting at most for `timeout`, however many of them are busy. Busy names
    /// the lock that was waited for.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](LockSet::acquire) and [`Lock::acquire_within`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](LockSet::acquire).
    pub fn acquire_within(
        &self,
        timeout: Duration,
    ) -> impl Future<Output = Result<Attempt<GuardSet>>> + Send + use<> {
        self.attempt(WaitLimit::Within(timeout))
    }

    /// Acquires all locks if all of them are free. Those before a busy one are held for a moment.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](LockSet::acquire) and [`Lock::try_acquire`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe, with a cost**, as for [`acquire`](LockSet::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Attempt<GuardSet>>> + Send + use<> {
        self.attempt(WaitLimit::None)
    }

    pub(crate) fn client(&self) -> Option<&Client> {
        self.members.iter().flatten().map(Lock::client).next()
    }

    fn map(mut self, change: impl Fn(Lock) -> Lock) -> LockSet {
        self.members = self.members.into_iter().map(|lock| lock.map(&change)).collect();
        self
    }

    fn attempt(
        &self,
        wait_limit: WaitLimit,
    ) -> impl Future<Output = Result<Attempt<GuardSet>>> + Send + use<> {
        let prepared = self.prepare(wait_limit);
        async move {
            let (client_ref, all) = prepared?;
            collect(client_ref, all, wait_limit).await
        }
    }

    /// The claims of all locks in the order in which they are acquired. Whatever is wrong with one
    /// of them is found here, before any request is sent.
    fn prepare(&self, wait_limit: WaitLimit) -> Result<(Arc<ClientRef>, Vec<AcquireParams>)> {
        let mut all = Vec::with_capacity(self.members.len());
        let mut clients = Vec::with_capacity(self.members.len());
        for lock in &self.members {
            let lock = lock.as_ref().map_err(Clone::clone)?;
            all.push(lock.acquire_params(wait_limit)?);
            clients.push(lock.client().client_ref());
        }
        let Some(first) = clients.first() else {
            return Err(Error::invalid("a set of locks needs at least one lock"));
        };
        if !clients.iter().all(|client| Arc::ptr_eq(client, first)) {
            let message = "the locks of a set have to be of one client, or of its clones";
            return Err(Error::invalid(message));
        }
        all.sort_by(|a, b| a.claim.key.cmp(&b.claim.key));
        if let Some(pair) = all.windows(2).find(|pair| pair[0].claim.key == pair[1].claim.key) {
            let message = format!("`{}` is in the set twice; a set has each key once", pair[0].key);
            return Err(Error::invalid(message));
        }
        Ok(((*first).clone(), all))
    }
}

impl From<Lock> for LockSet {
    fn from(lock: Lock) -> LockSet {
        LockSet { members: vec![Ok(lock)] }
    }
}

impl From<Semaphore> for LockSet {
    fn from(semaphore: Semaphore) -> LockSet {
        LockSet { members: vec![semaphore.lock()] }
    }
}

impl<T: Into<LockSet>> FromIterator<T> for LockSet {
    fn from_iter<I: IntoIterator<Item = T>>(members: I) -> LockSet {
        members.into_iter().fold(LockSet::default(), LockSet::and)
    }
}

/// Acquires one lock after the other. A loss of one that is held already ends it.
async fn collect(
    client_ref: Arc<ClientRef>,
    all: Vec<AcquireParams>,
    wait_limit: WaitLimit,
) -> Result<Attempt<GuardSet>> {
    let clock = client_ref.inner.clock;
    let begin = clock.now();
    let mut held = Held::with_capacity(all.len());
    for mut params in all {
        if let WaitLimit::Within(limit) = wait_limit {
            let left = limit.saturating_sub(clock.now().since(begin));
            params.wait_limit = WaitLimit::Within(left);
        }
        let attempt = tokio::select! {
            biased;
            lost = held.lost() => return Err(lost.into()),
            attempt = acquire(client_ref.clone(), params) => attempt?,
        };
        match attempt {
            Attempt::Granted(guard) => held.push(guard),
            Attempt::Busy(busy) => {
                let waited = clock.now().since(begin);
                return Ok(Attempt::Busy(Busy { waited, ..busy }));
            }
        }
    }
    held.check()?;
    Ok(Attempt::Granted(GuardSet::new(held, client_ref)))
}
