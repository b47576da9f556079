//! One granted claim: its token, the end of its lease on our own clock, and whether it is over.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use crate::claim::{Claim, Lost, LostReason};
use crate::clock::{Clock, Moment};
use crate::key::Key;
use crate::token::FencingToken;

/// What the guard, its leases and the keeper share about a lock.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) claim: Claim,
    /// The key as the user knows it, without the client's prefix.
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) since: Moment,
    /// How often the keeper renews it; `None` for a fixed lease.
    pub(crate) renew_every: Option<Duration>,
    /// Where `max_hold` ends it.
    pub(crate) limit: Moment,
    clock: Clock,
    state: Mutex<State>,
    ended: Notify,
    /// The keeper's watch over this lock. It is many times smaller than a waiter of `ended`.
    watch: AtomicWaker,
}

#[derive(Debug)]
struct State {
    /// Counted from before the request that won or renewed the lease was sent.
    deadline: Moment,
    /// Set once, never taken back: a late renewal must not revive what was seen to be over.
    over: Option<LostReason>,
}

/// What of a lock is settled when it is granted.
pub(crate) struct Terms {
    pub(crate) claim: Claim,
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl Held {
    pub(crate) fn new(terms: Terms, clock: Clock, deadline: Moment) -> Held {
        let since = clock.now();
        Held {
            claim: terms.claim,
            key: terms.key,
            token: terms.token,
            since,
            renew_every: terms.renew_every,
            limit: terms.max_hold.map_or(Moment::NEVER, |span| since + span),
            clock,
            state: Mutex::new(State { deadline, over: None }),
            ended: Notify::new(),
            watch: AtomicWaker::new(),
        }
    }

    /// The time left, or the loss. Reads the clock and nothing else, so it is true with the network
    /// cut and right after a pause.
    pub(crate) fn check(&self) -> Result<Duration, Lost> {
        let now = self.clock.now();
        match self.over_by(now) {
            Some(reason) => Err(self.lost_by(reason)),
            None => Ok(self.end().since(now)),
        }
    }

    /// Returns when the lock is over.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            let mut ended = std::pin::pin!(self.ended.notified());
            ended.as_mut().enable();
            if let Some(reason) = self.state().over {
                return self.lost_by(reason);
            }
            ended.await;
        }
    }

    /// Why the lock is over, if it is by now. Makes an expiry final.
    pub(crate) fn over_by(&self, now: Moment) -> Option<LostReason> {
        let mut state = self.state();
        if state.over.is_some() {
            return state.over;
        }
        let reason = match (now >= state.deadline, now >= self.limit) {
            (true, _) => LostReason::Expired,
            (false, true) => LostReason::MaxHold,
            (false, false) => return None,
        };
        state.over = Some(reason);
        drop(state);
        self.tell();
        Some(reason)
    }

    /// Ends it for this reason, or says for which other one it was over before.
    pub(crate) fn finish(&self, reason: LostReason) -> Result<(), LostReason> {
        let mut state = self.state();
        if let Some(earlier) = state.over {
            return Err(earlier);
        }
        state.over = Some(reason);
        drop(state);
        self.tell();
        Ok(())
    }

    /// A renewal that was sent at that moment was confirmed. What was left of the old lease, or
    /// `None` if the lock is already over.
    pub(crate) fn extend(&self, sent: Moment, ttl: Duration) -> Option<Duration> {
        let mut state = self.state();
        if state.over.is_some() {
            return None;
        }
        let margin = state.deadline.since(self.clock.now());
        if self.renew_every.is_some() {
            state.deadline = state.deadline.max(sent + ttl);
        }
        Some(margin)
    }

    /// When it is over unless something happens before.
    pub(crate) fn end(&self) -> Moment {
        self.state().deadline.min(self.limit)
    }

    pub(crate) fn lost_by(&self, reason: LostReason) -> Lost {
        Lost::new(self.key.clone(), self.token, reason)
    }

    /// The claim as a renewal should carry it. A fixed lease is confirmed, not extended.
    pub(crate) fn renewal(&self, now: Moment, min_ttl: Duration) -> Claim {
        let mut claim = self.claim.clone();
        claim.token = Some(self.token);
        if self.renew_every.is_none() {
            claim.ttl = self.end().since(now).max(min_ttl);
        }
        claim
    }

    /// Why the server no longer knows the lock, if it did not say so itself.
    pub(crate) fn likely_reason(&self) -> LostReason {
        let expired = self.clock.now() >= self.state().deadline;
        if expired { LostReason::Expired } else { LostReason::Evicted }
    }

    /// Polls as ready when the lock is over. For one task only: the keeper's.
    pub(crate) fn poll_over(&self, context: &Context<'_>) -> Poll<()> {
        self.watch.register(context.waker());
        if self.state().over.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn tell(&self) {
        self.ended.notify_waiters();
        self.watch.wake();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
