//! The server of a schedule: a store with leases on a clock of its own, which can jump. It stands
//! for any server that stores a row with an expiry: no queue, growing tokens, and a wake-up for all
//! waiters.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Order, Owner, Reach, Scope};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::sync::Mutex;

/// The simulated server. Clones share its state.
#[derive(Clone, Debug)]
pub(super) struct SimulatedServer(Arc<ServerInner>);

#[derive(Debug)]
struct ServerInner {
    state: Mutex<ServerState>,
    /// Wakes all waiters to recheck.
    wakeup: Notify,
    start: Instant,
    /// Whether it grants the lock without comparing the owner: to prove that schedules find it.
    broken: bool,
}

#[derive(Debug, Default)]
struct ServerState {
    rows: HashMap<Key, Row>,
    token: u64,
    /// How far the server's clock is ahead of the real one, in milliseconds.
    ahead: i64,
}

#[derive(Clone, Debug)]
struct Row {
    owner: Owner,
    token: FencingToken,
    /// Expiry, in milliseconds of the server's clock.
    until: i64,
}

impl SimulatedServer {
    pub(super) fn new(broken: bool) -> SimulatedServer {
        let state = Mutex::default();
        let start = Instant::now();
        SimulatedServer(Arc::new(ServerInner { state, wakeup: Notify::new(), start, broken }))
    }

    /// Lets its clock jump by this many milliseconds.
    pub(super) fn jump(&self, millis: i64) {
        self.state().ahead += millis;
        self.0.wakeup.notify_waiters();
    }

    /// Loses all locks, as after an eviction or a killed session.
    pub(super) fn forget(&self) {
        self.state().rows.clear();
        self.0.wakeup.notify_waiters();
    }

    /// Whether a lock is held by the server's clock.
    pub(super) fn is_held(&self) -> bool {
        let state = self.state();
        let now = self.now(&state);
        state.rows.values().any(|row| row.until > now)
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.0.state.lock()
    }

    fn now(&self, state: &ServerState) -> i64 {
        self.0.start.elapsed().as_millis() as i64 + state.ahead
    }
}

#[async_trait]
impl Backend for SimulatedServer {
    fn info(&self) -> Info {
        let mut info = Info::new("simulated");
        // Lets the engine run on the caller's runtime, and so on the virtual clock.
        info.reach = Reach::Process;
        info.order = Order::Any;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let mut state = self.state();
        let now = self.now(&state);
        let until = now + claim.ttl.as_millis() as i64;
        if let Some(row) = state.rows.get_mut(&claim.key).filter(|row| row.until > now) {
            if row.owner == claim.owner {
                row.until = until;
                return Ok(Attempt::Granted(Grant::new(row.token, claim.ttl)));
            }
            if !self.0.broken {
                return Ok(Attempt::Busy(tenure::Busy::new(claim.key.clone())));
            }
        }
        state.token += 1;
        let exhausted = || Error::new(ErrorKind::Unavailable, "there are no more tokens");
        let token = FencingToken::new(state.token).ok_or_else(exhausted)?;
        state.rows.insert(claim.key.clone(), Row { owner: claim.owner, token, until });
        Ok(Attempt::Granted(Grant::new(token, claim.ttl)))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut state = self.state();
        let now = self.now(&state);
        let mut renew = |claim: &Claim| {
            let row = state.rows.get_mut(&claim.key).filter(|row| row.until > now);
            match row.filter(|row| row.owner == claim.owner) {
                Some(row) => {
                    row.until = now + claim.ttl.as_millis() as i64;
                    Ok(claim.ttl)
                }
                None => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
            }
        };
        claims.iter().map(&mut renew).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let mut state = self.state();
        let now = self.now(&state);
        let row = state.rows.get(&claim.key).filter(|row| row.owner == claim.owner).cloned();
        if row.is_some() {
            state.rows.remove(&claim.key);
            self.0.wakeup.notify_waiters();
        }
        Ok(row.is_some_and(|row| row.until > now))
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        loop {
            let mut woken = std::pin::pin!(self.0.wakeup.notified());
            woken.as_mut().enable();
            let left = {
                let state = self.state();
                let now = self.now(&state);
                let row = state.rows.get(&claim.key).filter(|row| row.owner != claim.owner);
                row.map(|row| row.until - now).filter(|&left| left > 0)
            };
            let left = u64::try_from(left?).unwrap_or_default();
            tokio::select! {
                biased;
                () = woken => {}
                () = tokio::time::sleep(Duration::from_millis(left)) => {}
            }
        }
    }

    async fn until_lost(&self, _claim: &Claim) {
        std::future::pending().await
    }

    async fn list(&self, _scope: Scope<'_>) -> Result<Vec<Holding>> {
        Ok(Vec::new())
    }

    async fn evict(&self, _key: &Key, _token: FencingToken) -> Result<bool> {
        Ok(false)
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
