//! `mode=row`: a row lock of an open transaction is the lock. Each held lock has a connection of
//! its own, because a transaction lets its locks go together; waiters have none.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Taken;
use super::book::ROW_HOME;
use super::lease::{self, Lease};
use super::link::{Answer, Link, Recipe};
use super::literals::hex;
use super::session::{NO_LOCKS, whole_seconds};
use super::state::Seen;
use crate::backend::{Claim, Owner};
use crate::claim::LostReason;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The transactions of one client.
pub(super) struct Rows {
    recipe: Recipe,
    runtime: tokio::runtime::Handle,
    /// The most connections.
    most: usize,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    idle: Vec<Link>,
    holds: HashMap<Key, Hold>,
}

#[derive(Clone)]
struct Hold {
    owner: Owner,
    link: Link,
    /// The connection that has the row lock; none until the server has said so.
    home: Option<Arc<str>>,
}

impl Rows {
    pub(super) fn new(recipe: &Recipe, runtime: tokio::runtime::Handle, most: usize) -> Rows {
        let recipe = Recipe { home: ROW_HOME, ..recipe.clone() };
        Rows { recipe, runtime, most, desk: Mutex::default() }
    }

    /// Locks the row for a claim whose turn it is.
    pub(super) async fn take(
        &self,
        lease: &Lease,
        claim: &Claim,
        token: FencingToken,
    ) -> Result<Taken> {
        let Some(hold) = self.begin(claim)? else { return Ok(Taken::by_sibling()) };
        if self.lives(&hold, claim.ttl).await? {
            return Ok(Taken::Granted(token));
        }
        let (locked, answer) = self.lock(lease, claim, &hold.link).await?;
        let seen = answer.sets.get(2).and_then(|rows| rows.first()).map(Seen::read).transpose()?;
        let mine = seen.filter(|seen| !seen.over && seen.owner == claim.owner.to_string());
        if let Some(token) = mine.as_ref().and_then(|seen| seen.token).filter(|_| locked)
            && self.is_taken(claim, &answer.home)
        {
            // From now on the record ends with the connection that has the row lock. If that fails,
            // or the turn is over meanwhile, the next renewal says what is so.
            let set_home = lease.book.set_home(claim, &answer.home);
            drop(lease.link(&claim.key).ask(set_home, lease::limit(claim.ttl)).await);
            return Ok(Taken::Granted(token));
        }
        self.end(&claim.key, claim.owner, claim.ttl).await;
        Ok(mine.map_or(Taken::NotOurTurn, |seen| Taken::Blocked(seen.held_for)))
    }

    /// Notes which connection has the row lock. `false` if the claim has given it up meanwhile.
    fn is_taken(&self, claim: &Claim, home: &Arc<str>) -> bool {
        let mut desk = self.desk();
        match desk.holds.get_mut(&claim.key).filter(|hold| hold.owner == claim.owner) {
            Some(hold) => hold.home = Some(home.clone()),
            None => return false,
        }
        true
    }

    /// Ends the transaction of a claim, if it has one. The claim has nothing to do with it from the
    /// first moment on, whatever becomes of the request: an end that is not confirmed, or not
    /// waited for, closes the connection, which ends the transaction too.
    pub(super) async fn end(&self, key: &Key, owner: Owner, ttl: Duration) {
        let Some(hold) = self.remove(key, owner) else { return };
        if hold.link.ask_once(end_sql(), lease::limit(ttl)).await.is_ok() {
            self.desk().idle.push(hold.link);
        }
    }

    fn remove(&self, key: &Key, owner: Owner) -> Option<Hold> {
        let mut desk = self.desk();
        desk.holds.get(key).filter(|hold| hold.owner == owner)?;
        desk.holds.remove(key)
    }

    /// Ends the transaction of a claim that is lost, and does not wait for it: its holder has to
    /// know before anybody else can have the row.
    fn let_go(&self, claim: &Claim) {
        if let Some(hold) = self.remove(&claim.key, claim.owner) {
            hold.link.post(end_sql());
            self.desk().idle.push(hold.link);
        }
    }

    /// The connection that a claim's lock hangs on.
    pub(super) fn home(&self, claim: &Claim) -> Option<(Link, Arc<str>)> {
        let desk = self.desk();
        let hold = desk.holds.get(&claim.key).filter(|hold| hold.owner == claim.owner)?;
        Some((hold.link.clone(), hold.home.clone()?))
    }

    pub(super) async fn renew(&self, lease: &Lease, claims: &[Claim]) -> Vec<Result<Duration>> {
        let alive = claims.iter().map(|claim| async {
            let hold = self.desk().holds.get(&claim.key).cloned();
            match hold.filter(|hold| hold.owner == claim.owner) {
                Some(hold) => self.lives(&hold, claim.ttl).await.map(Some),
                None => Ok(None),
            }
        });
        let alive = futures_util::future::join_all(alive).await;
        let renewal = match lease.renew(claims).await {
            Ok(renewal) => renewal,
            Err(error) => return vec![Err(error); claims.len()],
        };
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, alive) in claims.iter().zip(alive) {
            let answer = match alive {
                Ok(Some(true)) => renewal.lease(claim),
                Ok(Some(false)) => Err(Error::gone(LostReason::SessionGone)),
                Ok(None) => Err(lease::lost()),
                Err(doubt) => Err(doubt),
            };
            if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Lost) {
                self.let_go(claim);
                lease.forget(claim.owner);
            }
            answers.push(answer);
        }
        answers
    }

    /// Finds a connection for this claim. `None` if another claim of this client has the key.
    fn begin(&self, claim: &Claim) -> Result<Option<Hold>> {
        let mut desk = self.desk();
        if let Some(hold) = desk.holds.get(&claim.key) {
            return Ok(Some(hold.clone()).filter(|hold| hold.owner == claim.owner));
        }
        let link = match desk.idle.pop() {
            Some(link) => link,
            None if desk.holds.len() < self.most => Link::start(self.recipe.clone(), &self.runtime),
            None => return Err(all_in_use(self.most)),
        };
        let hold = Hold { owner: claim.owner, link, home: None };
        desk.holds.insert(claim.key.clone(), hold.clone());
        Ok(Some(hold))
    }

    /// Whether the connection still is the one that has the row lock. Also keeps it from being idle
    /// for too long.
    async fn lives(&self, hold: &Hold, ttl: Duration) -> Result<bool> {
        let Some(home) = &hold.home else { return Ok(false) };
        let answer = hold.link.ask("DO 1".to_owned(), lease::limit(ttl)).await?;
        Ok(answer.home == *home)
    }

    /// Tries to lock the row, without waiting. It is made first, and committed, if it is not there.
    async fn lock(&self, lease: &Lease, claim: &Claim, link: &Link) -> Result<(bool, Answer)> {
        let (key, idle) = (hex(claim.key.as_str()), whole_seconds(claim.ttl));
        // The record is read after the row is locked: whoever had a later turn and the lock would
        // show in it.
        let look = lease.book.look(std::iter::once(&claim.key));
        let lock = format!(
            "ROLLBACK;SET SESSION wait_timeout={idle};START TRANSACTION;\
             SELECT k FROM tenure_row_lock WHERE k={key} FOR UPDATE SKIP LOCKED;\
             SELECT k FROM tenure_row_lock WHERE k={key};{look}"
        );
        let limit = lease::limit(claim.ttl);
        let mut answer = link.ask(lock.clone(), limit).await?;
        if answer.sets.get(1).is_some_and(Vec::is_empty) {
            let make = format!("ROLLBACK;INSERT IGNORE INTO tenure_row_lock (k) VALUES ({key})");
            answer = link.ask(format!("{make};{lock}"), limit).await?;
        }
        let locked = answer.sets.first().is_some_and(|rows| !rows.is_empty());
        Ok((locked, answer))
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} row locks", self.desk().holds.len())
    }
}

/// Ends a transaction, and lets its connection be idle for longer than a lease.
fn end_sql() -> String {
    format!("COMMIT;SET SESSION wait_timeout={NO_LOCKS}")
}

fn all_in_use(most: usize) -> Error {
    let message = format!(
        "all {most} connections of this client hold a row lock; raise `?connections=`, or use \
         `?mode=lease`"
    );
    Error::new(ErrorKind::Unavailable, message)
}
