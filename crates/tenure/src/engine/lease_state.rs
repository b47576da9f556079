//! The state of one granted claim: its token, the end of its lease on the client's own clock, and
//! whether it has ended.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

use crate::backend::{Claim, Lost, LostReason, Mode};
use crate::engine::ClientStatus;
use crate::key::Key;
use crate::support::clock::{AtomicMoment, Moment};
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// What the guard, its leases and the renewer share about a lock.
#[derive(Debug)]
pub(crate) struct LeaseState {
    pub(crate) claim: Claim,
    /// The key as the caller knows it, without the client's prefix.
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) since: Moment,
    /// How often the renewer renews it; `None` for a fixed lease.
    pub(crate) renew_every: Option<Duration>,
    /// Where `max_hold` ends it.
    pub(crate) limit: Moment,
    /// The client's clock, and whether it shuts down.
    status: Arc<ClientStatus>,
    state: Mutex<State>,
    on_ended: Notify,
    /// Under which time the renewer's schedule has it, if it has. Used only under the lock of the
    /// schedule.
    pub(crate) listed: AtomicMoment,
    /// The renewer's watch over this lock. It is many times smaller than a waiter of `on_ended`.
    watch: AtomicWaker,
}

#[derive(Debug)]
struct State {
    /// Counted from before the request that won or renewed the lease was sent.
    deadline: Moment,
    /// Set once and never cleared: a late renewal must not revive a lease that was seen to have
    /// ended.
    ended: Option<LostReason>,
    /// Whether a downgrade was begun. From then on other readers may hold too.
    downgraded: bool,
}

/// What is fixed about a lock when it is granted.
pub(crate) struct GrantParams {
    pub(crate) claim: Claim,
    pub(crate) key: Key,
    pub(crate) token: FencingToken,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
}

impl LeaseState {
    pub(crate) fn new(
        params: GrantParams,
        status: Arc<ClientStatus>,
        deadline: Moment,
    ) -> LeaseState {
        let since = status.clock.now();
        LeaseState {
            claim: params.claim,
            key: params.key,
            token: params.token,
            since,
            renew_every: params.renew_every,
            limit: params.max_hold.map_or(Moment::NEVER, |span| since + span),
            status,
            state: Mutex::new(State { deadline, ended: None, downgraded: false }),
            on_ended: Notify::new(),
            listed: AtomicMoment::new(Moment::NEVER),
            watch: AtomicWaker::new(),
        }
    }

    /// The time left, or the loss. Reads the clock and nothing else, so that it is right without
    /// the network and directly after a pause of the process.
    pub(crate) fn check(&self) -> Result<Duration, Lost> {
        let now = self.status.clock.now();
        match self.ended_by(now) {
            Some(reason) => Err(self.lost_by(reason)),
            None => Ok(self.end().since(now)),
        }
    }

    /// Returns when the lock has ended.
    pub(crate) async fn lost(&self) -> Lost {
        loop {
            let mut ended = std::pin::pin!(self.on_ended.notified());
            ended.as_mut().enable();
            if let Some(reason) = self.state.lock().ended {
                return self.lost_by(reason);
            }
            ended.await;
        }
    }

    /// Returns when the client is being shut down.
    pub(crate) async fn closing(&self) {
        self.status.closed().await;
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.status.is_closing()
    }

    /// Why the lock has ended, if it has by now. Makes an expiry final.
    pub(crate) fn ended_by(&self, now: Moment) -> Option<LostReason> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return state.ended;
        }
        let reason = match (now >= state.deadline, now >= self.limit) {
            (true, _) => LostReason::Expired,
            (false, true) => LostReason::MaxHold,
            (false, false) => return None,
        };
        state.ended = Some(reason);
        drop(state);
        self.notify();
        Some(reason)
    }

    /// Ends it for this reason; fails with the reason for which it had ended before.
    pub(crate) fn finish(&self, reason: LostReason) -> Result<(), LostReason> {
        let mut state = self.state.lock();
        if let Some(earlier) = state.ended {
            return Err(earlier);
        }
        state.ended = Some(reason);
        drop(state);
        self.notify();
        Ok(())
    }

    /// Extends the lease by a confirmed renewal, which was sent at that moment. Returns what was
    /// left of the old lease, or `None` if the lock has ended already.
    pub(crate) fn extend(&self, sent: Moment, ttl: Duration) -> Option<Duration> {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return None;
        }
        let margin = state.deadline.since(self.status.clock.now());
        if self.renew_every.is_some() {
            state.deadline = state.deadline.max(sent + ttl);
        }
        Some(margin)
    }

    /// How the key is held. A lock whose downgrade was begun counts as shared, whether or not the
    /// server has confirmed it: it may have let readers in.
    pub(crate) fn mode(&self) -> Mode {
        if self.state.lock().downgraded { Mode::Shared } else { self.claim.mode }
    }

    /// Makes it count as shared, before the request of a downgrade is sent.
    pub(crate) fn begin_downgrade(&self) {
        self.state.lock().downgraded = true;
    }

    /// When it ends, unless something happens before.
    pub(crate) fn end(&self) -> Moment {
        self.state.lock().deadline.min(self.limit)
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

    /// The likely reason for which the server no longer has the lock, where it gave none.
    pub(crate) fn likely_reason(&self) -> LostReason {
        let expired = self.status.clock.now() >= self.state.lock().deadline;
        if expired { LostReason::Expired } else { LostReason::Evicted }
    }

    /// Ready when the lock has ended. For one task only: the renewer's.
    pub(crate) fn poll_ended(&self, context: &Context<'_>) -> Poll<()> {
        self.watch.register(context.waker());
        if self.state.lock().ended.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn notify(&self) {
        self.on_ended.notify_waiters();
        self.watch.wake();
    }
}
