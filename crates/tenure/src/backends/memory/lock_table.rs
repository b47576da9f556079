//! The table of locks: the rule of [`Mode`] as code.
//!
//! **State.** For each key that is held: its holders, each with its token and the end of its lease,
//! and the queue of waiters, each with the end of its queue entry. A key that is free is not
//! stored. All of it is behind one mutex, which is never held across an await.
//!
//! **Invariant.** `LockTable::settle` runs before and after every other step on a key: it drops
//! what has expired and grants the first waiter whose entry has not expired for as long as it fits
//! beside the holders. So a key in the table has a holder whose lease runs, the first waiter does
//! not fit, a waiter never overtakes another one, and every grant takes the next token of one
//! counter.
//!
//! **Handoff.** The lease of the queue entry becomes the lease of the lock. It was counted from the
//! waiter's last request, so that the waiter knows its end without another request.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::backend::{
    Attempt, Busy, Claim, Grant, Holder, HolderInfo, Holding, LostReason, Mode, Owner, Scope,
    Waiter,
};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::support::wakeups::{Registration, Signal, Wakeups};
use crate::token::FencingToken;

/// All keys that are held.
#[derive(Default)]
pub(super) struct LockTable {
    keys: HashMap<Key, LockEntry>,
    last_token: u64,
    wakeups: Wakeups<Recipient>,
}

/// One key. It is removed when there is no holder and no waiter.
#[derive(Default)]
struct LockEntry {
    /// The oldest first.
    holders: Vec<HolderEntry>,
    queue: VecDeque<QueueEntry>,
}

struct HolderEntry {
    owner: Owner,
    mode: Mode,
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
    mode: Mode,
    since: Instant,
    expires: Instant,
    info: HolderInfo,
}

/// Whom a signal wakes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Recipient {
    /// The waiter with this owner.
    Waiter(Owner),
    /// All clients that watch the holders of the key, but have no queue entry.
    Watchers(Key),
}

/// What a waiter finds when it checks its key.
pub(super) enum Availability {
    Free,
    Granted(Grant),
    /// Wait for the wake-up, or for the end of a lease that may let a waiter in.
    Held {
        wakeup: Registration<Recipient>,
        expires: Instant,
        queued: bool,
    },
}

impl LockTable {
    /// Drops what has expired, and grants waiters from the head of the queue while they fit.
    /// Afterwards a key is in the table only if it is held.
    fn settle(&mut self, key: &Key, now: Instant) {
        let Some(state) = self.keys.get_mut(key) else { return };
        let mut changed = state.drop_expired(now);
        while let Some(waiter) = state.next_waiter(now) {
            self.last_token += 1;
            self.wakeups.deliver(&Recipient::Waiter(waiter.owner), Signal::RECHECK);
            state.holders.push(waiter.granted(token(self.last_token), now));
            changed = true;
        }
        if state.holders.is_empty() {
            self.keys.remove(key);
        }
        if changed {
            self.wakeups.deliver(&Recipient::Watchers(key.clone()), Signal::RECHECK);
        }
    }

    pub(super) fn try_acquire(&mut self, claim: &Claim, now: Instant) -> Result<Attempt<Grant>> {
        if let Some(state) = self.keys.get_mut(&claim.key) {
            state.refresh(claim, now);
        }
        self.settle(&claim.key, now);
        let Some(state) = self.keys.get_mut(&claim.key) else {
            return Ok(Attempt::Granted(self.grant(claim, now)));
        };
        if let Some(holder) = state.holder_mut(claim.owner) {
            // A repeated request gets the same grant, and never a shorter lease.
            holder.expires = holder.expires.max(now + claim.ttl);
            return Ok(Attempt::Granted(Grant::new(holder.token, claim.ttl)));
        }
        state.check_kind(claim)?;
        if state.queue.is_empty() && fits(&state.holders, claim.mode) {
            return Ok(Attempt::Granted(self.grant(claim, now)));
        }
        Ok(Attempt::Busy(state.busy(claim, now)))
    }

    fn grant(&mut self, claim: &Claim, now: Instant) -> Grant {
        self.last_token += 1;
        let token = token(self.last_token);
        let holder = HolderEntry {
            owner: claim.owner,
            mode: claim.mode,
            token,
            since: now,
            expires: now + claim.ttl,
            info: claim.holder_info.clone(),
            ended: Arc::default(),
        };
        let holders = &mut self.keys.entry(claim.key.clone()).or_default().holders;
        if holders.is_empty() {
            // Most keys have one holder; a vector would make room for four.
            holders.reserve_exact(1);
        }
        holders.push(holder);
        self.wakeups.deliver(&Recipient::Watchers(claim.key.clone()), Signal::RECHECK);
        Grant::new(token, claim.ttl)
    }

    /// Makes an exclusive grant shared. It keeps its token, and is never free in between.
    pub(super) fn downgrade(
        &mut self,
        claim: &Claim,
        token: FencingToken,
        now: Instant,
    ) -> Result<Grant> {
        self.settle(&claim.key, now);
        let state = self.keys.get_mut(&claim.key).ok_or_else(Error::not_held)?;
        let holder = state.holder_mut(claim.owner).filter(|holder| holder.token == token);
        let holder = holder.ok_or_else(|| Error::gone(LostReason::TakenOver))?;
        holder.mode = claim.mode;
        holder.expires = holder.expires.max(now + claim.ttl);
        self.settle(&claim.key, now);
        Ok(Grant::new(token, claim.ttl))
    }

    pub(super) fn renew(&mut self, claim: &Claim, now: Instant) -> Result<Duration> {
        self.settle(&claim.key, now);
        let state = self.keys.get_mut(&claim.key).ok_or_else(Error::not_held)?;
        let Some(holder) = state.holder_mut(claim.owner) else {
            // Who fits beside the others was not replaced by them.
            let replaced = !fits(&state.holders, claim.mode);
            let reason = Error::gone(LostReason::TakenOver);
            return Err(if replaced { reason } else { Error::not_held() });
        };
        if claim.token.is_some_and(|token| token != holder.token) {
            return Err(Error::gone(LostReason::TakenOver));
        }
        holder.expires = holder.expires.max(now + claim.ttl);
        Ok(claim.ttl)
    }

    /// Removes the owner from the key, as a waiter or as a holder. Either may let others in.
    pub(super) fn release(&mut self, key: &Key, owner: Owner, now: Instant) -> bool {
        self.settle(key, now);
        let Some(state) = self.keys.get_mut(key) else { return false };
        state.queue.retain(|waiter| waiter.owner != owner);
        let rank = state.holders.iter().position(|holder| holder.owner == owner);
        let released = rank.map(|rank| state.holders.remove(rank));
        if let Some(holder) = &released {
            holder.ended.notify_one();
            self.wakeups.deliver(&Recipient::Watchers(key.clone()), Signal::RECHECK);
        }
        self.settle(key, now);
        released.is_some()
    }

    pub(super) fn evict(&mut self, key: &Key, token: FencingToken, now: Instant) -> bool {
        self.settle(key, now);
        let mut holders = self.keys.get(key).into_iter().flat_map(|state| &state.holders);
        match holders.find(|holder| holder.token == token).map(|holder| holder.owner) {
            Some(owner) => self.release(key, owner, now),
            None => false,
        }
    }

    /// Checks whether the claim may have its key, and registers it for a wake-up if not.
    pub(super) fn check(&mut self, claim: &Claim, now: Instant) -> Availability {
        self.settle(&claim.key, now);
        let Some(state) = self.keys.get(&claim.key) else { return Availability::Free };
        if let Some(holder) = state.holders.iter().find(|holder| holder.owner == claim.owner) {
            // The lease began with the waiter's last request; the engine counts it from there.
            return Availability::Granted(Grant::new(holder.token, claim.ttl));
        }
        let queued = state.queue.iter().any(|waiter| waiter.owner == claim.owner);
        let recipient = if queued {
            Recipient::Waiter(claim.owner)
        } else {
            Recipient::Watchers(claim.key.clone())
        };
        let wakeup = self.wakeups.register(recipient);
        Availability::Held { wakeup, expires: state.next_end(), queued }
    }

    /// Notified when the lock of the claim ends; `None` if the claim does not hold it.
    pub(super) fn watch_holder(&self, claim: &Claim) -> Option<Arc<Notify>> {
        let holders = &self.keys.get(&claim.key)?.holders;
        let holder = holders.iter().find(|holder| holder.owner == claim.owner)?;
        Some(holder.ended.clone())
    }

    pub(super) fn list(&mut self, scope: Scope<'_>, now: Instant) -> Vec<Holding> {
        let keys: Vec<Key> = self.keys.keys().filter(|key| scope.contains(key)).cloned().collect();
        keys.iter().for_each(|key| self.settle(key, now));
        let mut holdings: Vec<_> = keys
            .into_iter()
            .filter_map(|key| {
                let state = self.keys.get(&key)?;
                let holders = state.holders.iter().map(|holder| holder.describe(now)).collect();
                let mut holding = Holding::of(key, holders)?;
                let waiters = state.queue.iter().filter(|waiter| waiter.expires > now);
                holding.waiters = waiters.map(|waiter| waiter.describe(now)).collect();
                Some(holding)
            })
            .collect();
        holdings.sort_by(|a, b| a.key.cmp(&b.key));
        holdings
    }
}

/// Whether a claim of this mode fits beside the holders.
fn fits(holders: &[HolderEntry], mode: Mode) -> bool {
    let used: u64 = holders.iter().map(|holder| u64::from(holder.mode.weight())).sum();
    used + u64::from(mode.weight()) <= u64::from(mode.limit())
}

impl LockEntry {
    /// Whether any holder has expired.
    fn drop_expired(&mut self, now: Instant) -> bool {
        let before = self.holders.len();
        self.holders.retain(|holder| {
            let lives = holder.expires > now;
            if !lives {
                holder.ended.notify_one();
            }
            lives
        });
        self.holders.len() < before
    }

    /// Takes the first waiter from the queue, if it fits.
    fn next_waiter(&mut self, now: Instant) -> Option<QueueEntry> {
        while self.queue.front().is_some_and(|waiter| waiter.expires <= now) {
            self.queue.pop_front();
        }
        let fits = self.queue.front().is_some_and(|waiter| fits(&self.holders, waiter.mode));
        if fits { self.queue.pop_front() } else { None }
    }

    fn holder_mut(&mut self, owner: Owner) -> Option<&mut HolderEntry> {
        self.holders.iter_mut().find(|holder| holder.owner == owner)
    }

    /// Extends the queue entry of a claim that waits again, with the numbers that it states now.
    fn refresh(&mut self, claim: &Claim, now: Instant) {
        let mut queue = self.queue.iter_mut();
        let own = queue.find(|waiter| waiter.owner == claim.owner && waiter.expires > now);
        if let Some(entry) = own {
            entry.expires = entry.expires.max(now + claim.ttl);
            if entry.mode.is_lock() == claim.mode.is_lock() {
                entry.mode = claim.mode;
            }
        }
    }

    /// A key is a lock or a semaphore, for as long as it has holders or waiters.
    fn check_kind(&self, claim: &Claim) -> Result<()> {
        match self.holders.first() {
            Some(holder) if holder.mode.is_lock() != claim.mode.is_lock() => {
                Err(Error::other_kind(&claim.key, holder.mode))
            }
            _ => Ok(()),
        }
    }

    /// The response to a claim that does not fit, or has waiters before it. Leaves a queue entry
    /// if the claim waits.
    fn busy(&mut self, claim: &Claim, now: Instant) -> Busy {
        let mut busy = Busy::new(claim.key.clone());
        busy.retry_after = Some(self.next_end() - now);
        busy.holder = self.holders.first().map(|holder| Box::new(holder.describe(now)));
        busy.holders = u32::try_from(self.holders.len()).unwrap_or(u32::MAX);
        if claim.waits {
            busy.ahead = Some(enqueue(&mut self.queue, claim, now));
        }
        busy
    }

    /// The first end that may let a waiter in: of a holder's lease, or of the first waiter's entry.
    fn next_end(&self) -> Instant {
        let holders = self.holders.iter().map(|holder| holder.expires);
        let first = self.queue.front().map(|waiter| waiter.expires);
        holders.chain(first).min().expect("a key in the table is held")
    }
}

/// Adds a claim to the queue, unless it is there. Returns how many waiters are ahead of it.
fn enqueue(queue: &mut VecDeque<QueueEntry>, claim: &Claim, now: Instant) -> u32 {
    queue.retain(|waiter| waiter.expires > now);
    let rank = match queue.iter().position(|waiter| waiter.owner == claim.owner) {
        Some(rank) => rank,
        None => {
            queue.push_back(QueueEntry {
                owner: claim.owner,
                mode: claim.mode,
                since: now,
                expires: now + claim.ttl,
                info: claim.holder_info.clone(),
            });
            queue.len() - 1
        }
    };
    u32::try_from(rank).unwrap_or(u32::MAX)
}

impl HolderEntry {
    fn describe(&self, now: Instant) -> Holder {
        Holder {
            mode: self.mode,
            token: Some(self.token),
            held_for: Some(now - self.since),
            ttl_left: Some(self.expires - now),
            ..Holder::new(&self.info)
        }
    }
}

impl QueueEntry {
    fn granted(self, token: FencingToken, now: Instant) -> HolderEntry {
        HolderEntry {
            owner: self.owner,
            mode: self.mode,
            token,
            since: now,
            // Not a ttl from now: the waiter counts from its last request.
            expires: self.expires,
            info: self.info,
            ended: Arc::default(),
        }
    }

    fn describe(&self, now: Instant) -> Waiter {
        let waiting_for = Some(now - self.since);
        Waiter { mode: self.mode, waiting_for, ..Waiter::new(&self.info) }
    }
}

fn token(number: u64) -> FencingToken {
    FencingToken::new(number).expect("a process does not grant 2^63 locks")
}
