//! One acquire: its claim, and what the response to each request means for it.
//!
//! **State at the server.** A claim is (key, owner). Its owner id is never reused, and every
//! request of the claim carries it: so a repeated request is idempotent. After a request the server
//! may have nothing of the claim, a queue entry, or a grant. Only the server's response tells
//! which; when there is no response, the outcome is *unknown*, and the claim is marked
//! `unconfirmed` until it ends.
//!
//! **Who may change it.** An acquire is the only part of a client that sends `try_acquire`: the
//! first one from the caller's thread, later ones from its task ([`Background`]). There is never
//! more than one under way. Once the grant is a [`GuardInner`], the renewer renews it and the
//! releaser releases it.
//!
//! **Invariants.**
//! - Every claim of which the server may have kept something ends in exactly one of two ways: as a
//!   guard that the caller has, or as a release that the releaser repeats until the server
//!   responds.
//! - There is no await between a grant and its `GuardInner`: a future that is dropped at an await
//!   point can lose a request, but never a grant.
//! - The lease counts from before the request was sent; that of a pushed grant from before the last
//!   request that got a response. The client's deadline is therefore never later than the server's.
//! - A release is counted as pending before the caller can learn that its acquire has ended, so
//!   that a `flush` after it sees the release.
//!
//! **Races that it prevents.** A grant whose response arrives when its lease is nearly over is not
//! used but requested again. That is also what happens to a caller that stalls for longer than the
//! lease while its first request is under way: the server frees the lock in the meantime.
//!
//! [`Background`]: super::background::Background

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Attempt, Busy, Grant};
use crate::engine::acquire::{AcquireParams, Outcome, WaitLimit, closed};
use crate::engine::guard_inner::GuardInner;
use crate::engine::lease_state::{GrantParams, LeaseState};
use crate::engine::releaser::{Pending, Releaser};
use crate::engine::renewer::Renewer;
use crate::engine::{ClientInner, UnderWay};
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, shielded};
use crate::key::Key;
use crate::lease::Lease;
use crate::support::clock::Moment;

/// The shortest pause between two requests that hints bring about, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The pauses between requests while the server does not respond.
const FIRST_RETRY_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long the first response may take beyond the caller's wait limit: one that is shorter than
/// the round trip should still get a response.
pub(super) const FIRST_RESPONSE: Duration = Duration::from_millis(250);

/// One acquire under way.
pub(super) struct Acquiring {
    pub(super) inner: Arc<ClientInner>,
    pub(super) params: AcquireParams,
    started: Moment,
    /// When the wait limit ends.
    pub(super) until: Moment,
    /// When the last request that got a response was sent: the lease of a pushed grant counts from
    /// here.
    last_confirmed: Moment,
    /// Since when the server has not responded.
    silent_since: Option<Moment>,
    last: LastResponse,
    /// The shortest pause before the next request.
    pub(super) pause: Duration,
    /// Dropped with the rest, when what the claim may have left is held or being released.
    _under_way: UnderWay,
}

/// What the last request brought.
enum LastResponse {
    /// There was none yet.
    None,
    Busy(Busy),
    /// No response: the outcome is unknown.
    Unknown(Error),
}

/// What becomes of an acquire after a request.
pub(super) enum Step {
    /// The lock is held.
    Held(GuardInner),
    /// It has ended without a hold. What the claim may have left is being released.
    Ended(Outcome),
    /// It has to wait, and then to send another request.
    Waits(Box<Acquiring>),
}

/// What a response means.
pub(super) enum Verdict {
    Held(GuardInner),
    Wait,
    /// The acquire ends with this outcome.
    End {
        outcome: Outcome,
        /// Whether the server may have kept something of the claim.
        leaves: bool,
    },
}

impl Acquiring {
    pub(super) fn new(
        inner: Arc<ClientInner>,
        under_way: UnderWay,
        params: AcquireParams,
    ) -> Acquiring {
        let started = inner.clock.now();
        let until = match params.wait_limit {
            WaitLimit::Within(limit) => started + limit,
            WaitLimit::Forever | WaitLimit::None => Moment::NEVER,
        };
        Acquiring {
            inner,
            params,
            started,
            until,
            last_confirmed: started,
            silent_since: None,
            last: LastResponse::None,
            pause: FIRST_PAUSE,
            _under_way: under_way,
        }
    }

    /// Sends the first request and awaits its response.
    pub(super) async fn first_request(mut self) -> Step {
        self.inner.observers.tell(|| Event::Requested { key: self.params.key.clone() });
        let sent = self.inner.clock.now();
        let response = self.request().await;
        match self.on_response(response, sent) {
            Verdict::Held(hold) => Step::Held(hold),
            Verdict::Wait => Step::Waits(Box::new(self)),
            Verdict::End { outcome, leaves } => {
                self.cancel(leaves.then(|| self.pending()));
                Step::Ended(outcome)
            }
        }
    }

    /// Sends one request and awaits its response.
    pub(super) async fn request(&self) -> Result<Attempt<Grant>> {
        let claim = &self.params.claim;
        // A request that is not repeated need not leave time for another one.
        let limit = match self.params.wait_limit {
            WaitLimit::None => ClientInner::response_limit(claim.ttl * 3),
            WaitLimit::Within(_) | WaitLimit::Forever => ClientInner::response_limit(claim.ttl),
        };
        self.inner.call(limit, self.inner.backend.try_acquire(claim)).await
    }

    /// What the response to a request that was sent at this moment means.
    pub(super) fn on_response(
        &mut self,
        response: Result<Attempt<Grant>>,
        sent: Moment,
    ) -> Verdict {
        match response {
            // The renewer may have stopped: it would not renew this grant.
            Ok(Attempt::Granted(_)) if self.inner.is_closing() => end(Err(closed())),
            Ok(Attempt::Granted(grant)) => match self.hold(grant, sent) {
                Some(hold) => Verdict::Held(hold),
                None => self.on_unknown(too_late(&self.params.key)),
            },
            Ok(Attempt::Busy(busy)) => self.on_busy(busy, sent),
            Err(error) if error.kind() == ErrorKind::Unavailable => self.on_unknown(error),
            Err(error) => end(Err(error)),
        }
    }

    /// What the caller is told when its wait limit has passed.
    pub(super) fn on_time_over(&self) -> Outcome {
        match &self.last {
            LastResponse::Busy(busy) => Ok(Attempt::Busy(self.with_time_waited(busy.clone()))),
            LastResponse::Unknown(error) => Err(error.clone()),
            LastResponse::None => {
                let message = format!("no response from {} in time", self.inner.info.name);
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Whether the server has not responded to the last request.
    pub(super) fn is_silent(&self) -> bool {
        self.silent_since.is_some()
    }

    /// The longest pause before the next request, if no hint comes.
    pub(super) fn longest_pause(&self) -> Duration {
        let ttl = self.params.claim.ttl;
        match &self.last {
            LastResponse::Busy(busy) => busy.retry_after.unwrap_or(ttl).min(ttl / 3),
            LastResponse::None | LastResponse::Unknown(_) => Duration::ZERO,
        }
    }

    fn on_busy(&mut self, mut busy: Busy, sent: Moment) -> Verdict {
        self.last_confirmed = sent;
        self.silent_since = None;
        busy.key = self.params.key.clone();
        let busy = self.with_time_waited(busy);
        // The pause grows while hints bring nothing, and is short again when another client holds.
        let token = |busy: &Busy| busy.holder.as_ref().and_then(|holder| holder.token);
        self.pause = match &self.last {
            LastResponse::Busy(last) if token(last) == token(&busy) => {
                (self.pause * 2).min(LONGEST_PAUSE)
            }
            _ => FIRST_PAUSE,
        };
        if let Some(on_busy) = &self.params.on_busy {
            shielded(|| on_busy(&busy));
        }
        if let WaitLimit::None = self.params.wait_limit {
            // Where the server keeps nothing of such a request, there is nothing to release, which
            // saves a second request.
            let leaves = !self.inner.info.busy_leaves_nothing || self.params.claim.unconfirmed;
            self.inner.observers.tell(|| Event::Busy(busy.clone()));
            return Verdict::End { outcome: Ok(Attempt::Busy(busy)), leaves };
        }
        self.inner.tell_if_polled();
        self.last = LastResponse::Busy(busy);
        Verdict::Wait
    }

    /// The server did not respond, which is not a refusal: the claim may be granted or queued. The
    /// acquire goes on with the same owner, until the limit for outages has passed.
    fn on_unknown(&mut self, error: Error) -> Verdict {
        let now = self.inner.clock.now();
        self.params.claim.unconfirmed = true;
        let silent = now.since(*self.silent_since.get_or_insert(now));
        let stops = match self.params.wait_limit {
            WaitLimit::None => true,
            WaitLimit::Within(_) => false,
            WaitLimit::Forever => silent >= self.params.outage,
        };
        if stops {
            return end(Err(error));
        }
        let key = Some(self.params.key.clone());
        let cause = error.clone();
        self.inner.observers.tell(|| Event::Unavailable { key, cause });
        self.pause = (self.pause * 2).clamp(FIRST_RETRY_PAUSE, LONGEST_RETRY_PAUSE);
        self.last = LastResponse::Unknown(error);
        Verdict::Wait
    }

    /// Turns a grant into a hold, without an await in between. `None` if its lease is nearly over.
    fn hold(&self, grant: Grant, sent: Moment) -> Option<GuardInner> {
        let inner = &self.inner;
        let now = inner.clock.now();
        let deadline = sent + grant.ttl;
        if deadline.since(now) <= grant.ttl / 3 {
            return None;
        }
        let params = GrantParams {
            claim: self.params.claim.clone(),
            key: self.params.key.clone(),
            token: grant.token,
            renew_every: self.params.renew_every,
            max_hold: self.params.max_hold,
        };
        let lease = Arc::new(LeaseState::new(params, inner.status.clone(), deadline));
        Renewer::add(inner, lease.clone(), sent, grant.ttl);
        let (key, token) = (lease.key.clone(), lease.token);
        let waited = now.since(self.started);
        inner.observers.tell(|| Event::Granted { key, token, waited });
        Some(GuardInner::new(Lease::new(lease), inner.clone()))
    }

    /// Turns a pushed grant into a hold. Its lease counts from the last confirmed request and is
    /// therefore shorter than a ttl; the first renewal makes up for that. A fixed lease is never
    /// renewed: it sends one more request, whose response sets the whole ttl.
    pub(super) fn hold_pushed(&self, grant: Grant) -> Option<GuardInner> {
        if self.params.claim.fixed {
            return None;
        }
        self.hold(grant, self.last_confirmed)
    }

    /// The acquire has ended without a hold: releases what the claim may have left at the server.
    pub(super) fn cancel(&self, pending: Option<Pending>) {
        let key = self.params.key.clone();
        let waited = self.inner.clock.now().since(self.started);
        self.inner.observers.tell(|| Event::Cancelled { key, waited });
        if let Some(pending) = pending {
            Releaser::release_in_background(&self.inner, self.params.claim.clone(), pending);
        }
    }

    /// Begins the release of what the claim may have left.
    pub(super) fn pending(&self) -> Pending {
        self.inner.releaser.begin(self.params.key.clone())
    }

    fn with_time_waited(&self, busy: Busy) -> Busy {
        Busy { waited: self.inner.clock.now().since(self.started), ..busy }
    }
}

/// The acquire ends with this outcome, and the claim may have left something.
fn end(outcome: Outcome) -> Verdict {
    Verdict::End { outcome, leaves: true }
}

fn too_late(key: &Key) -> Error {
    let message =
        format!("`{key}` was granted, but the response came when its lease was nearly over");
    Error::new(ErrorKind::Unavailable, message)
}
