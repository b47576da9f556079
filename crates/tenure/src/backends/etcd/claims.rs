//! What this client has at the server, and what it may have: every claim from before its first
//! request is sent until its release is confirmed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::layout::{Space, queue};
use super::session::Session;
use crate::backend::{Claim, Mode, Owner};
use crate::key::Key;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;

/// Every claim of this client.
#[derive(Debug, Default)]
pub(super) struct ClaimTable {
    claims: Mutex<HashMap<(Key, Owner), ClaimState>>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct ClaimState {
    pub(super) claim: Claim,
    pub(super) session: Arc<Session>,
    /// The key that the claim is written to. Its name says in which mode it was acquired.
    pub(super) server_key: Vec<u8>,
    /// The create revision of that key, once known: it orders the queue, and makes the token.
    pub(super) revision: Option<i64>,
    pub(super) granted: bool,
    /// The last revision at which the claim was seen to hold: a watch for its end begins after it.
    pub(super) seen_at: i64,
    /// Set while the claim waits in the queue.
    pub(super) waits_for: Option<WaitsFor>,
    /// A claim to permits states another limit than its key at the server.
    pub(super) limit_changed: bool,
    /// The outcome of a request to write it is unknown: that may be carried out at any time.
    pub(super) unconfirmed: bool,
    /// When a release of it was last sent.
    pub(super) released: Option<Moment>,
    /// When the engine last called an operation for it.
    last_call: Moment,
}

/// What a claim in the queue waits for.
#[derive(Clone, Debug)]
pub(super) enum WaitsFor {
    Change(Predecessor),
    /// That the claims before it leave enough permits.
    Permits(PermitQueue),
}

/// The claim in the queue whose end one waits for: the youngest before it that excludes it.
#[derive(Clone, Debug)]
pub(super) struct Predecessor {
    pub(super) server_key: Vec<u8>,
    /// The revision after the one at which it was seen: a watch from there on misses nothing.
    pub(super) watch_from: i64,
    /// Whether its downgrade is waited for as well.
    pub(super) or_downgraded: bool,
}

/// The claims to permits up to one that waits.
#[derive(Clone, Debug)]
pub(super) struct PermitQueue {
    /// Their keys and modes, the oldest first. The last is the one that waits.
    pub(super) claims: Vec<(Vec<u8>, Mode)>,
    /// The revision at which they were read.
    pub(super) read_at: i64,
}

impl PermitQueue {
    /// Removes the claims that have left.
    pub(super) fn strike_out(&mut self, has_left: impl Fn(&Vec<u8>) -> bool) {
        self.claims.retain(|(key, _)| !has_left(key));
    }

    /// Whether the last claim holds its permits.
    pub(super) fn is_granted(&self) -> bool {
        queue::holders(self.claims.iter().map(|(_, mode)| *mode)) == self.claims.len()
    }
}

impl ClaimTable {
    /// The claim, unless its lease has ended. Counts as a call for it.
    pub(super) fn find_live(&self, claim: &Claim) -> Option<ClaimState> {
        let mut claims = self.claims.lock();
        let state = claims.get_mut(&id(claim))?;
        if state.session.has_ended() {
            return None;
        }
        state.last_call = Clock::Boot.now();
        Some(state.clone())
    }

    /// The claim, whether its lease lives or not.
    pub(super) fn get(&self, claim: &Claim) -> Option<ClaimState> {
        self.claims.lock().get(&id(claim)).cloned()
    }

    /// Adds a claim, before any request of it is sent. Replaces what it had on an ended lease.
    pub(super) fn insert(&self, claim: &Claim, session: Arc<Session>, space: &Space) -> ClaimState {
        let server_key = space.claim_key(&claim.key, claim.mode, session.id, claim.owner);
        // Counted before the old entry is removed, so that a session they share is never unused.
        session.add_claim();
        let state = ClaimState {
            claim: claim.clone(),
            session,
            server_key,
            revision: None,
            granted: false,
            seen_at: 0,
            waits_for: None,
            limit_changed: false,
            unconfirmed: false,
            released: None,
            last_call: Clock::Boot.now(),
        };
        if let Some(old) = self.claims.lock().insert(id(claim), state.clone()) {
            old.session.remove_claim();
        }
        state
    }

    /// Changes a claim, if it is there.
    pub(super) fn update<T>(
        &self,
        claim: &Claim,
        change: impl FnOnce(&mut ClaimState) -> T,
    ) -> Option<T> {
        self.claims.lock().get_mut(&id(claim)).map(change)
    }

    /// Removes a claim of which nothing is left at the server. Returns its session if that is of no
    /// more use.
    pub(super) fn remove(&self, claim: &Claim) -> Option<Arc<Session>> {
        let state = self.claims.lock().remove(&id(claim))?;
        state.session.remove_claim().then_some(state.session)
    }

    /// Notes that a release is sent. Returns the claim as it was before.
    pub(super) fn begin_release(&self, claim: &Claim) -> Option<ClaimState> {
        let mut claims = self.claims.lock();
        let state = claims.get_mut(&id(claim))?;
        let before = state.clone();
        state.released = Some(Clock::Boot.now());
        Some(before)
    }

    /// Claims that the engine has not called for in two ttls, so that they are over for it, and
    /// those whose release it no longer repeats. Other claims keep the shared lease alive, so that
    /// the backend has to release these.
    pub(super) fn abandoned(&self) -> Vec<Claim> {
        let now = Clock::Boot.now();
        let claims = self.claims.lock();
        let is_abandoned = |state: &&ClaimState| {
            let ttl = state.claim.ttl;
            now >= state.last_call + ttl * 2 || state.released.is_some_and(|last| now >= last + ttl)
        };
        claims.values().filter(is_abandoned).map(|state| state.claim.clone()).collect()
    }

    /// The whole key of a grant of this client whose key ends with `key`: the guard of a client
    /// with a prefix does not show it.
    pub(super) fn whole_key(&self, key: &Key, revision: i64) -> Option<Key> {
        let claims = self.claims.lock();
        let mut granted = claims.values().filter(|state| state.granted);
        let found = granted.find(|state| {
            state.revision == Some(revision) && state.claim.key.as_str().ends_with(key.as_str())
        });
        found.map(|state| state.claim.key.clone())
    }
}

fn id(claim: &Claim) -> (Key, Owner) {
    (claim.key.clone(), claim.owner)
}

/// How long one request of a claim may take, its retries included: a quarter of the ttl, so that a
/// silent cluster leaves time for another request, but no less than 100 ms. The engine has limits
/// of its own for the whole call, which are shorter for short leases (down to 20 ms) and longer for
/// an acquire that does not wait: whichever passes first ends the request.
pub(super) fn request_limit(ttl: Duration) -> Duration {
    (ttl / 4).clamp(Duration::from_millis(100), Duration::from_secs(5))
}
