//! What this client has at the server: which claim hangs on which session, who waits where in the
//! queue. Only a memory of answers; the server decides.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::session::Session;
use crate::backend::Owner;
use crate::clock::{Clock, Moment};
use crate::key::Key;
use crate::token::FencingToken;

/// A claim that may have left something at the server.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) session: Arc<Session>,
    pub(super) token: Option<FencingToken>,
    /// The place in the queue, while it waits.
    pub(super) place: Option<Place>,
    /// Whether it ever waited: then it may be the last of its queue.
    pub(super) queued: bool,
    /// Whether a request is unanswered that could take the lock or a place.
    pub(super) doubt: bool,
    /// Since when it is to be given back.
    leaving: Option<Moment>,
}

/// A place in the queue of a lock.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// Places are ordered by this.
    pub(super) created: u64,
    /// How many are before it, once it has looked.
    pub(super) ahead: Option<u32>,
    pub(super) front: Front,
    /// Consul keeps the lock for a while after a session ended: no use in looking at it.
    pub(super) delayed: bool,
    /// Who was first when the lock was seen free and not taken.
    pub(super) stalled: Option<u64>,
}

/// What a waiter knows of those before it.
#[derive(Clone, Debug)]
pub(super) enum Front {
    Unknown,
    /// This one is next before us.
    Behind {
        place: String,
        owner: Owner,
        index: u64,
    },
    /// Nobody: watch the lock.
    Head {
        index: u64,
    },
    /// Nobody, and the lock was free.
    Turn,
}

/// The claims of one client.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    records: HashMap<Owner, Record>,
    /// The waiters of this client, by key and place.
    lines: HashMap<Key, Line>,
    /// Keys for which others waited when this client gave them back.
    crowded: HashSet<Key>,
}

#[derive(Debug, Default)]
struct Line {
    places: BTreeMap<u64, Owner>,
    moved: Arc<Notify>,
}

impl Table {
    pub(super) fn get(&self, owner: Owner) -> Option<Record> {
        self.inner().records.get(&owner).cloned()
    }

    /// A new claim on this session.
    pub(super) fn enter(&self, owner: Owner, key: &Key, session: &Arc<Session>) -> Record {
        let record = Record {
            key: key.clone(),
            session: session.clone(),
            token: None,
            place: None,
            queued: false,
            doubt: false,
            leaving: None,
        };
        session.join();
        let mut inner = self.inner();
        inner.write_off();
        inner.records.insert(owner, record.clone());
        record
    }

    /// A request goes out that could take something. Says whether an earlier one is unanswered.
    pub(super) fn doubts(&self, owner: Owner) -> bool {
        let mut inner = self.inner();
        let record = inner.records.get_mut(&owner);
        record.is_none_or(|record| std::mem::replace(&mut record.doubt, true))
    }

    /// It was answered; an earlier one may not be.
    pub(super) fn knows(&self, owner: Owner, earlier: bool) {
        self.change(owner, |record| record.doubt = earlier);
    }

    pub(super) fn granted(&self, owner: Owner, token: FencingToken) {
        let mut inner = self.inner();
        inner.step_out(owner);
        if let Some(record) = inner.records.get_mut(&owner) {
            record.token = Some(token);
        }
    }

    pub(super) fn queued(&self, owner: Owner, created: u64, ahead: Option<u32>, front: Front) {
        let mut inner = self.inner();
        let Some(record) = inner.records.get_mut(&owner) else { return };
        record.queued = true;
        record.place = Some(Place { created, ahead, front, delayed: false, stalled: None });
        let key = record.key.clone();
        inner.lines.entry(key).or_default().places.insert(created, owner);
    }

    pub(super) fn change_place(&self, owner: Owner, change: impl FnOnce(&mut Place)) {
        self.change(owner, |record| {
            if let Some(place) = &mut record.place {
                change(place);
            }
        });
    }

    /// The session is gone, and with it everything that the claim had.
    pub(super) fn lose(&self, owner: Owner) {
        // A session that is gone need not be ended.
        let _gone = self.forget(owner);
    }

    /// The claim no longer holds its lock. It is known until it is released: a request of it may
    /// still be on its way.
    pub(super) fn lose_grant(&self, owner: Owner) {
        self.change(owner, |record| record.token = None);
    }

    /// Nothing is left of the claim. Returns the session that has to be ended because of that.
    pub(super) fn forget(&self, owner: Owner) -> Option<Arc<Session>> {
        let mut inner = self.inner();
        inner.step_out(owner);
        let record = inner.records.remove(&owner)?;
        record.session.part().then_some(record.session)
    }

    /// The claim is to be given back, now or with the next renewal of its session.
    pub(super) fn leaving(&self, owner: Owner) -> Option<Record> {
        let mut inner = self.inner();
        let record = inner.records.get_mut(&owner)?;
        record.leaving = Some(Clock::Boot.now());
        Some(record.clone())
    }

    /// The claims of a session that should be gone, and whose release nobody repeats any more.
    pub(super) fn debts(&self, session: &Arc<Session>) -> Vec<Owner> {
        let (inner, now) = (self.inner(), Clock::Boot.now());
        let old = |since: Moment| now.since(since) > session.ttl;
        let debts = inner.records.iter().filter(|(_, record)| {
            record.leaving.is_some_and(old) && Arc::ptr_eq(&record.session, session)
        });
        debts.map(|(owner, _)| *owner).collect()
    }

    /// The whole key of a grant of this client whose key ends so.
    pub(super) fn whole_key(&self, key: &Key, token: FencingToken) -> Option<Key> {
        let inner = self.inner();
        let mut records = inner.records.values();
        let found = records.find(|record| {
            record.token == Some(token) && record.key.as_str().ends_with(key.as_str())
        });
        found.map(|record| record.key.clone())
    }

    /// Returns when no other claim of this client waits before this one: one watcher for each key
    /// is enough.
    pub(super) async fn until_first(&self, owner: Owner) {
        loop {
            let Some(moved) = self.behind(owner) else { return };
            let mut moved = std::pin::pin!(moved.notified());
            moved.as_mut().enable();
            // Listen first, then look once more.
            if self.behind(owner).is_none() {
                return;
            }
            moved.await;
        }
    }

    /// The bell of the line, if another claim of this client is before this one.
    fn behind(&self, owner: Owner) -> Option<Arc<Notify>> {
        let inner = self.inner();
        let record = inner.records.get(&owner)?;
        let created = record.place.as_ref()?.created;
        let line = inner.lines.get(&record.key)?;
        let (first, _) = line.places.first_key_value()?;
        (*first < created).then(|| line.moved.clone())
    }

    /// Whether a claim of this client other than this one holds the key.
    pub(super) fn other_holder(&self, owner: Owner, key: &Key) -> bool {
        let inner = self.inner();
        let mut others = inner.records.iter().filter(|(other, _)| **other != owner);
        others.any(|(_, record)| record.key == *key && record.token.is_some())
    }

    /// Others waited for the key when we gave it back.
    pub(super) fn crowd(&self, key: &Key) {
        let mut inner = self.inner();
        if inner.crowded.len() >= CROWDED_MAX {
            inner.crowded.clear();
        }
        inner.crowded.insert(key.clone());
    }

    /// Whether others waited for the key when we last gave it back. Says so once.
    pub(super) fn was_crowded(&self, key: &Key) -> bool {
        self.inner().crowded.remove(key)
    }

    fn change(&self, owner: Owner, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.inner().records.get_mut(&owner) {
            change(record);
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Forgets claims whose release failed and whose session nobody has renewed since: it ends by
    /// itself, and takes no new claims, which would keep alive what they left there.
    fn write_off(&mut self) {
        let now = Clock::Boot.now();
        let over = self.records.iter().filter(|(_, record)| {
            let old = |since: Moment| now.since(since) > record.session.ttl * 2;
            record.leaving.is_some_and(old) && record.session.is_idle(now)
        });
        for owner in over.map(|(owner, _)| *owner).collect::<Vec<_>>() {
            self.step_out(owner);
            if let Some(record) = self.records.remove(&owner) {
                record.session.retire();
                record.session.part();
            }
        }
    }

    /// Leaves the line, if it is in one, and tells those behind.
    fn step_out(&mut self, owner: Owner) {
        let Some(record) = self.records.get_mut(&owner) else { return };
        let Some(place) = record.place.take() else { return };
        let Some(line) = self.lines.get_mut(&record.key) else { return };
        line.places.remove(&place.created);
        line.moved.notify_waiters();
        if line.places.is_empty() {
            self.lines.remove(&record.key);
        }
    }
}

/// How old a session may be when a claim is made or kept waiting on it.
pub(super) fn stale(ttl: Duration) -> Duration {
    ttl / 3
}

/// What is remembered only to save a request need not be remembered for ever.
const CROWDED_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_release_on_a_session_that_nobody_renews_is_forgotten() {
        let (table, key) = (Table::default(), Key::new("k").unwrap());
        let session = |ttl| Arc::new(Session::new("s".to_owned(), ttl, Clock::Boot.now()));
        let (idle, used) = (session(Duration::ZERO), session(Duration::from_secs(60)));
        let owners: Vec<_> = (0..3).map(|_| Owner::random()).collect();
        table.enter(owners[0], &key, &idle);
        table.enter(owners[1], &key, &used);
        table.leaving(owners[0]);
        table.leaving(owners[1]);
        std::thread::sleep(Duration::from_millis(1));
        table.enter(owners[2], &key, &used);
        assert!(table.get(owners[0]).is_none(), "it is remembered for ever");
        assert!(!idle.is_open(), "a new claim would keep its lock alive");
        assert!(table.get(owners[1]).is_some(), "its session may be renewed yet");
    }
}
