//! Sessions: the client's leases at the server, and the task that keeps them alive.
//!
//! All claims with the same ttl share one lease, so that the number of keep-alives does not grow
//! with the number of locks. A claim's key is attached to the lease: the server deletes it when the
//! lease ends.
//!
//! Two things are known of a lease. It *has ended* only if the server said so: a stream that breaks
//! or a response that does not come says nothing. It is *guaranteed* to live for its ttl from the
//! moment at which the last confirmed keep-alive was sent, and not from its response, because the
//! server may have counted from any moment in between. Grants and renewals are decided by that
//! guarantee, so that a client stops in time even if it hears nothing.
//!
//! One task, [`keep_alive`], sends the keep-alives of all leases on one stream, each a third of the
//! ttl after the last confirmed one or when an operation wants one now. If the stream ends, or a
//! response is overdue, it opens the next stream, at another member if there is one.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, WeakShared};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;

use super::connection::{Connection, Duplex, Method};
use super::error::unexpected;
use super::layout::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseRevokeRequest, LeaseRevokeResponse,
};
use crate::error::Result;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;

const GRANT: Method = Method("/etcdserverpb.Lease/LeaseGrant");
const REVOKE: Method = Method("/etcdserverpb.Lease/LeaseRevoke");
const KEEP_ALIVE: Method = Method("/etcdserverpb.Lease/LeaseKeepAlive");
/// How long the lease of an idle client is kept, so that its next acquire is one round trip.
const MAX_IDLE: Duration = Duration::from_secs(300);
/// A lease with this many tombstones gets no new claims, and is revoked with its last.
const MAX_TOMBSTONES: usize = 64;
/// How long revoking a lease may take.
const REVOKE_LIMIT: Duration = Duration::from_secs(2);
/// The pause before a stream that ended is opened again.
const REOPEN_PAUSE: Duration = Duration::from_millis(30);

type Creating = BoxFuture<'static, Result<Arc<Session>>>;
type KeepAliveStream = Duplex<LeaseKeepAliveRequest, LeaseKeepAliveResponse>;

/// One lease at the server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    state: Mutex<SessionState>,
    changed: Notify,
}

#[derive(Debug)]
struct SessionState {
    /// When the last keep-alive was sent that the server has confirmed.
    confirmed: Moment,
    /// When the keep-alive in flight was sent.
    in_flight: Option<Moment>,
    /// An operation wants a keep-alive now.
    wanted: bool,
    /// The server said that the lease has ended.
    ended: bool,
    last_used: Moment,
    claims: usize,
    /// How many cancelled claims have left a tombstone, which lives as long as the lease.
    tombstones: usize,
}

impl Session {
    fn new(id: i64, ttl: Duration, sent: Moment) -> Session {
        let state = SessionState {
            confirmed: sent,
            in_flight: None,
            wanted: false,
            ended: false,
            last_used: sent,
            claims: 0,
            tombstones: 0,
        };
        Session { id, ttl, state: Mutex::new(state), changed: Notify::new() }
    }

    /// Until when the lease is guaranteed to live.
    pub(super) fn guaranteed_until(&self) -> Moment {
        self.state.lock().confirmed + self.ttl
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().ended
    }

    /// The server said that the lease has ended.
    pub(super) fn set_ended(&self) {
        self.state.lock().ended = true;
        self.changed.notify_waiters();
    }

    pub(super) async fn until_ended(&self) {
        self.until(|state| state.ended).await;
    }

    /// Returns when the lease is guaranteed to live until this moment, or has ended.
    pub(super) async fn until_guaranteed(&self, moment: Moment) {
        self.until(|state| state.ended || state.confirmed + self.ttl >= moment).await;
    }

    pub(super) fn add_claim(&self) {
        self.state.lock().claims += 1;
    }

    /// Returns whether the lease is of no more use: it has tombstones only, and gets no new claims.
    pub(super) fn remove_claim(&self) -> bool {
        let mut state = self.state.lock();
        state.claims -= 1;
        state.claims == 0 && state.tombstones >= MAX_TOMBSTONES && !state.ended
    }

    pub(super) fn add_tombstone(&self) {
        self.state.lock().tombstones += 1;
    }

    /// Whether a new claim may be attached to it.
    fn is_usable(&self, now: Moment) -> bool {
        let mut state = self.state.lock();
        state.last_used = now;
        let left = (state.confirmed + self.ttl).since(now);
        !state.ended && state.tombstones < MAX_TOMBSTONES && left > self.ttl / 3
    }

    /// Whether it can be forgotten: it has ended, or was not used for a while.
    fn is_over(&self, now: Moment) -> bool {
        let state = self.state.lock();
        let idle = now.since(state.last_used);
        state.ended || (state.claims == 0 && idle > MAX_IDLE.max(self.ttl))
    }

    fn plan_keep_alive(&self, now: Moment, plan: &mut KeepAlivePlan) {
        let mut state = self.state.lock();
        let limit = (self.ttl / 6).clamp(Duration::from_millis(300), Duration::from_secs(2));
        let next = match state.in_flight {
            Some(sent) if now >= sent + limit => {
                plan.overdue = true;
                now
            }
            Some(sent) => sent + limit,
            None if state.wanted || now >= state.confirmed + self.ttl / 3 => {
                state.wanted = false;
                state.in_flight = Some(now);
                plan.send.push(self.id);
                now + limit
            }
            None => state.confirmed + self.ttl / 3,
        };
        plan.next = plan.next.min(next);
    }

    async fn until(&self, holds: impl Fn(&SessionState) -> bool) {
        loop {
            // Registered before the state is read, so that a change in between is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(&self.state.lock()) {
                return;
            }
            changed.await;
        }
    }
}

/// Every lease of a client.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    index: Mutex<SessionIndex>,
    /// The leases that are being made, by their ttl in seconds: claims that need one together share
    /// it, and any of them takes it further. None depends on another, which may stall.
    creating: Mutex<HashMap<u64, WeakShared<Creating>>>,
    /// Wakes the task that keeps them alive.
    wake_up: Notify,
}

#[derive(Debug, Default)]
struct SessionIndex {
    by_id: HashMap<i64, Arc<Session>>,
    /// The one for new claims, by its ttl in seconds.
    by_ttl: HashMap<u64, Arc<Session>>,
}

/// What the keep-alive task has to do now.
#[derive(Debug)]
struct KeepAlivePlan {
    /// The leases to send a keep-alive for.
    send: Vec<i64>,
    /// Whether a keep-alive was not confirmed in time.
    overdue: bool,
    next: Moment,
}

impl Sessions {
    /// The lease for a new claim with this ttl.
    pub(super) async fn session_for(
        self: &Arc<Self>,
        connection: &Arc<Connection>,
        ttl: Duration,
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let session = {
            let mut creating = self.creating.lock();
            // Under the lock: another claim may have made it just now.
            if let Some(session) = self.usable(seconds) {
                return Ok(session);
            }
            creating.retain(|_, session| session.upgrade().is_some());
            let under_way = creating.get(&seconds).and_then(WeakShared::upgrade);
            under_way.unwrap_or_else(|| {
                let create = self.clone().create(connection.clone(), seconds, limit);
                let session = create.boxed().shared();
                creating.extend(session.downgrade().map(|session| (seconds, session)));
                session
            })
        };
        session.await
    }

    /// Makes a lease.
    async fn create(
        self: Arc<Self>,
        connection: Arc<Connection>,
        seconds: u64,
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let sent = Clock::Boot.now();
        let granted = grant(&connection, seconds, limit).await?;
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
        let session = Arc::new(Session::new(granted.id, ttl, sent));
        let mut index = self.index.lock();
        index.by_id.insert(session.id, session.clone());
        index.by_ttl.insert(seconds, session.clone());
        self.wake_up.notify_one();
        Ok(session)
    }

    /// Wants a keep-alive, unless one is in flight or was confirmed just now.
    pub(super) fn refresh(&self, session: &Session) {
        let now = Clock::Boot.now();
        let mut state = session.state.lock();
        state.last_used = now;
        let is_fresh = now.since(state.confirmed) <= session.ttl / 10;
        if !state.wanted && state.in_flight.is_none() && !is_fresh {
            state.wanted = true;
            self.wake_up.notify_one();
        }
    }

    /// Wants a keep-alive, unless the lease is guaranteed to live until this moment, or will be by
    /// the one in flight.
    pub(super) fn extend(&self, session: &Session, moment: Moment) {
        let mut state = session.state.lock();
        let last = state.in_flight.unwrap_or(state.confirmed);
        if last + session.ttl < moment {
            state.wanted = true;
            self.wake_up.notify_one();
        }
    }

    /// Which keep-alives are to be sent now, and when to plan again. Forgets leases that are over.
    fn plan_keep_alives(&self, now: Moment) -> KeepAlivePlan {
        let mut plan = KeepAlivePlan { send: Vec::new(), overdue: false, next: Moment::NEVER };
        let SessionIndex { by_id, by_ttl } = &mut *self.index.lock();
        by_id.retain(|_, session| !session.is_over(now));
        by_ttl.retain(|_, session| !session.is_over(now));
        for session in by_id.values() {
            session.plan_keep_alive(now, &mut plan);
        }
        plan
    }

    /// Whether there is no lease to keep alive, and so no need for a stream.
    fn is_empty(&self) -> bool {
        self.index.lock().by_id.is_empty()
    }

    /// Keep-alives in flight were lost with their stream: they are wanted again.
    fn resend_in_flight(&self) {
        for session in self.index.lock().by_id.values() {
            let mut state = session.state.lock();
            state.wanted |= state.in_flight.take().is_some();
        }
    }

    fn record_response(&self, response: &LeaseKeepAliveResponse) {
        let Some(session) = self.index.lock().by_id.get(&response.id).cloned() else { return };
        let mut state = session.state.lock();
        match (response.ttl, state.in_flight.take()) {
            (..=0, _) => state.ended = true,
            (_, Some(sent)) => state.confirmed = sent,
            // The response to a keep-alive of an earlier stream: when that was sent is not known.
            (_, None) => {}
        }
        drop(state);
        session.changed.notify_waiters();
    }

    fn usable(&self, seconds: u64) -> Option<Arc<Session>> {
        let now = Clock::Boot.now();
        let index = self.index.lock();
        index.by_ttl.get(&seconds).filter(|session| session.is_usable(now)).cloned()
    }
}

/// Requests a lease of so many seconds; the response says how many it has.
pub(super) async fn grant(
    connection: &Connection,
    seconds: u64,
    limit: Duration,
) -> Result<LeaseGrantResponse> {
    let request = LeaseGrantRequest { ttl: i64::try_from(seconds).unwrap_or(i64::MAX) };
    let granted: LeaseGrantResponse = connection.call(GRANT, request, limit).await?.body;
    match granted.ttl {
        ..=0 => Err(unexpected("the lease was granted for no time")),
        _ => Ok(granted),
    }
}

/// Ends a lease that is of no more use. If that fails, it ends by itself.
pub(super) async fn revoke(connection: &Connection, session: &Session) {
    session.set_ended();
    let request = LeaseRevokeRequest { id: session.id };
    let revoked = connection.call::<_, LeaseRevokeResponse>(REVOKE, request, REVOKE_LIMIT).await;
    drop(revoked);
}

/// The task that keeps all leases alive. Runs until it is aborted.
pub(super) async fn keep_alive(connection: Arc<Connection>, sessions: Arc<Sessions>) {
    loop {
        while sessions.is_empty() {
            sessions.wake_up.notified().await;
        }
        if let Ok(stream) = connection.open(KEEP_ALIVE).await {
            keep_alive_on(stream, &connection, &sessions).await;
        }
        sessions.resend_in_flight();
        tokio::time::sleep(REOPEN_PAUSE).await;
    }
}

/// Sends keep-alives until the stream ends, is silent or belongs to an older connection.
async fn keep_alive_on(mut stream: KeepAliveStream, connection: &Connection, sessions: &Sessions) {
    let mut generations = connection.generations();
    while *generations.borrow_and_update() == stream.generation && !sessions.is_empty() {
        let plan = sessions.plan_keep_alives(Clock::Boot.now());
        if plan.overdue {
            return connection.move_on(stream.generation);
        }
        for id in plan.send {
            if stream.requests.send(&LeaseKeepAliveRequest { id }).is_err() {
                return;
            }
        }
        tokio::select! {
            response = stream.responses.next() => match response {
                Some(Ok(response)) => sessions.record_response(&response),
                Some(Err(status)) => {
                    return connection.stream_ended(stream.generation, Some(&status));
                }
                None => return connection.stream_ended(stream.generation, None),
            },
            () = sessions.wake_up.notified() => {}
            _changed = generations.changed() => {}
            () = Clock::Boot.sleep_until(plan.next) => {}
        }
    }
}
