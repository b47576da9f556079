//! A snapshot of the keys of one lock, and what they mean: who holds it, who waits, and whether a
//! claim fits.

use std::time::Duration;

use super::claims::{ClaimRecord, ClientClaims, GrantKey, PredecessorKey, StoredGrant};
use super::connection::api::KvEntry;
use super::layout::{KeyRole, LOCK_FLAG, LockRecord, Marker, role};
use crate::backend::{Busy, Holder, HolderInfo, Mode, Owner};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The keys of a lock, as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct KeySnapshot {
    pub(super) lock: Option<KvEntry>,
    /// The grants beside others, in the order in which they were created.
    pub(super) holders: Vec<OwnedEntry>,
    /// The queue entries, in the order in which they were created.
    pub(super) waiters: Vec<OwnedEntry>,
    markers: Vec<(Marker, KvEntry)>,
}

/// A grant beside others, or a queue entry.
#[derive(Debug)]
pub(super) struct OwnedEntry {
    pub(super) owner: Owner,
    /// A value that cannot be read counts as exclusive, beside which nothing fits.
    pub(super) mode: Mode,
    pub(super) entry: KvEntry,
}

/// What the lock's own key says.
#[derive(Debug)]
pub(super) enum LockState<'a> {
    /// The lock can be acquired. Foreign clients that use Consul's own library leave the key behind
    /// when they release: then the lock is free, and its key has this index.
    Free(Option<u64>),
    Held(&'a KvEntry),
}

impl KeySnapshot {
    /// Picks the keys of one lock from the entries of a read.
    pub(super) fn new(key: &Key, entries: impl IntoIterator<Item = KvEntry>) -> KeySnapshot {
        let mut snapshot = KeySnapshot::default();
        for entry in entries {
            match role(&entry.key).filter(|role| role.lock() == key) {
                Some(KeyRole::Lock(_)) => snapshot.lock = Some(entry),
                Some(KeyRole::Marker(_, marker)) => snapshot.markers.push((marker, entry)),
                Some(KeyRole::Held(_, owner)) => {
                    snapshot.holders.push(OwnedEntry::new(owner, entry));
                }
                Some(KeyRole::QueueEntry(_, owner)) => {
                    snapshot.waiters.push(OwnedEntry::new(owner, entry));
                }
                None => {}
            }
        }
        snapshot.holders.sort_by_key(|holder| holder.entry.created);
        snapshot.waiters.sort_by_key(|waiter| waiter.entry.created);
        snapshot
    }

    pub(super) fn marker(&self, marker: Marker) -> Option<&KvEntry> {
        self.markers.iter().find(|(kind, _)| *kind == marker).map(|(_, entry)| entry)
    }

    /// The owner of the last key of the kind that a marker stands for.
    pub(super) fn last(&self, marker: Marker) -> Option<Owner> {
        let all = match marker {
            Marker::Queue => &self.waiters,
            Marker::Holders | Marker::Permits => &self.holders,
        };
        all.last().map(|last| last.owner)
    }

    /// How many claims wait before the queue entry that was created at this index.
    pub(super) fn ahead(&self, created: u64) -> u32 {
        u32::try_from(self.before(created).count()).unwrap_or(u32::MAX)
    }

    fn before(&self, created: u64) -> impl Iterator<Item = &OwnedEntry> {
        self.waiters.iter().take_while(move |waiter| waiter.entry.created < created)
    }

    /// The nearest waiter that has to leave the queue before a claim of this mode may be granted,
    /// even if it fits. `created` is the index of the claim's own queue entry. A reader waits for
    /// no reader before it: that one fits as well, and needs no help to come in.
    pub(super) fn blocking_waiter(&self, mode: Mode, created: Option<u64>) -> Option<&OwnedEntry> {
        let Some(created) = created else { return self.waiters.last() };
        let passes = |waiter: &OwnedEntry| mode == Mode::Shared && waiter.mode == Mode::Shared;
        self.before(created).filter(|waiter| !passes(waiter)).last()
    }

    /// Whether a claim of this mode fits beside those who hold.
    pub(super) fn fits(&self, mode: Mode) -> bool {
        let used: u64 = self.holders.iter().map(|holder| u64::from(holder.mode.weight())).sum();
        let is_locked = self.lock.as_ref().is_some_and(|lock| lock.session.is_some());
        !is_locked && used + u64::from(mode.weight()) <= u64::from(mode.limit())
    }

    /// The first waiter of the queue, if it could be granted now.
    pub(super) fn first_that_fits(&self) -> Option<u64> {
        let first = self.waiters.first().filter(|first| self.fits(first.mode));
        first.map(|first| first.entry.created)
    }

    /// A key is a lock or a semaphore, as long as it has holders or waiters.
    ///
    /// # Errors
    ///
    /// `Invalid` for a claim of the other kind.
    pub(super) fn check_kind(&self, key: &Key, mode: Mode, created: Option<u64>) -> Result<()> {
        let locked = self.lock.as_ref().filter(|lock| lock.session.is_some());
        let first_holder = self.holders.first().map(|holder| holder.mode);
        let first_waiter = self.before(created.unwrap_or(u64::MAX)).next();
        let used = locked
            .map(|_| Mode::Exclusive)
            .or(first_holder)
            .or_else(|| first_waiter.map(|waiter| waiter.mode));
        match used {
            Some(used) if used.is_lock() != mode.is_lock() => Err(Error::other_kind(key, used)),
            _ => Ok(()),
        }
    }

    /// What a waiter has to watch. `created` is the index of its queue entry.
    pub(super) fn predecessor(
        &self,
        key: &Key,
        mode: Mode,
        created: u64,
    ) -> Result<PredecessorKey> {
        if let Some(waiter) = self.blocking_waiter(mode, Some(created)) {
            let OwnedEntry { owner, entry, .. } = waiter;
            let (key, index) = (entry.key.clone(), entry.modified);
            return Ok(PredecessorKey::Waiter { key, owner: *owner, index });
        }
        match lock_state(key, self.lock.as_ref())? {
            LockState::Held(lock) => Ok(PredecessorKey::Holder { index: lock.modified }),
            // No change would end a query: the claim can be granted.
            LockState::Free(_) if self.fits(mode) => Ok(PredecessorKey::Turn),
            LockState::Free(_) => Ok(PredecessorKey::Holders { index: self.last_change() }),
        }
    }

    /// The index of the last change of the holders that the snapshot shows. A holder that leaves
    /// after the snapshot leaves at a higher one.
    pub(super) fn last_change(&self) -> u64 {
        self.holders.iter().map(|holder| holder.entry.modified).max().unwrap_or(0)
    }

    /// The grant of this claim, in whichever mode.
    pub(super) fn own_grant(
        &self,
        claims: &ClientClaims,
        owner: Owner,
        record: &ClaimRecord,
    ) -> Result<Option<StoredGrant>> {
        let in_session = |entry: &KvEntry| entry.session.as_deref() == Some(&*record.session.id);
        let mut holders = self.holders.iter();
        if let Some(held) = holders.find(|held| held.owner == owner && in_session(&held.entry)) {
            return held.grant().map(Some);
        }
        let is_own = |lock: &&KvEntry| is_held_or_overwritten(claims, lock, owner, record);
        let Some(lock) = self.lock.as_ref().filter(is_own) else { return Ok(None) };
        // If a foreign client has overwritten the value, the index is that of its write.
        let known = record.grant.filter(|grant| lock.created <= grant.token.index());
        let token = match known {
            Some(grant) => grant.token,
            None => token(lock)?,
        };
        Ok(Some(StoredGrant { token, index: lock.modified, key: GrantKey::Lock }))
    }

    /// The response to a claim that does not fit, or has waiters before it.
    pub(super) fn busy(&self, key: &Key, ahead: Option<u32>) -> Busy {
        let mut busy = Busy::new(key.clone());
        busy.ahead = ahead;
        let mut holders: Vec<_> = self.holders.iter().map(OwnedEntry::holder).collect();
        holders.sort_by_key(|holder| holder.token);
        busy.holders = u32::try_from(holders.len()).unwrap_or(u32::MAX);
        let records = self.holders.iter().filter_map(|held| LockRecord::decode(&held.entry.value));
        busy.retry_after = records.map(|record| longest_end(&record)).min();
        busy.holder = holders.into_iter().next().map(Box::new);
        busy
    }
}

impl OwnedEntry {
    pub(super) fn new(owner: Owner, entry: KvEntry) -> OwnedEntry {
        let record = LockRecord::decode(&entry.value);
        OwnedEntry { owner, mode: record.map_or(Mode::Exclusive, |record| record.mode), entry }
    }

    /// The grant that this entry is.
    pub(super) fn grant(&self) -> Result<StoredGrant> {
        let downgraded = LockRecord::decode(&self.entry.value).and_then(|record| record.downgraded);
        let token = FencingToken::of_index(downgraded.unwrap_or(self.entry.created))?;
        let key = GrantKey::Held { first: false };
        Ok(StoredGrant { token, index: self.entry.modified, key })
    }

    pub(super) fn holder(&self) -> Holder {
        let token = self.grant().ok().map(|grant| grant.token);
        Holder { token, mode: self.mode, ..holder(&self.entry) }
    }
}

/// Whether the lock's key says that it is held.
///
/// # Errors
///
/// `Invalid` if the key is not that of a lock.
pub(super) fn lock_state<'a>(key: &Key, lock: Option<&'a KvEntry>) -> Result<LockState<'a>> {
    match lock {
        None => Ok(LockState::Free(None)),
        Some(entry) if entry.session.is_some() => Ok(LockState::Held(entry)),
        Some(entry) if entry.flags == LOCK_FLAG => Ok(LockState::Free(Some(entry.modified))),
        Some(entry) => {
            let message = format!(
                "`{key}`: the key `{}` in Consul is used for something else than a lock; choose \
                 another name, or delete it",
                entry.key.escape_debug()
            );
            Err(Error::new(ErrorKind::Invalid, message))
        }
    }
}

/// Whether this claim holds the lock.
pub(super) fn is_held_by(lock: &KvEntry, owner: Owner, record: &ClaimRecord) -> bool {
    let own_session = lock.session.as_deref() == Some(record.session.id.as_str());
    // Claims of one client share a session: only the value says which of them holds.
    own_session && LockRecord::decode(&lock.value).is_some_and(|stored| stored.owner == owner)
}

/// Whether this claim holds the lock, also if a foreign client has overwritten the value: a plain
/// write leaves the lock with its session.
pub(super) fn is_held_or_overwritten(
    claims: &ClientClaims,
    lock: &KvEntry,
    owner: Owner,
    record: &ClaimRecord,
) -> bool {
    if is_held_by(lock, owner, record) {
        return true;
    }
    let own_session = lock.session.as_deref() == Some(record.session.id.as_str());
    let is_exclusive = record.grant.is_some_and(|grant| grant.key == GrantKey::Lock);
    let overwritten = LockRecord::decode(&lock.value).is_none() && is_exclusive;
    // The value does not say any more which claim of the session holds.
    own_session && overwritten && !claims.has_other_holder(owner, &record.key)
}

/// The fencing token of the exclusive grant that wrote this entry: the first one of the range that
/// belongs to its index.
pub(super) fn token(lock: &KvEntry) -> Result<FencingToken> {
    FencingToken::of_index(lock.modified)
}

/// The holder, as far as its key describes it.
pub(super) fn holder(lock: &KvEntry) -> Holder {
    let token = token(lock).ok();
    match LockRecord::decode(&lock.value) {
        Some(stored) => {
            Holder { token, ttl_left: Some(stored.ttl), ..Holder::new(&stored.holder_info) }
        }
        None => Holder { token, ..Holder::new(&HolderInfo::new("", "", 0, lock.value.as_str())) },
    }
}

/// The response to a claim that this holder keeps from the lock.
pub(super) fn busy(key: &Key, lock: &KvEntry, ahead: Option<u32>) -> Busy {
    let mut busy = Busy::new(key.clone());
    let stored = LockRecord::decode(&lock.value);
    busy.retry_after = stored.map(|stored| longest_end(&stored));
    busy.holder = Some(Box::new(holder(lock)));
    busy.holders = 1;
    busy.ahead = ahead;
    busy
}

/// If the holder has crashed, Consul may take twice its ttl to end the session, and keeps the key
/// of an exclusive holder locked for the lock-delay after that.
fn longest_end(record: &LockRecord) -> Duration {
    let lock_delay =
        if record.mode == Mode::Exclusive { record.lock_delay } else { Duration::ZERO };
    record.ttl * 2 + lock_delay
}
