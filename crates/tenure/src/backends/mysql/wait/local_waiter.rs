//! A waiter of this client, and what a poll means for it.

use tokio::sync::oneshot;

use super::super::layout::rows::{LockSnapshot, SharedGrant};
use super::super::lease::claim_hints::ClaimHints;
use crate::backend::{Claim, Grant, Mode};

/// A claim that waits in this process.
pub(super) struct LocalWaiter {
    pub(super) claim: Claim,
    /// The owner of the claim, as it stands in the tables.
    pub(super) owner: String,
    pub(super) wait_for: WaitFor,
    pub(super) reply: oneshot::Sender<Option<Grant>>,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitFor {
    /// The claim is granted, or another acquire is worthwhile.
    Free,
    /// The claim is no longer held.
    Lost,
}

/// What a poll means for a waiter.
pub(super) enum PollResult {
    KeepWaiting,
    /// The wait is over, without a grant.
    Wake,
    Granted(Grant),
}

impl LocalWaiter {
    pub(super) fn is_in_other_mode(&self) -> bool {
        self.claim.mode != Mode::Exclusive
    }

    /// What the row of its key, as a poll showed it, means for this waiter; `shared` is its grant
    /// if it holds beside others.
    pub(super) fn check(
        &self,
        snapshot: Option<&LockSnapshot>,
        shared: Option<&SharedGrant>,
        hints: &ClaimHints,
    ) -> PollResult {
        let held = snapshot.filter(|snapshot| !snapshot.is_free);
        // Where polls and acquires reach different servers, as during a failover, a poll may show
        // an old row: a grant that is not above every token that the claim was shown has ended.
        let highest_token_seen = match self.wait_for {
            WaitFor::Free => hints.highest_token_seen(self.claim.owner),
            WaitFor::Lost => 0,
        };
        let own = held.filter(|snapshot| snapshot.owner == self.owner);
        let own_token = own.and_then(|snapshot| snapshot.token);
        let shared_token = shared.and_then(|grant| Some((grant.token?, grant.tokens)));
        if let Some((token, tokens)) = shared_token
            && token.get() > highest_token_seen
        {
            return PollResult::Granted(Grant { tokens, ..Grant::new(token, self.claim.ttl) });
        }
        let own_token = own_token.filter(|token| token.get() > highest_token_seen);
        match (self.wait_for, held, own_token) {
            (WaitFor::Free, Some(held), Some(token)) => {
                hints.record_granted(&self.claim.key, self.claim.owner, held.queued);
                // The lease is that of the queue entry: it counts from the last acquire.
                PollResult::Granted(Grant::with_range(token, self.claim.ttl))
            }
            (WaitFor::Free, Some(_), None) | (WaitFor::Lost, _, Some(_)) => PollResult::KeepWaiting,
            (WaitFor::Free, None, _) | (WaitFor::Lost, _, None) => PollResult::Wake,
        }
    }
}
