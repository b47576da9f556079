//! What is known of the claims of one session, from the first request of each until its release is
//! confirmed. It is only a memory of responses; the server decides.

use std::collections::HashMap;
use std::time::Duration;

use crate::backend::{Claim, Owner};
use crate::key::Key;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// The claims of one session.
#[derive(Debug)]
pub(super) struct SessionClaims(Mutex<TrackedClaims>);

#[derive(Debug)]
struct TrackedClaims {
    entries: HashMap<(Key, Owner), TrackedClaim>,
    /// When an entry was last added or removed.
    used: Moment,
}

/// A claim that may have a node at the server.
#[derive(Debug)]
struct TrackedClaim {
    claim: Claim,
    state: TrackedState,
    /// When the engine last requested or renewed it.
    touched: Moment,
    /// When the engine last tried to release it.
    release_requested: Option<Moment>,
}

impl TrackedClaim {
    /// Whether the engine has given the claim up, and has also stopped to release it: the release
    /// failed, or the claim was forgotten. The pings of the client library keep the session alive,
    /// so that the node would stay as long as the process runs.
    fn is_abandoned(&self, now: Moment) -> bool {
        let ttl = self.claim.ttl;
        now >= self.touched + ttl * 2
            || self.release_requested.is_some_and(|last| now >= last + ttl)
    }
}

/// The state of a claim, as far as responses have shown it.
#[derive(Clone, Debug)]
pub(super) enum TrackedState {
    /// A request was sent, and has no response yet: it may have created a node.
    Requested,
    /// Its node waits.
    Queued { node: ClaimNode, awaits: Awaited },
    /// It was granted.
    Held(ClaimNode),
}

/// The node of a claim, and the first of the tokens that it stands for.
#[derive(Clone, Debug)]
pub(super) struct ClaimNode {
    pub(super) path: String,
    pub(super) token: FencingToken,
}

impl ClaimNode {
    /// Whether a token is one of those that the node stands for.
    pub(super) fn has(&self, token: FencingToken) -> bool {
        self.token.index() == token.index()
    }
}

/// What a waiter waits for.
#[derive(Clone, Debug)]
pub(super) enum Awaited {
    /// The end of one node; nothing else is in the way if `only`.
    Node { path: String, only: bool },
    /// That the holders leave room for the first waiter.
    Holders,
    /// Not known: the nodes have to be listed.
    Unknown,
    /// A response has shown that nothing is in the way any more.
    Nothing,
}

impl SessionClaims {
    pub(super) fn new() -> SessionClaims {
        let claims = TrackedClaims { entries: HashMap::new(), used: Clock::Boot.now() };
        SessionClaims(Mutex::new(claims))
    }

    pub(super) fn state(&self, claim: &Claim) -> Option<TrackedState> {
        self.0.lock().entries.get(&id(claim)).map(|tracked| tracked.state.clone())
    }

    /// The engine requests this claim, and this is its state now. An earlier release does not count
    /// any more.
    pub(super) fn set(&self, claim: &Claim, state: TrackedState) {
        let touched = Clock::Boot.now();
        let tracked =
            TrackedClaim { claim: claim.clone(), state, touched, release_requested: None };
        let mut claims = self.0.lock();
        claims.used = touched;
        claims.entries.insert(id(claim), tracked);
    }

    /// The engine renews this claim.
    pub(super) fn touch(&self, claim: &Claim) {
        if let Some(tracked) = self.0.lock().entries.get_mut(&id(claim)) {
            tracked.touched = Clock::Boot.now();
        }
    }

    /// The engine releases this claim.
    pub(super) fn begin_release(&self, claim: &Claim) {
        if let Some(tracked) = self.0.lock().entries.get_mut(&id(claim)) {
            tracked.release_requested = Some(Clock::Boot.now());
        }
    }

    /// The claims that the engine has given up, and that may still have nodes.
    pub(super) fn abandoned(&self) -> Vec<Claim> {
        let now = Clock::Boot.now();
        let claims = self.0.lock();
        let abandoned = claims.entries.values().filter(|tracked| tracked.is_abandoned(now));
        abandoned.map(|tracked| Claim { unconfirmed: true, ..tracked.claim.clone() }).collect()
    }

    /// Forgets a claim that has no node any more.
    pub(super) fn remove(&self, claim: &Claim) {
        let mut claims = self.0.lock();
        claims.used = Clock::Boot.now();
        claims.entries.remove(&id(claim));
    }

    /// Whether there has been no claim for this long.
    pub(super) fn is_idle(&self, long: Duration) -> bool {
        let claims = self.0.lock();
        claims.entries.is_empty() && Clock::Boot.now() >= claims.used + long
    }

    /// The key with its prefix of a grant of this session, by its token and the end of the key.
    pub(super) fn full_key(&self, suffix: &Key, token: FencingToken) -> Option<Key> {
        let claims = self.0.lock();
        let found = claims.entries.values().find(|tracked| {
            let held = matches!(&tracked.state, TrackedState::Held(node) if node.has(token));
            held && tracked.claim.key.as_str().ends_with(suffix.as_str())
        });
        found.map(|tracked| tracked.claim.key.clone())
    }

    /// A watch has shown that this node is no longer in the way of a waiter.
    pub(super) fn node_ended(&self, claim: &Claim, ended: &str) {
        self.update(claim, |awaits| match awaits {
            Awaited::Node { path, only } if path == ended => {
                *awaits = if *only { Awaited::Nothing } else { Awaited::Unknown };
            }
            _ => {}
        });
    }

    /// A list has shown that nothing is in the way of a waiter.
    pub(super) fn fits(&self, claim: &Claim) {
        self.update(claim, |awaits| *awaits = Awaited::Nothing);
    }

    fn update(&self, claim: &Claim, change: impl FnOnce(&mut Awaited)) {
        if let Some(tracked) = self.0.lock().entries.get_mut(&id(claim))
            && let TrackedState::Queued { awaits, .. } = &mut tracked.state
        {
            change(awaits);
        }
    }
}

fn id(claim: &Claim) -> (Key, Owner) {
    (claim.key.clone(), claim.owner)
}
