//! Sessions: the server-side leases that keys hang on. A client has one session for each ttl that
//! its claims have, and one request renews it for all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, WeakShared};

use super::connection::api::Api;
use crate::backend::Claim;
use crate::error::Result;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::Mutex;

/// A session of this client.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: String,
    pub(super) ttl: Duration,
    state: Mutex<State>,
    /// The renewal under way, so that concurrent callers send one request between them. Any of them
    /// takes it further: none depends on another, which may stall.
    renewing: Mutex<Option<WeakShared<BoxFuture<'static, Result<bool>>>>>,
}

#[derive(Debug)]
struct State {
    /// When the last request was sent that created or renewed the session.
    renewed: Moment,
    /// Whether the server said that the session does not exist any more.
    gone: bool,
    /// Whether new claims are refused: the session holds the tombstone of a cancelled claim, and is
    /// ended with its last claim.
    retired: bool,
    claims: usize,
}

impl Session {
    pub(super) fn new(id: String, ttl: Duration, renewed: Moment) -> Session {
        let state = State { renewed, gone: false, retired: false, claims: 0 };
        Session { id, ttl, state: Mutex::new(state), renewing: Mutex::default() }
    }

    /// How much of the lease is left for a claim that counts from this moment. Consul ends a
    /// session no sooner than its ttl after the last renewal.
    pub(super) fn lease_from(&self, moment: Moment) -> Duration {
        (self.state.lock().renewed + self.ttl).since(moment).min(self.ttl)
    }

    /// Renews the session if the last renewal is older than `age`. `false` if it is gone.
    pub(super) async fn refresh(self: &Arc<Self>, api: &Arc<Api>, age: Duration) -> Result<bool> {
        let now = Clock::Boot.now();
        loop {
            let (renewal, is_own) = {
                let mut renewing = self.renewing.lock();
                if !self.is_older(now, age) {
                    return Ok(!self.is_gone());
                }
                match renewing.as_ref().and_then(WeakShared::upgrade) {
                    Some(renewal) => (renewal, false),
                    None => {
                        let renewal = self.clone().renew(api.clone()).boxed().shared();
                        *renewing = renewal.downgrade();
                        (renewal, true)
                    }
                }
            };
            let alive = renewal.await?;
            // One that was under way may have been sent too early.
            if is_own || !alive {
                return Ok(alive);
            }
        }
    }

    async fn renew(self: Arc<Self>, api: Arc<Api>) -> Result<bool> {
        let sent = Clock::Boot.now();
        let alive = api.renew_session(&self.id).await?;
        let mut state = self.state.lock();
        if alive {
            state.renewed = state.renewed.max(sent);
        } else {
            state.gone = true;
        }
        Ok(!state.gone)
    }

    /// Renews the session if more than a third of its lease has passed, which is soon enough for a
    /// claim that starts or goes on waiting on it. `false` if it is gone.
    pub(super) async fn refresh_if_stale(self: &Arc<Self>, api: &Arc<Api>) -> Result<bool> {
        self.refresh(api, self.ttl / 3).await
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state.lock().gone
    }

    /// The server said that the session does not exist any more.
    pub(super) fn set_gone(&self) {
        self.state.lock().gone = true;
    }

    /// Refuses new claims from now on.
    pub(super) fn retire(&self) {
        self.state.lock().retired = true;
    }

    /// Whether it was not renewed for so long that the server has ended it, or will.
    pub(super) fn is_idle(&self, now: Moment) -> bool {
        let state = self.state.lock();
        state.gone || now.since(state.renewed) > self.ttl * 2
    }

    /// Whether it accepts new claims.
    pub(super) fn is_open(&self) -> bool {
        let state = self.state.lock();
        !state.gone && !state.retired
    }

    pub(super) fn add_claim(&self) {
        self.state.lock().claims += 1;
    }

    /// Whether the session has to be ended, because that was the last claim of a retired one.
    pub(super) fn remove_claim(&self) -> bool {
        let mut state = self.state.lock();
        state.claims = state.claims.saturating_sub(1);
        state.retired && state.claims == 0 && !state.gone
    }

    /// Whether the last renewal was sent so long before this moment.
    fn is_older(&self, moment: Moment, age: Duration) -> bool {
        let state = self.state.lock();
        !state.gone && moment > state.renewed + age
    }
}

/// The sessions that accept new claims, by ttl: the ttl of a session is fixed when it is created.
#[derive(Debug, Default)]
pub(super) struct SessionsByTtl {
    open: Mutex<HashMap<Duration, Arc<Session>>>,
    /// Those that are being created: claims that need one together share it, and any of them takes
    /// it further.
    creating: Mutex<HashMap<Duration, WeakShared<Creating>>>,
}

type Creating = BoxFuture<'static, Result<Arc<Session>>>;

impl SessionsByTtl {
    /// Finds or creates a session with the ttl of this claim, and with a fresh lease.
    pub(super) async fn find_or_create(
        self: &Arc<Self>,
        api: &Arc<Api>,
        claim: &Claim,
        lock_delay: Duration,
    ) -> Result<Arc<Session>> {
        // Consul counts milliseconds: round up, so that no claim gets less than it wants.
        let millis = claim.ttl.as_nanos().div_ceil(1_000_000);
        let ttl = Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX));
        let known = self.find(ttl);
        if let Some(session) = &known
            && session.refresh_if_stale(api).await?
        {
            return Ok(session.clone());
        }
        let session = {
            let mut creating = self.creating.lock();
            // Under the lock: another claim may have created it just now.
            let found = self.find(ttl);
            if let Some(session) = found.filter(|found| !is_same(&known, found)) {
                return Ok(session);
            }
            creating.retain(|_, session| session.upgrade().is_some());
            let under_way = creating.get(&ttl).and_then(WeakShared::upgrade);
            under_way.unwrap_or_else(|| {
                let info = &claim.holder_info;
                let name =
                    format!("tenure {} on {} (pid {})", info.name(), info.host(), info.pid());
                let create = self.clone().create(api.clone(), name, ttl, lock_delay);
                let session = create.boxed().shared();
                creating.extend(session.downgrade().map(|session| (ttl, session)));
                session
            })
        };
        session.await
    }

    async fn create(
        self: Arc<Self>,
        api: Arc<Api>,
        name: String,
        ttl: Duration,
        lock_delay: Duration,
    ) -> Result<Arc<Session>> {
        let sent = Clock::Boot.now();
        let id = api.create_session(&name, ttl, lock_delay).await?;
        let session = Arc::new(Session::new(id, ttl, sent));
        self.open.lock().insert(ttl, session.clone());
        Ok(session)
    }

    fn find(&self, ttl: Duration) -> Option<Arc<Session>> {
        let mut open = self.open.lock();
        open.retain(|_, session| session.is_open());
        open.get(&ttl).cloned()
    }
}

fn is_same(known: &Option<Arc<Session>>, found: &Arc<Session>) -> bool {
    known.as_ref().is_some_and(|known| Arc::ptr_eq(known, found))
}
