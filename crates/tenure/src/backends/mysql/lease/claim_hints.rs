//! What a client remembers of its own claims, to choose the statement that is likely to succeed.
//!
//! The hints decide nothing but cost: a wrong one leads to a statement that changes no row, and the
//! longer one follows. The one exception is `highest_token_seen`, which protects a waiter from a
//! poll that shows an outdated row.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Claim, Owner};
use crate::key::Key;
use crate::support::sync::Mutex;

/// For how long what was seen of a key counts, and how many such keys are remembered.
const REMEMBERED_FOR: Duration = Duration::from_secs(2);
const MAX_REMEMBERED: usize = 1000;

/// The hints of one client.
#[derive(Debug, Default)]
pub(crate) struct ClaimHints {
    claims: Mutex<HashMap<Owner, ClaimHint>>,
    /// Keys that had waiters a moment ago: the short statements would change nothing there.
    contended: RecentKeys,
    /// Keys that were held or waited for in another mode a moment ago: the statements of exclusive
    /// claims would change nothing there.
    other_modes: RecentKeys,
}

/// Keys of which something was seen a moment ago.
#[derive(Debug, Default)]
struct RecentKeys(Mutex<HashMap<Key, Instant>>);

impl RecentKeys {
    fn contains(&self, key: &Key) -> bool {
        self.0.lock().get(key).is_some_and(|since| since.elapsed() < REMEMBERED_FOR)
    }

    fn insert(&self, key: &Key) {
        let mut keys = self.0.lock();
        // Old keys are removed only here: a client with few keys never pays for it.
        if keys.len() >= MAX_REMEMBERED {
            keys.retain(|_, since| since.elapsed() < REMEMBERED_FOR);
        }
        keys.insert(key.clone(), Instant::now());
    }
}

/// What is known of one claim. A claim without a hint holds without waiters, or is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimHint {
    /// It holds, and other claims wait.
    Contended,
    /// It was granted exclusively, and a downgrade was requested.
    Downgraded,
    /// It waits.
    Queued {
        /// How many queue entries are in front of its own.
        ahead: u32,
        /// The highest token that a response has shown it with another owner, or with none.
        highest_token_seen: u64,
    },
}

/// What a claim probably is when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndingClaim {
    /// It holds, and no other claim waits.
    Uncontended,
    /// It holds, and others wait.
    Contended,
    /// It may hold the key beside others.
    Downgraded,
    /// It may be in the queue.
    Queued,
}

impl ClaimHints {
    /// Whether it is worth trying the short statement for a free key without waiters.
    pub(crate) fn may_be_free(&self, claim: &Claim) -> bool {
        let contended = claim.waits && self.is_contended(&claim.key);
        !contended && self.claims.lock().get(&claim.owner).is_none()
    }

    pub(crate) fn is_contended(&self, key: &Key) -> bool {
        self.contended.contains(key)
    }

    pub(crate) fn is_in_other_mode(&self, key: &Key) -> bool {
        self.other_modes.contains(key)
    }

    /// A response has shown that the key is held or waited for in another mode.
    pub(crate) fn record_other_mode(&self, key: &Key) {
        self.other_modes.insert(key);
    }

    /// A claim is about to be downgraded.
    pub(crate) fn record_downgraded(&self, owner: Owner) {
        self.claims.lock().insert(owner, ClaimHint::Downgraded);
    }

    pub(crate) fn is_downgraded(&self, owner: Owner) -> bool {
        self.claims.lock().get(&owner) == Some(&ClaimHint::Downgraded)
    }

    /// A claim is about to enter the queue.
    pub(crate) fn record_entering(&self, owner: Owner) {
        let queued = ClaimHint::Queued { ahead: 0, highest_token_seen: 0 };
        self.claims.lock().entry(owner).or_insert(queued);
    }

    /// A claim waits behind so many entries, and a response has shown it this token.
    pub(crate) fn record_queued(&self, owner: Owner, ahead: u32, token: u64) {
        let highest_token_seen = token.max(self.highest_token_seen(owner));
        self.claims.lock().insert(owner, ClaimHint::Queued { ahead, highest_token_seen });
    }

    /// A claim that waited, or requested again, holds now; so many others wait for the key.
    pub(crate) fn record_granted(&self, key: &Key, owner: Owner, queued: u64) {
        let mut claims = self.claims.lock();
        if claims.get(&owner) == Some(&ClaimHint::Downgraded) {
            return;
        }
        if queued == 0 {
            claims.remove(&owner);
            return;
        }
        claims.insert(owner, ClaimHint::Contended);
        self.contended.insert(key);
    }

    /// How many queue entries were in front of a claim at its last request.
    pub(crate) fn ahead(&self, owner: Owner) -> u32 {
        match self.claims.lock().get(&owner) {
            Some(ClaimHint::Queued { ahead, .. }) => *ahead,
            Some(ClaimHint::Contended | ClaimHint::Downgraded) | None => 0,
        }
    }

    /// The highest token that a claim was shown while it waited: its own grant has a higher one.
    pub(crate) fn highest_token_seen(&self, owner: Owner) -> u64 {
        match self.claims.lock().get(&owner) {
            Some(ClaimHint::Queued { highest_token_seen, .. }) => *highest_token_seen,
            Some(ClaimHint::Contended | ClaimHint::Downgraded) | None => 0,
        }
    }

    /// Forgets a claim that has ended, and returns what was known of it.
    pub(crate) fn forget(&self, owner: Owner) -> EndingClaim {
        match self.claims.lock().remove(&owner) {
            None => EndingClaim::Uncontended,
            Some(ClaimHint::Contended) => EndingClaim::Contended,
            Some(ClaimHint::Downgraded) => EndingClaim::Downgraded,
            Some(ClaimHint::Queued { .. }) => EndingClaim::Queued,
        }
    }
}
