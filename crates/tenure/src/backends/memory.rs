//! Locks inside one process: for tests, and the model that the other backends are compared with.
//!
//! Everything is decided under one mutex that is never held across an await. Time is tokio's, so
//! that tests with paused time work.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::{Backend, Claim, Grant, Info, Note, Owner, Reach, Scope};
use crate::claim::{Attempt, Busy, Holder, Holding, LostReason, Waiter};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;

/// Opens `memory:`, which takes no options of its own.
pub(crate) async fn open(options: Options) -> Result<Memory> {
    options.finish()?;
    Ok(Memory::new())
}

/// Locks inside one process. Clones share the same locks.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Attempt, Client, backends::Memory};
///
/// let memory = Memory::new();
/// let (one, two) = (Client::new(memory.clone()), Client::new(memory));
/// let guard = one.lock("a").acquire().await?;
/// assert!(matches!(two.lock("a").try_acquire().await?, Attempt::Busy(_)));
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Memory {
    store: Arc<Mutex<Store>>,
}

impl Memory {
    /// A store of its own, in which nothing is held.
    pub fn new() -> Memory {
        Memory::default()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // Nothing in here panics halfway through a change.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory:")
    }
}

#[async_trait]
impl Backend for Memory {
    fn info(&self) -> Info {
        Info { reach: Reach::Process, busy_leaves_nothing: true, ..Info::new("memory") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        Ok(self.store().take(claim, Instant::now()))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let (mut store, now) = (self.store(), Instant::now());
        claims.iter().map(|claim| store.renew(claim, now)).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        Ok(self.store().release(&claim.key, claim.owner, Instant::now()))
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        loop {
            let (bell, look_again) = match self.store().look(claim, Instant::now()) {
                Look::Free => return None,
                Look::Mine(grant) => return Some(grant),
                Look::Held { bell, until } => (bell, until),
            };
            let mut rung = std::pin::pin!(bell.notified());
            // Listen first, then look once more: what happened in between must not be missed.
            rung.as_mut().enable();
            match self.store().look(claim, Instant::now()) {
                Look::Free => return None,
                Look::Mine(grant) => return Some(grant),
                Look::Held { .. } => {}
            }
            tokio::select! {
                () = rung => {}
                () = tokio::time::sleep_until(look_again) => {}
            }
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        let bell = match self.store().locks.get(&claim.key).and_then(|lock| lock.holder.as_ref()) {
            Some(holder) if holder.owner == claim.owner => holder.bell.clone(),
            _ => return,
        };
        let mut rung = std::pin::pin!(bell.notified());
        rung.as_mut().enable();
        if self.store().held_by(claim) {
            rung.await;
        }
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        Ok(self.store().list(scope, Instant::now()))
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let (mut store, now) = (self.store(), Instant::now());
        store.settle(key, now);
        let holder = store.locks.get(key).and_then(|lock| lock.holder.as_ref());
        match holder.filter(|holder| holder.token == token).map(|holder| holder.owner) {
            Some(owner) => Ok(store.release(key, owner, now)),
            None => Ok(false),
        }
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::good("reach", "excludes the tasks and threads of this process only")])
    }
}

#[derive(Default)]
struct Store {
    locks: HashMap<Key, Lock>,
    last_token: u64,
}

/// One key: its holder, and its waiters in order. Gone when there is neither.
#[derive(Default)]
struct Lock {
    holder: Option<Held>,
    queue: VecDeque<Place>,
    /// Rings whoever watches without a place in the queue.
    watchers: Option<Arc<Notify>>,
}

struct Held {
    owner: Owner,
    token: FencingToken,
    since: Instant,
    expires: Instant,
    note: Note,
    /// Rings the holder: look whether you still are.
    bell: Arc<Notify>,
}

/// A place in the queue lives like a lock: it ends a ttl after the last ask.
struct Place {
    owner: Owner,
    since: Instant,
    expires: Instant,
    note: Note,
    /// Rings the waiter: it is your turn, or it may be.
    bell: Arc<Notify>,
}

enum Look {
    Free,
    Mine(Grant),
    Held { bell: Arc<Notify>, until: Instant },
}

impl Store {
    /// Drops what has expired and hands a free lock to the first living waiter. Afterwards a lock
    /// is in the table only if it is held.
    fn settle(&mut self, key: &Key, now: Instant) {
        let Some(lock) = self.locks.get_mut(key) else { return };
        if lock.holder.as_ref().is_some_and(|holder| holder.expires > now) {
            return;
        }
        if let Some(ended) = lock.holder.take() {
            ended.bell.notify_one();
        }
        while let Some(place) = lock.queue.pop_front() {
            if place.expires > now {
                self.last_token += 1;
                place.bell.notify_one();
                lock.holder = Some(Held {
                    owner: place.owner,
                    token: token(self.last_token),
                    since: now,
                    // The place's lease becomes the lock's: the waiter knows when it began.
                    expires: place.expires,
                    note: place.note,
                    bell: place.bell,
                });
                return;
            }
        }
        if let Some(watchers) = lock.watchers.take() {
            watchers.notify_waiters();
        }
        self.locks.remove(key);
    }

    fn take(&mut self, claim: &Claim, now: Instant) -> Attempt<Grant> {
        self.settle(&claim.key, now);
        let Some(lock) = self.locks.get_mut(&claim.key) else {
            return Attempt::Granted(self.grant(claim, now));
        };
        let expires = now + claim.ttl;
        let Some(holder) = &mut lock.holder else {
            return Attempt::Granted(self.grant(claim, now));
        };
        if holder.owner == claim.owner {
            holder.expires = holder.expires.max(expires);
            return Attempt::Granted(Grant::new(holder.token, claim.ttl));
        }
        let mut busy = Busy::new(claim.key.clone());
        busy.retry_after = Some(holder.expires - now);
        busy.holder = Some(Box::new(holder.describe(now)));
        if claim.waits {
            busy.ahead = Some(lock.queue_up(claim, now));
        }
        Attempt::Busy(busy)
    }

    fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        self.last_token += 1;
        let token = token(self.last_token);
        let held = Held {
            owner: claim.owner,
            token,
            since: now,
            expires: now + claim.ttl,
            note: claim.note.clone(),
            bell: Arc::default(),
        };
        self.locks.entry(claim.key.clone()).or_default().holder = Some(held);
        Grant::new(token, claim.ttl)
    }

    fn renew(&mut self, claim: &Claim, now: Instant) -> Result<Duration> {
        self.settle(&claim.key, now);
        match self.locks.get_mut(&claim.key).and_then(|lock| lock.holder.as_mut()) {
            Some(holder) if holder.owner == claim.owner && holder.is_grant(claim.token) => {
                holder.expires = holder.expires.max(now + claim.ttl);
                Ok(claim.ttl)
            }
            Some(_) => Err(Error::gone(LostReason::TakenOver)),
            None => Err(Error::new(crate::ErrorKind::Lost, "the lock is not held")),
        }
    }

    fn release(&mut self, key: &Key, owner: Owner, now: Instant) -> bool {
        self.settle(key, now);
        let Some(lock) = self.locks.get_mut(key) else { return false };
        lock.queue.retain(|place| place.owner != owner);
        if lock.holder.as_ref().is_none_or(|holder| holder.owner != owner) {
            return false;
        }
        if let Some(holder) = lock.holder.take() {
            holder.bell.notify_one();
        }
        self.settle(key, now);
        true
    }

    fn look(&mut self, claim: &Claim, now: Instant) -> Look {
        self.settle(&claim.key, now);
        let Some(lock) = self.locks.get_mut(&claim.key) else { return Look::Free };
        let Some(holder) = &lock.holder else { return Look::Free };
        if holder.owner == claim.owner {
            // The lease began with the last ask; the core counts it from there.
            return Look::Mine(Grant::new(holder.token, claim.ttl));
        }
        let until = holder.expires;
        let place = lock.queue.iter().find(|place| place.owner == claim.owner);
        let bell = match place {
            Some(place) => place.bell.clone(),
            None => lock.watchers.get_or_insert_default().clone(),
        };
        Look::Held { bell, until }
    }

    fn held_by(&self, claim: &Claim) -> bool {
        let holder = self.locks.get(&claim.key).and_then(|lock| lock.holder.as_ref());
        holder.is_some_and(|holder| holder.owner == claim.owner)
    }

    fn list(&mut self, scope: Scope<'_>, now: Instant) -> Vec<Holding> {
        let keys: Vec<Key> = self.locks.keys().filter(|key| scope.holds(key)).cloned().collect();
        keys.iter().for_each(|key| self.settle(key, now));
        let mut holdings: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let lock = self.locks.get(&key)?;
                let holder = lock.holder.as_ref()?.describe(now);
                let mut holding = Holding::new(key, holder);
                let living = lock.queue.iter().filter(|place| place.expires > now);
                holding.waiters = living.map(|place| place.describe(now)).collect();
                Some(holding)
            })
            .collect();
        holdings.sort_by(|a, b| a.key.cmp(&b.key));
        holdings
    }
}

impl Lock {
    /// Takes or refreshes a place in the queue and says how many are before it.
    fn queue_up(&mut self, claim: &Claim, now: Instant) -> u32 {
        let expires = now + claim.ttl;
        self.queue.retain(|place| place.expires > now);
        let mine = self.queue.iter().position(|place| place.owner == claim.owner);
        let rank = match mine {
            Some(rank) => {
                self.queue[rank].expires = self.queue[rank].expires.max(expires);
                rank
            }
            None => {
                self.queue.push_back(Place {
                    owner: claim.owner,
                    since: now,
                    expires,
                    note: claim.note.clone(),
                    bell: Arc::default(),
                });
                self.queue.len() - 1
            }
        };
        u32::try_from(rank).unwrap_or(u32::MAX)
    }
}

impl Held {
    /// Whether this is the grant that a renewal is about.
    fn is_grant(&self, token: Option<FencingToken>) -> bool {
        token.is_none_or(|token| token == self.token)
    }

    fn describe(&self, now: Instant) -> Holder {
        Holder {
            token: Some(self.token),
            held_for: Some(now - self.since),
            ttl_left: Some(self.expires - now),
            ..Holder::new(&self.note)
        }
    }
}

impl Place {
    fn describe(&self, now: Instant) -> Waiter {
        Waiter { waiting_for: Some(now - self.since), ..Waiter::new(&self.note) }
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).expect("a process does not grant 2^63 locks")
}
