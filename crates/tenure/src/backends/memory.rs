//! Locks inside one process: for tests, and the executable specification that the other backends
//! are compared with.
//!
//! **State.** For each key that is held: the holder with the token and the end of its lease, and
//! the queue of waiters, each with the end of its queue entry. A key that is free is not stored.
//! All of it is behind one mutex, which is never held across an await.
//!
//! **Invariant.** `Locks::settle` runs before every other step on a key: it drops what has
//! expired and hands a free key to the first waiter whose entry has not expired. So a key in the
//! table has a holder whose lease runs, a waiter never overtakes another one, and every grant takes
//! the next token of one counter.
//!
//! **Handoff.** The lease of the queue entry becomes the lease of the lock. It was counted from the
//! waiter's last request, so that the waiter knows its end without another request.
//!
//! **Wake-ups.** Who waits registers under the same mutex under which it found that it has to wait,
//! and who changes a key delivers under that mutex as well. So no change can happen between the
//! check and the registration. A signal only says that something changed; the next check decides.
//!
//! Time is tokio's, so that tests with paused time work.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::{
    Attempt, Backend, Busy, Claim, Grant, Holder, HolderInfo, Holding, Info, LostReason, Owner,
    Reach, Scope, Waiter,
};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::support::sync::Mutex;
use crate::support::url::Url;
use crate::support::wakeups::{Registration, Signal, Wakeups};
use crate::token::FencingToken;

/// Opens `memory:`, which takes no options of its own.
pub(crate) async fn open(url: Url) -> Result<Memory> {
    url.finish()?;
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
    locks: Arc<Mutex<Locks>>,
}

impl Memory {
    /// Locks that are shared only with the clones of this value. Nothing is held.
    pub fn new() -> Memory {
        Memory::default()
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
        Ok(self.locks.lock().try_acquire(claim, Instant::now()))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut locks = self.locks.lock();
        let now = Instant::now();
        claims.iter().map(|claim| locks.renew(claim, now)).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        Ok(self.locks.lock().release(&claim.key, claim.owner, Instant::now()))
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        loop {
            let availability = self.locks.lock().check(claim, Instant::now());
            match availability {
                Availability::Free => return None,
                Availability::Granted(grant) => return Some(grant),
                Availability::Held { wakeup, expires } => tokio::select! {
                    _signal = wakeup.next() => {}
                    // At the end of a lease there is no release that would deliver a signal.
                    () = tokio::time::sleep_until(expires) => {}
                },
            }
        }
    }

    async fn until_lost(&self, claim: &Claim) {
        let Some(ended) = self.locks.lock().watch_holder(claim) else { return };
        // A lock that ended in between has left a permit.
        ended.notified().await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        Ok(self.locks.lock().list(scope, Instant::now()))
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        Ok(self.locks.lock().evict(key, token, Instant::now()))
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::good("reach", "excludes the tasks and threads of this process only")])
    }
}

#[derive(Default)]
struct Locks {
    keys: HashMap<Key, LockEntry>,
    last_token: u64,
    wakeups: Wakeups<Recipient>,
}

/// One key. It is removed when there is no holder and no waiter.
#[derive(Default)]
struct LockEntry {
    holder: Option<HolderEntry>,
    queue: VecDeque<QueueEntry>,
}

struct HolderEntry {
    owner: Owner,
    token: FencingToken,
    since: Instant,
    expires: Instant,
    info: HolderInfo,
    /// Notified when the lock ends. Every lock that is held is watched, and a registration for each
    /// would need a third more memory.
    ended: Arc<Notify>,
}

/// A waiter. Its entry ends a ttl after its last request, as a lock does.
struct QueueEntry {
    owner: Owner,
    since: Instant,
    expires: Instant,
    info: HolderInfo,
}

/// Whom a signal wakes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Recipient {
    /// The waiter with this owner.
    Waiter(Owner),
    /// All clients that wait for the key to be free, but have no queue entry.
    Watchers(Key),
}

/// What a waiter finds when it checks its key.
enum Availability {
    Free,
    Granted(Grant),
    /// Wait for the wake-up, or for the end of the holder's lease.
    Held {
        wakeup: Registration<Recipient>,
        expires: Instant,
    },
}

impl Locks {
    /// Drops what has expired and hands a free key to the first waiter whose entry has not expired.
    /// Afterwards a key is in the table only if it is held.
    fn settle(&mut self, key: &Key, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        if state.holder.as_ref().is_some_and(|holder| holder.expires > now) {
            return;
        }
        if let Some(expired) = state.holder.take() {
            expired.ended.notify_one();
        }
        while let Some(waiter) = state.queue.pop_front() {
            if waiter.expires > now {
                self.last_token += 1;
                self.wakeups.deliver(&Recipient::Waiter(waiter.owner), Signal::RECHECK);
                state.holder = Some(HolderEntry {
                    owner: waiter.owner,
                    token: token(self.last_token),
                    since: now,
                    // Not a ttl from now: the waiter counts from its last request.
                    expires: waiter.expires,
                    info: waiter.info,
                    ended: Arc::default(),
                });
                return;
            }
        }
        self.keys.remove(key);
        self.wakeups.deliver(&Recipient::Watchers(key.clone()), Signal::RECHECK);
    }

    fn try_acquire(&mut self, claim: &Claim, now: Instant) -> Attempt<Grant> {
        self.settle(&claim.key, now);
        let held = self.keys.get_mut(&claim.key);
        let Some(LockEntry { holder: Some(holder), queue }) = held else {
            return Attempt::Granted(self.grant(claim, now));
        };
        if holder.owner == claim.owner {
            // A repeated request gets the same grant, and never a shorter lease.
            holder.expires = holder.expires.max(now + claim.ttl);
            return Attempt::Granted(Grant::new(holder.token, claim.ttl));
        }
        let mut busy = Busy::new(claim.key.clone());
        busy.retry_after = Some(holder.expires - now);
        busy.holder = Some(Box::new(holder.describe(now)));
        if claim.waits {
            busy.ahead = Some(enqueue(queue, claim, now));
        }
        Attempt::Busy(busy)
    }

    fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        self.last_token += 1;
        let token = token(self.last_token);
        let holder = HolderEntry {
            owner: claim.owner,
            token,
            since: now,
            expires: now + claim.ttl,
            info: claim.holder_info.clone(),
            ended: Arc::default(),
        };
        self.keys.entry(claim.key.clone()).or_default().holder = Some(holder);
        Grant::new(token, claim.ttl)
    }

    fn renew(&mut self, claim: &Claim, now: Instant) -> Result<Duration> {
        self.settle(&claim.key, now);
        match self.keys.get_mut(&claim.key).and_then(|state| state.holder.as_mut()) {
            Some(holder) if holder.owner == claim.owner && holder.is_grant(claim.token) => {
                holder.expires = holder.expires.max(now + claim.ttl);
                Ok(claim.ttl)
            }
            Some(_) => Err(Error::gone(LostReason::TakenOver)),
            None => Err(Error::not_held()),
        }
    }

    /// Removes the owner from the key, as a waiter or as its holder.
    fn release(&mut self, key: &Key, owner: Owner, now: Instant) -> bool {
        self.settle(key, now);
        let Some(state) = self.keys.get_mut(key) else { return false };
        state.queue.retain(|waiter| waiter.owner != owner);
        let Some(holder) = state.holder.take_if(|holder| holder.owner == owner) else {
            return false;
        };
        holder.ended.notify_one();
        self.settle(key, now);
        true
    }

    fn evict(&mut self, key: &Key, token: FencingToken, now: Instant) -> bool {
        self.settle(key, now);
        let holder = self.keys.get(key).and_then(|state| state.holder.as_ref());
        match holder.filter(|holder| holder.token == token).map(|holder| holder.owner) {
            Some(owner) => self.release(key, owner, now),
            None => false,
        }
    }

    /// Checks whether the claim may have its key, and registers it for a wake-up if not.
    fn check(&mut self, claim: &Claim, now: Instant) -> Availability {
        self.settle(&claim.key, now);
        let held = self.keys.get(&claim.key);
        let Some(LockEntry { holder: Some(holder), queue }) = held else {
            return Availability::Free;
        };
        if holder.owner == claim.owner {
            // The lease began with the waiter's last request; the engine counts it from there.
            return Availability::Granted(Grant::new(holder.token, claim.ttl));
        }
        let queued = queue.iter().any(|waiter| waiter.owner == claim.owner);
        let recipient = if queued {
            Recipient::Waiter(claim.owner)
        } else {
            Recipient::Watchers(claim.key.clone())
        };
        let wakeup = self.wakeups.register(recipient);
        Availability::Held { wakeup, expires: holder.expires }
    }

    /// Notified when the lock of the claim ends; `None` if the claim does not hold it.
    fn watch_holder(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let holder = self.keys.get(&claim.key).and_then(|state| state.holder.as_ref())?;
        (holder.owner == claim.owner).then(|| holder.ended.clone())
    }

    fn list(&mut self, scope: Scope<'_>, now: Instant) -> Vec<Holding> {
        let keys: Vec<Key> = self.keys.keys().filter(|key| scope.contains(key)).cloned().collect();
        keys.iter().for_each(|key| self.settle(key, now));
        let mut holdings: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let state = self.keys.get(&key)?;
                let holder = state.holder.as_ref()?.describe(now);
                let mut holding = Holding::new(key, holder);
                let waiters = state.queue.iter().filter(|waiter| waiter.expires > now);
                holding.waiters = waiters.map(|waiter| waiter.describe(now)).collect();
                Some(holding)
            })
            .collect();
        holdings.sort_by(|a, b| a.key.cmp(&b.key));
        holdings
    }
}

/// Adds a claim to the queue, or refreshes its entry. Returns how many waiters are ahead of it.
fn enqueue(queue: &mut VecDeque<QueueEntry>, claim: &Claim, now: Instant) -> u32 {
    let expires = now + claim.ttl;
    queue.retain(|waiter| waiter.expires > now);
    let rank = match queue.iter().position(|waiter| waiter.owner == claim.owner) {
        Some(rank) => {
            queue[rank].expires = queue[rank].expires.max(expires);
            rank
        }
        None => {
            let info = claim.holder_info.clone();
            queue.push_back(QueueEntry { owner: claim.owner, since: now, expires, info });
            queue.len() - 1
        }
    };
    u32::try_from(rank).unwrap_or(u32::MAX)
}

impl HolderEntry {
    /// Whether this is the grant that a renewal names.
    fn is_grant(&self, token: Option<FencingToken>) -> bool {
        token.is_none_or(|token| token == self.token)
    }

    fn describe(&self, now: Instant) -> Holder {
        Holder {
            token: Some(self.token),
            held_for: Some(now - self.since),
            ttl_left: Some(self.expires - now),
            ..Holder::new(&self.info)
        }
    }
}

impl QueueEntry {
    fn describe(&self, now: Instant) -> Waiter {
        Waiter { waiting_for: Some(now - self.since), ..Waiter::new(&self.info) }
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).expect("a process does not grant 2^63 locks")
}
