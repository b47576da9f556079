//! Leases. All claims with the same ttl share one, so that the number of keep-alives does not grow
//! with the number of locks. Only the server's word ends a lease here; until when it is sure to
//! live is counted from before the last keep-alive that was answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::fault::unavailable;
use super::proto::{LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveResponse};
use super::wire::{Method, Wire};
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// One lease at the server.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// When the last keep-alive that was answered had been sent.
    confirmed: Moment,
    /// When the keep-alive in flight was sent.
    asked: Option<Moment>,
    /// Somebody wants a keep-alive now.
    wanted: bool,
    /// The server said that the lease is gone.
    dead: bool,
    used: Moment,
    claims: usize,
    /// How many withdrawn claims have left a mark that lives as long as the lease.
    voids: usize,
}

impl Session {
    /// Until when the lease is sure to live.
    pub(super) fn end(&self) -> Moment {
        self.state().confirmed + self.ttl
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().dead
    }

    /// The server said so.
    pub(super) fn bury(&self) {
        self.state().dead = true;
        self.changed.notify_waiters();
    }

    pub(super) async fn until_dead(&self) {
        self.until(|state| state.dead).await;
    }

    /// Returns when the lease is sure to live until this moment, or is dead.
    pub(super) async fn until_lasting(&self, moment: Moment) {
        self.until(|state| state.dead || state.confirmed + self.ttl >= moment).await;
    }

    pub(super) fn add_claim(&self) {
        self.state().claims += 1;
    }

    /// Whether the lease has no use any more: it carries marks only, and no new claims.
    pub(super) fn drop_claim(&self) -> bool {
        let mut state = self.state();
        state.claims -= 1;
        state.claims == 0 && state.voids >= MOST_VOIDS && !state.dead
    }

    pub(super) fn add_void(&self) {
        self.state().voids += 1;
    }

    /// Whether a new claim may hang on it.
    fn is_usable(&self, now: Moment) -> bool {
        let mut state = self.state();
        state.used = now;
        let left = (state.confirmed + self.ttl).since(now);
        !state.dead && state.voids < MOST_VOIDS && left > self.ttl / 3
    }

    async fn until(&self, holds: impl Fn(&State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if holds(&self.state()) {
                return;
            }
            changed.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Every lease of a client.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    book: Mutex<Book>,
    making: tokio::sync::Mutex<()>,
    /// Rings the task that keeps them alive.
    pub(super) bell: Notify,
}

#[derive(Debug, Default)]
struct Book {
    by_id: HashMap<i64, Arc<Session>>,
    /// The one for new claims, by its ttl in seconds.
    by_ttl: HashMap<u64, Arc<Session>>,
}

/// What the keep-alive task has to do.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) ask: Vec<i64>,
    /// A keep-alive was not answered in time.
    pub(super) overdue: bool,
    pub(super) next: Moment,
}

impl Sessions {
    /// The lease for a new claim with this ttl.
    pub(super) async fn take(
        &self,
        wire: &Wire,
        ttl: Duration,
        limit: Duration,
    ) -> Result<Arc<Session>> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        if let Some(session) = self.usable(seconds) {
            return Ok(session);
        }
        let _making = self.making.lock().await;
        if let Some(session) = self.usable(seconds) {
            return Ok(session);
        }
        let sent = Clock::Boot.now();
        let granted = grant(wire, seconds, limit).await?;
        let state = State {
            confirmed: sent,
            asked: None,
            wanted: false,
            dead: false,
            used: sent,
            claims: 0,
            voids: 0,
        };
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
        let (state, changed) = (Mutex::new(state), Notify::new());
        let session = Arc::new(Session { id: granted.id, ttl, state, changed });
        let mut book = self.book();
        book.by_id.insert(session.id, session.clone());
        book.by_ttl.insert(seconds, session.clone());
        self.bell.notify_one();
        Ok(session)
    }

    /// Asks for a keep-alive unless there was one just now.
    pub(super) fn refresh(&self, session: &Session) {
        let now = Clock::Boot.now();
        let mut state = session.state();
        state.used = now;
        if !state.wanted && state.asked.is_none() && now.since(state.confirmed) > session.ttl / 10 {
            state.wanted = true;
            self.bell.notify_one();
        }
    }

    /// Asks for a keep-alive unless the lease is sure to live until this moment, or will be by the
    /// one that is in flight.
    pub(super) fn extend(&self, session: &Session, moment: Moment) {
        let mut state = session.state();
        let last = state.asked.unwrap_or(state.confirmed);
        if last + session.ttl < moment {
            state.wanted = true;
            self.bell.notify_one();
        }
    }

    /// What is to be asked now, and when to look again. Forgets what is over.
    pub(super) fn work(&self, now: Moment) -> Work {
        let mut work = Work { ask: Vec::new(), overdue: false, next: Moment::NEVER };
        let Book { by_id, by_ttl } = &mut *self.book();
        by_id.retain(|_, session| !session.is_over(now));
        by_ttl.retain(|_, session| !session.is_over(now));
        for session in by_id.values() {
            session.plan(now, &mut work);
        }
        work
    }

    /// Whether something is to be asked or will have to be: then a stream is worth having.
    pub(super) fn is_idle(&self) -> bool {
        self.book().by_id.is_empty()
    }

    /// Keep-alives in flight were lost with their stream.
    pub(super) fn forget_asked(&self) {
        for session in self.book().by_id.values() {
            let mut state = session.state();
            state.wanted |= state.asked.take().is_some();
        }
    }

    /// Takes an answer down.
    pub(super) fn hear(&self, answer: &LeaseKeepAliveResponse) {
        let Some(session) = self.book().by_id.get(&answer.id).cloned() else { return };
        let mut state = session.state();
        match (answer.ttl, state.asked.take()) {
            (..=0, _) => state.dead = true,
            (_, Some(sent)) => state.confirmed = sent,
            (_, None) => {}
        }
        drop(state);
        session.changed.notify_waiters();
    }

    fn usable(&self, seconds: u64) -> Option<Arc<Session>> {
        let now = Clock::Boot.now();
        let book = self.book();
        book.by_ttl.get(&seconds).filter(|session| session.is_usable(now)).cloned()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Nothing hangs on it, and it is dead or was not used for a while.
    fn is_over(&self, now: Moment) -> bool {
        let state = self.state();
        state.dead || (state.claims == 0 && now.since(state.used) > IDLE.max(self.ttl))
    }

    fn plan(&self, now: Moment, work: &mut Work) {
        let mut state = self.state();
        let patience = (self.ttl / 6).clamp(Duration::from_millis(300), Duration::from_secs(2));
        let next = match state.asked {
            Some(asked) if now >= asked + patience => {
                work.overdue = true;
                now
            }
            Some(asked) => asked + patience,
            None if state.wanted || now >= state.confirmed + self.ttl / 3 => {
                state.wanted = false;
                state.asked = Some(now);
                work.ask.push(self.id);
                now + patience
            }
            None => state.confirmed + self.ttl / 3,
        };
        work.next = work.next.min(next);
    }
}

/// Asks for a lease of so many seconds; the answer says how many it has.
pub(super) async fn grant(wire: &Wire, secs: u64, limit: Duration) -> Result<LeaseGrantResponse> {
    let request = LeaseGrantRequest { ttl: i64::try_from(secs).unwrap_or(i64::MAX) };
    let granted: LeaseGrantResponse = wire.call(GRANT, request, limit).await?.body;
    match granted.ttl {
        ..=0 => Err(unavailable("a lease was granted that is over already")),
        _ => Ok(granted),
    }
}

const GRANT: Method = Method("/etcdserverpb.Lease/LeaseGrant");
/// For how long the lease of an idle client is kept, so that its next take is one trip.
const IDLE: Duration = Duration::from_secs(300);
/// A lease with so many marks of withdrawn claims gets no new claims, and ends with its last.
const MOST_VOIDS: usize = 64;
