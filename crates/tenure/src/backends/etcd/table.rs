//! What this client has at the server, and what it may have: every claim from before its first
//! request is sent until its release is answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::names::Space;
use super::session::Session;
use crate::claim::{Claim, Owner};
use crate::clock::{Clock, Moment};
use crate::key::Key;

/// Every claim of this client.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Mutex<HashMap<(Key, Owner), Entry>>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) session: Arc<Session>,
    /// Where it is written at the server.
    pub(super) written: Vec<u8>,
    /// Its create revision, once known: its place in the order, and its token.
    pub(super) revision: Option<i64>,
    pub(super) granted: bool,
    /// The last revision at which it was seen as granted: a watch for its end begins after it.
    pub(super) seen: i64,
    /// Whose deletion to wait for, and from which revision on.
    pub(super) behind: Option<(Vec<u8>, i64)>,
    /// A request to write it is unanswered: it may arrive at any time.
    pub(super) doubtful: bool,
    /// When a release of it was last sent.
    pub(super) released: Option<Moment>,
    /// When the core spoke of it last.
    heard: Moment,
}

impl Table {
    /// The claim, if its lease lives; it has been heard of.
    pub(super) fn find(&self, claim: &Claim) -> Option<Entry> {
        let mut entries = self.entries();
        let entry = entries.get_mut(&id(claim))?;
        if entry.session.is_dead() {
            return None;
        }
        entry.heard = Clock::Boot.now();
        Some(entry.clone())
    }

    /// Enters a claim, before anything of it is sent. What it had on a dead lease is gone.
    pub(super) fn enter(&self, claim: &Claim, session: Arc<Session>, space: &Space) -> Entry {
        let written = space.claim(&claim.key, session.id, claim.owner);
        session.add_claim();
        let entry = Entry {
            claim: claim.clone(),
            session,
            written,
            revision: None,
            granted: false,
            seen: 0,
            behind: None,
            doubtful: false,
            released: None,
            heard: Clock::Boot.now(),
        };
        if let Some(old) = self.entries().insert(id(claim), entry.clone()) {
            old.session.drop_claim();
        }
        entry
    }

    /// Changes a claim, if it is there.
    pub(super) fn change<T>(
        &self,
        claim: &Claim,
        change: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        self.entries().get_mut(&id(claim)).map(change)
    }

    /// Removes a claim of which nothing is left. Says whether its lease is of no more use.
    pub(super) fn remove(&self, claim: &Claim) -> Option<Arc<Session>> {
        let entry = self.entries().remove(&id(claim))?;
        entry.session.drop_claim().then_some(entry.session)
    }

    /// The claim as it stands, whatever became of its lease.
    pub(super) fn get(&self, claim: &Claim) -> Option<Entry> {
        self.entries().get(&id(claim)).cloned()
    }

    /// A claim is to be released. As it stood before.
    pub(super) fn release(&self, claim: &Claim) -> Option<Entry> {
        let mut entries = self.entries();
        let entry = entries.get_mut(&id(claim))?;
        let before = entry.clone();
        entry.released = Some(Clock::Boot.now());
        Some(before)
    }

    /// Claims that the core has not spoken of for so long that they are over for it, or whose
    /// release it no longer repeats. Others keep their lease alive, so that the backend has to
    /// release them.
    pub(super) fn stale(&self) -> Vec<Claim> {
        let now = Clock::Boot.now();
        let entries = self.entries();
        let stale = |entry: &&Entry| {
            let ttl = entry.claim.ttl;
            now >= entry.heard + ttl * 2 || entry.released.is_some_and(|last| now >= last + ttl)
        };
        entries.values().filter(stale).map(|entry| entry.claim.clone()).collect()
    }

    /// The whole key of a grant of this client whose key ends so.
    pub(super) fn whole_key(&self, key: &Key, revision: i64) -> Option<Key> {
        let entries = self.entries();
        let mut granted = entries.values().filter(|entry| entry.granted);
        let found = granted.find(|entry| {
            entry.revision == Some(revision) && entry.claim.key.as_str().ends_with(key.as_str())
        });
        found.map(|entry| entry.claim.key.clone())
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<(Key, Owner), Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn id(claim: &Claim) -> (Key, Owner) {
    (claim.key.clone(), claim.owner)
}

/// How long one answer may take: as the core bounds its calls.
pub(super) fn limit(ttl: Duration) -> Duration {
    (ttl / 4).clamp(Duration::from_millis(100), Duration::from_secs(5))
}
