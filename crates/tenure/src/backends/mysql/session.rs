//! `mode=session`: a named lock of the connection (`GET_LOCK`) is the lock. The server frees it
//! when the connection ends; the tables say whose turn it is, who waits, and give the token.
//!
//! Named locks count per connection, so that a second claim of the same client would get one as
//! well: which claim has which key is kept here, from before the request is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Taken;
use super::book::HOME;
use super::lease::{Lease, Ring, limit};
use super::link::Answer;
use super::literals::{hex, native_name};
use super::state::Seen;
use crate::backend::{Claim, Owner};
use crate::claim::LostReason;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// The named locks of one client.
///
/// An entry is made before the request is sent and removed before the release is. It counts for
/// other claims of this client only as long as the connection lives that has the lock: what became
/// of a request in an outage does not matter then, because nothing outlives a connection.
#[derive(Debug, Default)]
pub(super) struct Session {
    holds: Mutex<HashMap<Key, Hold>>,
}

#[derive(Debug)]
struct Hold {
    owner: Owner,
    ttl: Duration,
    /// The connection that has the lock; none until the server has said so.
    home: Option<Arc<str>>,
}

impl Session {
    /// Takes the named lock for a claim whose turn it is.
    pub(super) async fn take(&self, lease: &Lease, claim: &Claim) -> Result<Taken> {
        if !self.begin(lease, claim) {
            return Ok(Taken::by_sibling());
        }
        let sql = self.take_sql(lease, claim);
        let answer = lease.main().ask(sql, limit(claim.ttl)).await?;
        self.settle(lease, claim, answer)
    }

    /// Goes for the lock, without waiting. The record is read after that: whoever had a later turn
    /// and the lock would show in it.
    fn take_sql(&self, lease: &Lease, claim: &Claim) -> String {
        let (name, idle) = (lock_name(&claim.key), self.idle_limit());
        let look = lease.book.look(std::iter::once(&claim.key));
        format!(
            "SELECT IF(IS_USED_LOCK({name})<=>CONNECTION_ID(),1,GET_LOCK({name},0));\
             SET SESSION wait_timeout={idle};{look}"
        )
    }

    /// Makes the server's answer a hold, or gives back what is of no use.
    fn settle(&self, lease: &Lease, claim: &Claim, answer: Answer) -> Result<Taken> {
        let got = answer.first(0) == Some(1);
        let seen = answer.sets.get(1).and_then(|rows| rows.first()).map(Seen::read).transpose()?;
        let mine = seen.filter(|seen| !seen.over && seen.owner == claim.owner.to_string());
        if let Some(token) = mine.as_ref().and_then(|seen| seen.token).filter(|_| got)
            && self.is_taken(claim, answer.home)
        {
            return Ok(Taken::Granted(token));
        }
        if got {
            lease.main().post(unlock_sql(lease, &claim.key, claim.owner));
        }
        self.forget(&claim.key, claim.owner);
        Ok(mine.map_or(Taken::NotOurTurn, |seen| Taken::Blocked(seen.held_for)))
    }

    /// Notes which connection has the lock. `false` if the claim has given it up meanwhile.
    fn is_taken(&self, claim: &Claim, home: Arc<str>) -> bool {
        let mut holds = self.holds();
        match holds.get_mut(&claim.key).filter(|hold| hold.owner == claim.owner) {
            Some(hold) => hold.home = Some(home),
            None => return false,
        }
        true
    }

    /// Gives back the turn, then the named lock: without the lock, a record that is over by the
    /// clock could go to another before we say that we gave it back. Who is next is woken after
    /// both. Repeated, it does the same: it does not depend on what is known here.
    pub(super) async fn release(&self, lease: &Lease, claim: &Claim) -> Result<(bool, Ring)> {
        self.forget(&claim.key, claim.owner);
        let released = lease.release(claim).await?;
        let unlock = unlock_sql(lease, &claim.key, claim.owner);
        let sql = format!("{unlock};SET SESSION wait_timeout={}", self.idle_limit());
        lease.main().ask(sql, limit(claim.ttl)).await?;
        Ok(released)
    }

    /// The claim has nothing to do with the lock any more.
    fn forget(&self, key: &Key, owner: Owner) {
        let mut holds = self.holds();
        if holds.get(key).is_some_and(|hold| hold.owner == owner) {
            holds.remove(key);
        }
    }

    /// Gives up the named lock of a claim that the tables say is over.
    pub(super) fn drop_lock(&self, lease: &Lease, key: &Key, owner: Owner) {
        if self.holds().get(key).is_some_and(|hold| hold.owner == owner) {
            lease.main().post(unlock_sql(lease, key, owner));
            self.forget(key, owner);
        }
    }

    /// The connection that a claim's lock hangs on.
    pub(super) fn home(&self, claim: &Claim) -> Option<Arc<str>> {
        let holds = self.holds();
        holds.get(&claim.key).filter(|hold| hold.owner == claim.owner)?.home.clone()
    }

    pub(super) async fn renew(&self, lease: &Lease, claims: &[Claim]) -> Vec<Result<Duration>> {
        let renewal = match lease.renew(claims).await {
            Ok(renewal) => renewal,
            Err(error) => return vec![Err(error); claims.len()],
        };
        let settle = |claim: &Claim| {
            let kept = match self.home(claim) {
                Some(home) if home != *renewal.home(claim) => {
                    Err(Error::gone(LostReason::SessionGone))
                }
                _ => renewal.lease(claim),
            };
            if kept.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
                self.drop_lock(lease, &claim.key, claim.owner);
                lease.forget(claim.owner);
            }
            kept
        };
        claims.iter().map(settle).collect()
    }

    /// Notes that this claim goes for the lock. `false` if another claim of this client has it, or
    /// goes for it. One whose connection is gone has nothing.
    fn begin(&self, lease: &Lease, claim: &Claim) -> bool {
        let current = lease.main().home();
        let mut holds = self.holds();
        let fresh = Hold { owner: claim.owner, ttl: claim.ttl, home: None };
        let hold = holds.entry(claim.key.clone()).or_insert(fresh);
        let stale = hold.home.is_some() && hold.home != current;
        if hold.owner != claim.owner && !stale {
            return false;
        }
        if stale {
            hold.home = None;
        }
        (hold.owner, hold.ttl) = (claim.owner, claim.ttl);
        true
    }

    /// How long the server lets the connection be silent: the longest lease of what it holds. So a
    /// stopped client is freed by the server, and never before its leases are over.
    fn idle_limit(&self) -> u64 {
        let longest = self.holds().values().map(|hold| hold.ttl).max().unwrap_or_default();
        if longest.is_zero() { NO_LOCKS } else { whole_seconds(longest) }
    }

    fn holds(&self) -> MutexGuard<'_, HashMap<Key, Hold>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the named lock of a key go, unless it is the turn of another claim on this connection: that
/// one has the lock by now, or will go for it. A SELECT, because the subquery of a DO would wait
/// for a row that another transaction has locked.
fn unlock_sql(lease: &Lease, key: &Key, owner: Owner) -> String {
    let (table, name, key) = (lease.book.lease, lock_name(key), hex(key.as_str()));
    format!(
        "SELECT IF(EXISTS(SELECT 1 FROM {table} WHERE k={key} AND owner NOT IN ('','{owner}') \
         AND home={HOME}),0,RELEASE_LOCK({name}))"
    )
}

/// The name of a key's lock, as an expression.
fn lock_name(key: &Key) -> String {
    native_name(&hex(key.as_str()))
}

pub(super) fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000).try_into().unwrap_or(NO_LOCKS)
}

/// The server's own default: eight hours.
pub(super) const NO_LOCKS: u64 = 28800;
