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

/// How long a key with waiters counts as contended, and how many such keys are remembered.
const CONTENDED_FOR: Duration = Duration::from_secs(2);
const MAX_CONTENDED: usize = 1000;

/// The hints of one client.
#[derive(Debug, Default)]
pub(crate) struct ClaimHints {
    claims: Mutex<HashMap<Owner, ClaimHint>>,
    /// Keys that had waiters a moment ago: the short statements would change nothing there.
    contended: Mutex<HashMap<Key, Instant>>,
}

/// What is known of one claim. A claim without a hint holds without waiters, or is new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimHint {
    /// It holds, and other claims wait.
    Contended,
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
        let contended = self.contended.lock();
        contended.get(key).is_some_and(|since| since.elapsed() < CONTENDED_FOR)
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
        if queued == 0 {
            claims.remove(&owner);
            return;
        }
        claims.insert(owner, ClaimHint::Contended);
        let mut contended = self.contended.lock();
        // Old keys are removed only here: a client with few keys never pays for it.
        if contended.len() >= MAX_CONTENDED {
            contended.retain(|_, since| since.elapsed() < CONTENDED_FOR);
        }
        contended.insert(key.clone(), Instant::now());
    }

    /// How many queue entries were in front of a claim at its last request.
    pub(crate) fn ahead(&self, owner: Owner) -> u32 {
        match self.claims.lock().get(&owner) {
            Some(ClaimHint::Queued { ahead, .. }) => *ahead,
            Some(ClaimHint::Contended) | None => 0,
        }
    }

    /// The highest token that a claim was shown while it waited: its own grant has a higher one.
    pub(crate) fn highest_token_seen(&self, owner: Owner) -> u64 {
        match self.claims.lock().get(&owner) {
            Some(ClaimHint::Queued { highest_token_seen, .. }) => *highest_token_seen,
            Some(ClaimHint::Contended) | None => 0,
        }
    }

    /// Forgets a claim that has ended, and returns what was known of it.
    pub(crate) fn forget(&self, owner: Owner) -> EndingClaim {
        match self.claims.lock().remove(&owner) {
            None => EndingClaim::Uncontended,
            Some(ClaimHint::Contended) => EndingClaim::Contended,
            Some(ClaimHint::Queued { .. }) => EndingClaim::Queued,
        }
    }
}
