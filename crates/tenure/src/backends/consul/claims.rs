//! What this client knows of its own claims: the session of each, its grant, and its queue entry.
//! It is only a memory of responses; the server decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Notify;

use super::layout::LockKeys;
use super::session::Session;
use crate::backend::Owner;
use crate::key::Key;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// How many contended keys are remembered. The memory only saves requests.
const CONTENDED_MAX: usize = 1000;

/// A claim that may have left something at the server.
#[derive(Clone, Debug)]
pub(super) struct ClaimRecord {
    pub(super) key: Key,
    pub(super) session: Arc<Session>,
    pub(super) grant: Option<StoredGrant>,
    /// The queue entry, while it waits.
    pub(super) queue_entry: Option<QueueEntry>,
    /// Whether it ever waited: then the queue marker may name it as the last.
    pub(super) has_waited: bool,
    /// Whether a request has no response that could acquire the lock or create a queue entry.
    pub(super) unconfirmed: bool,
    /// When its release was last requested.
    release_requested: Option<Moment>,
}

/// A grant, and where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredGrant {
    pub(super) token: FencingToken,
    /// The index that its key has as long as it is held and no foreign client writes into it.
    pub(super) index: u64,
    pub(super) key: GrantKey,
}

/// The key that holds a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GrantKey {
    /// The lock: an exclusive grant.
    Lock,
    /// A key of its own, beside others.
    Held {
        /// Whether its request created the holders marker: there was no other holder before.
        first: bool,
    },
}

impl StoredGrant {
    /// The name of its key.
    pub(super) fn name(&self, keys: &LockKeys, owner: Owner) -> String {
        match self.key {
            GrantKey::Lock => keys.lock(),
            GrantKey::Held { .. } => keys.held(owner),
        }
    }
}

/// The queue entry of a claim, and what its waiter knows of the queue.
#[derive(Clone, Debug)]
pub(super) struct QueueEntry {
    /// The index that created it, by which entries are ordered.
    pub(super) created: u64,
    /// How many entries are before it, once that was read.
    pub(super) ahead: Option<u32>,
    pub(super) predecessor: PredecessorKey,
    /// Whether the lock was refused because of a lock-delay: watching its key would not tell when
    /// that ends.
    pub(super) delayed: bool,
    /// The first entry of the queue when the lock was last seen free without being acquired.
    pub(super) stalled: Option<u64>,
}

/// What a waiter has to watch.
#[derive(Clone, Debug)]
pub(super) enum PredecessorKey {
    /// The queue has to be read first.
    Unknown,
    /// The waiter just before this one: watch its queue entry.
    Waiter { key: String, owner: Owner, index: u64 },
    /// The exclusive holder: no waiter blocks this one. Watch the lock.
    Holder { index: u64 },
    /// The holders beside which this one does not fit: no waiter blocks it. Watch all of them.
    Holders { index: u64 },
    /// No waiter blocks this one, and it was seen to fit: acquire.
    Turn,
}

/// The claims of one client.
#[derive(Debug, Default)]
pub(super) struct ClientClaims(Mutex<ClaimMaps>);

#[derive(Debug, Default)]
struct ClaimMaps {
    records: HashMap<Owner, ClaimRecord>,
    /// The waiters of this client.
    queues: HashMap<Key, LocalQueue>,
    /// Keys that other claims waited for when this client released them.
    contended: HashSet<Key>,
}

/// The waiters of this client for one key.
#[derive(Debug, Default)]
struct LocalQueue {
    /// By the index that created the queue entry.
    waiters: BTreeMap<u64, Owner>,
    changed: Arc<Notify>,
}

impl ClientClaims {
    pub(super) fn get(&self, owner: Owner) -> Option<ClaimRecord> {
        self.0.lock().records.get(&owner).cloned()
    }

    /// Adds a claim that hangs on this session.
    pub(super) fn insert(&self, owner: Owner, key: &Key, session: &Arc<Session>) -> ClaimRecord {
        let record = ClaimRecord {
            key: key.clone(),
            session: session.clone(),
            grant: None,
            queue_entry: None,
            has_waited: false,
            unconfirmed: false,
            release_requested: None,
        };
        session.add_claim();
        let mut maps = self.0.lock();
        maps.forget_expired();
        maps.records.insert(owner, record.clone());
        record
    }

    /// Call before a request that could acquire the lock or create a queue entry. Says whether an
    /// earlier such request has no response yet; pass that on to [`ClientClaims::end_request`].
    pub(super) fn begin_request(&self, owner: Owner) -> bool {
        let mut maps = self.0.lock();
        let record = maps.records.get_mut(&owner);
        record.is_none_or(|record| std::mem::replace(&mut record.unconfirmed, true))
    }

    /// Call after the response. A request that is dropped before stays unconfirmed.
    pub(super) fn end_request(&self, owner: Owner, earlier_unconfirmed: bool) {
        self.update(owner, |record| record.unconfirmed = earlier_unconfirmed);
    }

    pub(super) fn set_granted(&self, owner: Owner, grant: StoredGrant) {
        let mut maps = self.0.lock();
        maps.remove_from_queue(owner);
        if let Some(record) = maps.records.get_mut(&owner) {
            record.grant = Some(grant);
        }
    }

    pub(super) fn set_queued(
        &self,
        owner: Owner,
        created: u64,
        ahead: Option<u32>,
        predecessor: PredecessorKey,
    ) {
        let mut maps = self.0.lock();
        let Some(record) = maps.records.get_mut(&owner) else { return };
        record.has_waited = true;
        let entry = QueueEntry { created, ahead, predecessor, delayed: false, stalled: None };
        record.queue_entry = Some(entry);
        let key = record.key.clone();
        maps.queues.entry(key).or_default().waiters.insert(created, owner);
    }

    pub(super) fn update_queue_entry(&self, owner: Owner, change: impl FnOnce(&mut QueueEntry)) {
        self.update(owner, |record| {
            if let Some(entry) = &mut record.queue_entry {
                change(entry);
            }
        });
    }

    /// Forgets a claim whose session is gone, and with it everything that the claim had.
    pub(super) fn remove_with_session(&self, owner: Owner) {
        // A session that is gone need not be ended.
        let _ignored = self.remove(owner);
    }

    /// The claim does not hold its lock any more. It stays in the table until it is released,
    /// because one of its requests may still arrive at the server.
    pub(super) fn clear_grant(&self, owner: Owner) {
        self.update(owner, |record| record.grant = None);
    }

    /// Forgets a claim that has nothing at the server any more. Returns its session if that has to
    /// be ended now.
    pub(super) fn remove(&self, owner: Owner) -> Option<Arc<Session>> {
        let mut maps = self.0.lock();
        maps.remove_from_queue(owner);
        let record = maps.records.remove(&owner)?;
        record.session.remove_claim().then_some(record.session)
    }

    /// Notes that the release of this claim is requested. If it fails, it is repeated after a later
    /// renewal of the session.
    pub(super) fn begin_release(&self, owner: Owner) -> Option<ClaimRecord> {
        let mut maps = self.0.lock();
        let record = maps.records.get_mut(&owner)?;
        record.release_requested = Some(Clock::Boot.now());
        Some(record.clone())
    }

    /// The claims of a session whose release failed, and which the engine has stopped to repeat: it
    /// was last requested more than a ttl ago.
    pub(super) fn failed_releases(&self, session: &Arc<Session>) -> Vec<Owner> {
        let now = Clock::Boot.now();
        let maps = self.0.lock();
        let is_old = |since: Moment| now.since(since) > session.ttl;
        let failed = maps.records.iter().filter(|(_, record)| {
            record.release_requested.is_some_and(is_old) && Arc::ptr_eq(&record.session, session)
        });
        failed.map(|(owner, _)| *owner).collect()
    }

    /// The key with its prefix of a grant of this client, by its token and the end of the key.
    pub(super) fn full_key(&self, suffix: &Key, token: FencingToken) -> Option<Key> {
        let maps = self.0.lock();
        let found = maps.records.values().find(|record| {
            let is_named = record.grant.is_some_and(|grant| grant.token == token);
            is_named && record.key.as_str().ends_with(suffix.as_str())
        });
        found.map(|record| record.key.clone())
    }

    /// Returns when no other claim of this client waits before this one: for each key one claim of
    /// a client watches.
    pub(super) async fn until_first(&self, owner: Owner) {
        loop {
            let Some(changed) = self.change_if_not_first(owner) else { return };
            let mut changed = std::pin::pin!(changed.notified());
            changed.as_mut().enable();
            // Subscribe first, then check again: a change in between is not missed.
            if self.change_if_not_first(owner).is_none() {
                return;
            }
            changed.await;
        }
    }

    /// What notifies of a change of the local queue, if another claim of this client is before this
    /// one.
    fn change_if_not_first(&self, owner: Owner) -> Option<Arc<Notify>> {
        let maps = self.0.lock();
        let record = maps.records.get(&owner)?;
        let created = record.queue_entry.as_ref()?.created;
        let queue = maps.queues.get(&record.key)?;
        let (first, _) = queue.waiters.first_key_value()?;
        (*first < created).then(|| queue.changed.clone())
    }

    /// Whether a claim of this client other than this one holds the key exclusively.
    pub(super) fn has_other_holder(&self, owner: Owner, key: &Key) -> bool {
        let maps = self.0.lock();
        let mut others = maps.records.iter().filter(|(other, _)| **other != owner);
        let is_exclusive = |grant: StoredGrant| grant.key == GrantKey::Lock;
        others.any(|(_, record)| record.key == *key && record.grant.is_some_and(is_exclusive))
    }

    /// Remembers that other claims waited for the key when this client released it.
    pub(super) fn set_contended(&self, key: &Key) {
        let mut maps = self.0.lock();
        if maps.contended.len() >= CONTENDED_MAX {
            maps.contended.clear();
        }
        maps.contended.insert(key.clone());
    }

    /// Whether other claims waited for the key when this client last released it. Forgets it: the
    /// next acquire tries the lock at once.
    pub(super) fn take_contended(&self, key: &Key) -> bool {
        self.0.lock().contended.remove(key)
    }

    fn update(&self, owner: Owner, change: impl FnOnce(&mut ClaimRecord)) {
        if let Some(record) = self.0.lock().records.get_mut(&owner) {
            change(record);
        }
    }
}

impl ClaimMaps {
    /// Forgets claims whose release failed, if their session was not renewed since: the server ends
    /// it. The session is retired, because a new claim would renew it, and with it what the old
    /// claims left there.
    fn forget_expired(&mut self) {
        let now = Clock::Boot.now();
        let expired = self.records.iter().filter(|(_, record)| {
            let is_old = |since: Moment| now.since(since) > record.session.ttl * 2;
            record.release_requested.is_some_and(is_old) && record.session.is_idle(now)
        });
        for owner in expired.map(|(owner, _)| *owner).collect::<Vec<_>>() {
            self.remove_from_queue(owner);
            if let Some(record) = self.records.remove(&owner) {
                record.session.retire();
                record.session.remove_claim();
            }
        }
    }

    /// Removes a waiter from the local queue, and notifies those behind it.
    fn remove_from_queue(&mut self, owner: Owner) {
        let Some(record) = self.records.get_mut(&owner) else { return };
        let Some(entry) = record.queue_entry.take() else { return };
        let Some(queue) = self.queues.get_mut(&record.key) else { return };
        queue.waiters.remove(&entry.created);
        queue.changed.notify_waiters();
        if queue.waiters.is_empty() {
            self.queues.remove(&record.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_failed_release_is_forgotten_when_its_session_is_not_renewed() {
        let table = ClientClaims::default();
        let key = Key::new("k").unwrap();
        let session = |ttl| Arc::new(Session::new("s".to_owned(), ttl, Clock::Boot.now()));
        let (idle, used) = (session(Duration::ZERO), session(Duration::from_secs(60)));
        let owners: Vec<_> = (0..3).map(|_| Owner::random()).collect();
        table.insert(owners[0], &key, &idle);
        table.insert(owners[1], &key, &used);
        table.begin_release(owners[0]);
        table.begin_release(owners[1]);
        std::thread::sleep(Duration::from_millis(1));
        table.insert(owners[2], &key, &used);
        assert!(table.get(owners[0]).is_none(), "it is remembered for ever");
        assert!(!idle.is_open(), "a new claim would keep its lock alive");
        assert!(table.get(owners[1]).is_some(), "its session may be renewed yet");
    }
}
