//! `mode=session`: a named lock of the connection (`GET_LOCK`) is the lock. The server frees it
//! when the connection ends; the tables say whose turn it is, who waits, and give the token.
//!
//! Named locks count per connection, so that a second claim of the same client would get one as
//! well: which claim has which key is kept here, from before the request is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::book::{hex, native_name};
use super::lease::{self, Lease, Ring};
use super::link::Answer;
use super::state::Seen;
use crate::backend::{Claim, Owner};
use crate::claim::LostReason;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The named locks of one client.
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
    /// Takes the named lock for a claim whose turn it is. `None` if somebody else has it, or the
    /// turn was over before.
    pub(super) async fn take(&self, lease: &Lease, claim: &Claim) -> Result<Option<FencingToken>> {
        if !self.begin(claim) {
            return Ok(None);
        }
        let sql = self.take_sql(lease, claim, "TRUE");
        let answer = lease.link(&claim.key).ask(sql, lease::limit(claim.ttl)).await?;
        self.settle(lease, claim, answer)
    }

    /// Takes the turn of a free key and the named lock in one trip. `None` if the key is not free;
    /// `Some(None)` if it is our turn, but somebody else has the lock.
    pub(super) async fn take_free(
        &self,
        lease: &Lease,
        claim: &Claim,
    ) -> Result<Option<Option<FencingToken>>> {
        if !self.begin(claim) {
            return Ok(None);
        }
        let then = self.take_sql(lease, claim, "ROW_COUNT()=1");
        let (turn, answer) = lease.take_free(claim, &format!(";{then}")).await?;
        if turn.is_none() {
            // A claim that has the lock already and asks again keeps it.
            if self.home(claim).is_none() {
                self.released(&claim.key, claim.owner);
            }
            return Ok(None);
        }
        self.settle(lease, claim, answer).map(Some)
    }

    /// Tries for the lock if the condition holds. The record is read after that: whoever had a
    /// later turn and the lock would show in it.
    fn take_sql(&self, lease: &Lease, claim: &Claim, condition: &str) -> String {
        let (name, idle) = (lock_name(&claim.key), self.idle_limit());
        let look = lease.book.look(std::iter::once(&claim.key));
        format!(
            "SELECT IF({condition},\
             IF(IS_USED_LOCK({name})<=>CONNECTION_ID(),1,GET_LOCK({name},0)),0);\
             SET SESSION wait_timeout={idle};{look}"
        )
    }

    /// Makes the server's answer a hold, or gives back what is of no use.
    fn settle(&self, lease: &Lease, claim: &Claim, answer: Answer) -> Result<Option<FencingToken>> {
        let got = answer.first(0) == Some(1);
        let seen = answer.sets.get(1).and_then(|rows| rows.first()).map(Seen::read).transpose()?;
        let mine = seen.filter(|seen| !seen.over && seen.owner == claim.owner.to_string());
        match mine.and_then(|seen| seen.token).filter(|_| got) {
            Some(token) => {
                if let Some(hold) = self.holds().get_mut(&claim.key) {
                    hold.home = Some(answer.home);
                }
                Ok(Some(token))
            }
            None => {
                if got {
                    let name = lock_name(&claim.key);
                    lease.link(&claim.key).post(format!("DO RELEASE_LOCK({name})"));
                }
                self.released(&claim.key, claim.owner);
                Ok(None)
            }
        }
    }

    /// Gives back: first the named lock, then the turn, in one trip.
    pub(super) async fn release(&self, lease: &Lease, claim: &Claim) -> Result<(bool, Ring)> {
        let released = lease.release(claim, &self.before_release(claim)).await?;
        self.released(&claim.key, claim.owner);
        Ok(released)
    }

    /// What has to be said before the tables are told of a release.
    fn before_release(&self, claim: &Claim) -> String {
        let mut holds = self.holds();
        let Some(hold) = holds.get_mut(&claim.key).filter(|hold| hold.owner == claim.owner) else {
            return String::new();
        };
        hold.ttl = Duration::ZERO;
        drop(holds);
        let (name, idle) = (lock_name(&claim.key), self.idle_limit());
        format!("DO RELEASE_LOCK({name});SET SESSION wait_timeout={idle};")
    }

    /// The server has confirmed the release, or the connection is gone.
    fn released(&self, key: &Key, owner: Owner) {
        let mut holds = self.holds();
        if holds.get(key).is_some_and(|hold| hold.owner == owner) {
            holds.remove(key);
        }
    }

    /// Gives up the named lock of a claim that the tables say is over.
    pub(super) fn drop_lock(&self, lease: &Lease, key: &Key, owner: Owner) {
        if self.holds().get(key).is_some_and(|hold| hold.owner == owner) {
            lease.link(key).post(format!("DO RELEASE_LOCK({})", lock_name(key)));
            self.released(key, owner);
        }
    }

    /// The connection that a claim's lock hangs on.
    pub(super) fn home(&self, claim: &Claim) -> Option<Arc<str>> {
        let holds = self.holds();
        holds.get(&claim.key).filter(|hold| hold.owner == claim.owner)?.home.clone()
    }

    pub(super) async fn renew(&self, lease: &Lease, claims: &[Claim]) -> Vec<Result<Duration>> {
        let (held, answer) = match lease.renew(claims).await {
            Ok(renewed) => renewed,
            Err(error) => return vec![Err(error); claims.len()],
        };
        let settle = |claim: &Claim| {
            let home = self.home(claim);
            if home.is_some_and(|home| home != answer.home) {
                self.released(&claim.key, claim.owner);
                lease.forget(claim.owner);
                return Err(Error::gone(LostReason::SessionGone));
            }
            if held.contains(&claim.owner.to_string()) {
                return Ok(claim.ttl);
            }
            self.drop_lock(lease, &claim.key, claim.owner);
            lease.forget(claim.owner);
            Err(lease::lost())
        };
        claims.iter().map(settle).collect()
    }

    /// Notes that this claim goes for the lock. `false` if another claim of this client has it.
    fn begin(&self, claim: &Claim) -> bool {
        let mut holds = self.holds();
        match holds.get_mut(&claim.key) {
            Some(hold) if hold.owner != claim.owner => return false,
            Some(hold) => hold.ttl = claim.ttl,
            None => {
                let hold = Hold { owner: claim.owner, ttl: claim.ttl, home: None };
                holds.insert(claim.key.clone(), hold);
            }
        }
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

/// The name of a key's lock, as an expression.
fn lock_name(key: &Key) -> String {
    native_name(&hex(key.as_str()))
}

pub(super) fn whole_seconds(ttl: Duration) -> u64 {
    ttl.as_millis().div_ceil(1000).try_into().unwrap_or(NO_LOCKS)
}

/// The server's own default: eight hours.
pub(super) const NO_LOCKS: u64 = 28800;
