//! Sessions: what a lock hangs on. One for each ttl that a client asks for, renewed for all its
//! locks together.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::api::Api;
use crate::claim::Claim;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// One session of ours.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    state: Mutex<State>,
    /// Held by whoever renews, so that many who need it do it once.
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// Before the request was sent that made or renewed it.
    renewed: Moment,
    gone: bool,
    /// Takes no new claims: it carries the mark of a withdrawn one, and ends with its last claim.
    retired: bool,
    claims: usize,
}

impl Session {
    pub(super) fn new(id: String, ttl: Duration, renewed: Moment) -> Session {
        let state = State { renewed, gone: false, retired: false, claims: 0 };
        Session { id, ttl, state: Mutex::new(state), renewing: tokio::sync::Mutex::default() }
    }

    /// How much of the lease is certain for somebody who counts from that moment. Consul ends a
    /// session no sooner than its ttl after the last renewal.
    pub(super) fn lease_from(&self, moment: Moment) -> Duration {
        (self.state().renewed + self.ttl).since(moment).min(self.ttl)
    }

    /// Renews it if that is longer ago than `age`. `false` if it is gone.
    pub(super) async fn refresh(&self, api: &Api, age: Duration) -> Result<bool> {
        if !self.is_older(age) {
            return Ok(!self.is_gone());
        }
        let _turn = self.renewing.lock().await;
        if !self.is_older(age) {
            return Ok(!self.is_gone());
        }
        let sent = Clock::Boot.now();
        let alive = api.renew_session(&self.id).await?;
        let mut state = self.state();
        match alive {
            true => state.renewed = state.renewed.max(sent),
            false => state.gone = true,
        }
        Ok(!state.gone)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state().gone
    }

    /// The server said so.
    pub(super) fn lose(&self) {
        self.state().gone = true;
    }

    pub(super) fn retire(&self) {
        self.state().retired = true;
    }

    /// Whether nobody has renewed it for so long that the server has ended it, or will.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let state = self.state();
        state.gone || now.since(state.renewed) > self.ttl * 2
    }

    /// Whether a new claim may hang on it.
    pub(super) fn is_open(&self) -> bool {
        let state = self.state();
        !state.gone && !state.retired
    }

    pub(super) fn join(&self) {
        self.state().claims += 1;
    }

    /// Whether it has to be ended, because that was the last claim of a retired session.
    pub(super) fn part(&self) -> bool {
        let mut state = self.state();
        state.claims = state.claims.saturating_sub(1);
        state.retired && state.claims == 0 && !state.gone
    }

    fn is_older(&self, age: Duration) -> bool {
        let state = self.state();
        !state.gone && Clock::Boot.now().since(state.renewed) > age
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sessions that new claims go to, by ttl: a session's ttl is fixed when it is made.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    open: tokio::sync::Mutex<HashMap<Duration, Arc<Session>>>,
}

impl Sessions {
    /// A session with this claim's ttl whose lease is fresh.
    pub(super) async fn find(
        &self,
        api: &Api,
        claim: &Claim,
        lock_delay: Duration,
    ) -> Result<Arc<Session>> {
        let mut open = self.open.lock().await;
        open.retain(|_, session| session.is_open());
        // Consul counts milliseconds: no claim gets less than it wants.
        let millis = claim.ttl.as_nanos().div_ceil(1_000_000);
        let ttl = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        if let Some(session) = open.get(&ttl)
            && session.refresh(api, ttl / 3).await?
        {
            return Ok(session.clone());
        }
        let note = &claim.note;
        let name = format!("tenure {} on {} (pid {})", note.name(), note.host(), note.pid());
        let sent = Clock::Boot.now();
        let id = api.create_session(&name, ttl, lock_delay).await?;
        let session = Arc::new(Session::new(id, ttl, sent));
        open.insert(ttl, session.clone());
        Ok(session)
    }
}
