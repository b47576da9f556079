//! The server of a schedule: a store with leases on a clock of its own, which can jump. It stands
//! for any server that keeps a row with an end: no queue, a growing token, a bell for waiters.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure::backend::{Backend, Claim, Grant, Info, Order, Owner, Reach, Scope};
use tenure::{Attempt, Error, ErrorKind, FencingToken, Finding, Holding, Key, Result};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The server; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Server(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    rows: Mutex<Rows>,
    bell: Notify,
    start: Instant,
    /// A server that forgets to compare the owner: to prove that schedules find it.
    broken: bool,
}

#[derive(Debug, Default)]
struct Rows {
    rows: HashMap<Key, Row>,
    token: u64,
    /// How far the server's clock is ahead of the true one, in milliseconds.
    ahead: i64,
}

#[derive(Clone, Debug)]
struct Row {
    owner: Owner,
    token: FencingToken,
    /// On the server's clock.
    until: i64,
}

impl Server {
    pub(super) fn new(broken: bool) -> Server {
        let (rows, bell, start) = (Mutex::default(), Notify::new(), Instant::now());
        Server(Arc::new(Inner { rows, bell, start, broken }))
    }

    /// Lets its clock jump.
    pub(super) fn jump(&self, millis: i64) {
        self.rows().ahead += millis;
        self.0.bell.notify_waiters();
    }

    /// Forgets who holds: an eviction, an operator, a session that was killed.
    pub(super) fn forget(&self) {
        self.rows().rows.clear();
        self.0.bell.notify_waiters();
    }

    /// Whether somebody holds on the server's clock.
    pub(super) fn is_held(&self) -> bool {
        let rows = self.rows();
        let now = self.now(&rows);
        rows.rows.values().any(|row| row.until > now)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self, rows: &Rows) -> i64 {
        self.0.start.elapsed().as_millis() as i64 + rows.ahead
    }
}

#[async_trait]
impl Backend for Server {
    fn info(&self) -> Info {
        let mut info = Info::new("simulated");
        // On the caller's runtime, and so on the virtual clock.
        info.reach = Reach::Process;
        info.order = Order::Any;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let mut rows = self.rows();
        let now = self.now(&rows);
        let until = now + claim.ttl.as_millis() as i64;
        if let Some(row) = rows.rows.get_mut(&claim.key).filter(|row| row.until > now) {
            if row.owner == claim.owner {
                row.until = until;
                return Ok(Attempt::Granted(Grant::new(row.token, claim.ttl)));
            }
            if !self.0.broken {
                return Ok(Attempt::Busy(tenure::Busy::new(claim.key.clone())));
            }
        }
        rows.token += 1;
        let exhausted = || Error::new(ErrorKind::Unavailable, "there are no more tokens");
        let token = FencingToken::new(rows.token).ok_or_else(exhausted)?;
        rows.rows.insert(claim.key.clone(), Row { owner: claim.owner, token, until });
        Ok(Attempt::Granted(Grant::new(token, claim.ttl)))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut rows = self.rows();
        let now = self.now(&rows);
        let mut one = |claim: &Claim| {
            let row = rows.rows.get_mut(&claim.key).filter(|row| row.until > now);
            match row.filter(|row| row.owner == claim.owner) {
                Some(row) => {
                    row.until = now + claim.ttl.as_millis() as i64;
                    Ok(claim.ttl)
                }
                None => Err(Error::new(ErrorKind::Lost, "the lock is not held")),
            }
        };
        claims.iter().map(&mut one).collect()
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let mut rows = self.rows();
        let now = self.now(&rows);
        let row = rows.rows.get(&claim.key).filter(|row| row.owner == claim.owner).cloned();
        if row.is_some() {
            rows.rows.remove(&claim.key);
            self.0.bell.notify_waiters();
        }
        Ok(row.is_some_and(|row| row.until > now))
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        loop {
            let mut rung = std::pin::pin!(self.0.bell.notified());
            rung.as_mut().enable();
            let left = {
                let rows = self.rows();
                let now = self.now(&rows);
                let row = rows.rows.get(&claim.key).filter(|row| row.owner != claim.owner);
                row.map(|row| row.until - now).filter(|&left| left > 0)
            };
            let left = u64::try_from(left?).unwrap_or_default();
            tokio::select! {
                biased;
                () = rung => {}
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

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}
