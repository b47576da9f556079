//! A snapshot of the keys of one lock, and what they mean: whether it is held, by whom, and who
//! waits.

use super::claims::{ClaimRecord, ClientClaims, PredecessorKey};
use super::connection::api::KvEntry;
use super::layout::{KeyRole, LOCK_FLAG, LockRecord, role};
use crate::backend::{Busy, Holder, HolderInfo, Owner};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// A lock, its queue marker and its queue entries, as they were at one moment.
#[derive(Debug, Default)]
pub(super) struct KeySnapshot {
    pub(super) lock: Option<KvEntry>,
    pub(super) queue_marker: Option<KvEntry>,
    /// The queue entries, in the order in which they were created.
    pub(super) waiters: Vec<(Owner, KvEntry)>,
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
            match role(&entry.key) {
                Some(KeyRole::Lock(of)) if of == *key => snapshot.lock = Some(entry),
                Some(KeyRole::QueueMarker(of)) if of == *key => {
                    snapshot.queue_marker = Some(entry);
                }
                Some(KeyRole::QueueEntry(of, owner)) if of == *key => {
                    snapshot.waiters.push((owner, entry));
                }
                _ => {}
            }
        }
        snapshot.waiters.sort_by_key(|(_, entry)| entry.created);
        snapshot
    }

    /// How many claims wait before the queue entry that was created at this index.
    pub(super) fn ahead(&self, created: u64) -> u32 {
        let ahead = self.waiters.iter().take_while(|(_, entry)| entry.created < created).count();
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// What the waiter whose queue entry was created at this index has to watch.
    pub(super) fn predecessor(&self, created: u64) -> PredecessorKey {
        let ahead = self.waiters.iter().take_while(|(_, entry)| entry.created < created);
        match ahead.last() {
            Some((owner, entry)) => PredecessorKey::Waiter {
                key: entry.key.clone(),
                owner: *owner,
                index: entry.modified,
            },
            None => PredecessorKey::Holder {
                index: self.lock.as_ref().map_or(0, |entry| entry.modified),
            },
        }
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
    let overwritten = LockRecord::decode(&lock.value).is_none() && record.token.is_some();
    // The value does not say any more which claim of the session holds.
    own_session && overwritten && !claims.has_other_holder(owner, &record.key)
}

/// The fencing token of the grant that wrote this entry: the first one of the range that belongs to
/// its index.
pub(super) fn token(lock: &KvEntry) -> Result<FencingToken> {
    FencingToken::of_index(lock.modified)
}

/// The holder, as far as the lock's key describes it.
pub(super) fn holder(lock: &KvEntry) -> Holder {
    let token = token(lock).ok();
    match LockRecord::decode(&lock.value) {
        Some(stored) => {
            Holder { token, ttl_left: Some(stored.ttl), ..Holder::new(&stored.holder_info) }
        }
        None => Holder { token, ..Holder::new(&HolderInfo::new("", "", 0, lock.value.as_str())) },
    }
}

/// The response to a claim that this holder keeps from the lock. If the holder has crashed, Consul
/// may take twice its ttl to end the session, and keeps the key locked for the lock-delay after
/// that.
pub(super) fn busy(key: &Key, lock: &KvEntry, ahead: Option<u32>) -> Busy {
    let mut busy = Busy::new(key.clone());
    let stored = LockRecord::decode(&lock.value);
    busy.retry_after = stored.map(|stored| stored.ttl * 2 + stored.lock_delay);
    busy.holder = Some(Box::new(holder(lock)));
    busy.ahead = ahead;
    busy
}
