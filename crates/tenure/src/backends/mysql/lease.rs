//! The verbs on the tables: take, ask, release, renew, evict, list. In `mode=lease` that is all; in
//! the other modes it decides whose turn it is.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::book::Book;
use super::fault;
use super::link::{Answer, Link};
use super::state::{self, State};
use crate::backend::{Claim, Owner, Scope};
use crate::claim::{Attempt, Busy, Holding};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// The tables, seen by one client.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) book: Book,
    /// Requests about one key go over one link, so that they stay in order.
    links: Vec<Link>,
    /// The name of this client's bell.
    pub(super) bell: String,
    standings: Mutex<HashMap<Owner, Standing>>,
    /// Keys that others waited for a moment ago: there the shorter statements would find nothing.
    crowded: Mutex<HashMap<Key, Instant>>,
}

/// What is known of a claim and saves a statement that would find nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It holds, and others wait.
    Crowded,
    /// It waits, and so many are before it.
    Queued(u32),
}

/// Somebody got the lock, or lost it, by what we did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ring {
    Nobody,
    /// A claim of this client.
    Ourselves,
    /// The client behind this connection.
    Connection(u64),
}

/// What an eviction did.
pub(super) struct Evicted {
    pub(super) owner: Option<Owner>,
    pub(super) rings: Vec<Ring>,
}

impl Lease {
    pub(super) fn new(book: Book, links: Vec<Link>, bell: String) -> Lease {
        Lease { book, links, bell, standings: Mutex::default(), crowded: Mutex::default() }
    }

    /// The link for everything that is not about one key.
    pub(super) fn main(&self) -> &Link {
        &self.links[0]
    }

    pub(super) fn link(&self, key: &Key) -> &Link {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        let links = self.links.len() as u64;
        &self.links[(hasher.finish() % links) as usize]
    }

    /// Whether the short way to a free key is worth a trip.
    pub(super) fn may_be_free(&self, claim: &Claim) -> bool {
        let crowded = claim.waits && self.is_crowded(&claim.key);
        !crowded && self.standing(claim.owner).is_none()
    }

    /// Takes a known key that is free and that nobody waits for, and in the same trip does what
    /// `then` says, where `ROW_COUNT()` is 1 if it was taken. The token, if it was.
    pub(super) async fn take_free(
        &self,
        claim: &Claim,
        then: &str,
    ) -> Result<(Option<FencingToken>, Answer)> {
        let sql = format!("{}{then}", self.book.take_free(claim, &self.bell));
        let answer = self.link(&claim.key).ask(sql, limit(claim.ttl)).await?;
        let token = answer.last_id.filter(|_| answer.affected == 1).and_then(FencingToken::new);
        Ok((token, answer))
    }

    /// Takes the key, or says who has it; with `waits` leaves a place in the queue.
    pub(super) async fn take(&self, claim: &Claim) -> Result<(Attempt<FencingToken>, Ring)> {
        let (link, limit) = (self.link(&claim.key), limit(claim.ttl));
        let mut sql = self.book.take(claim, &self.bell);
        if claim.waits {
            self.standings().entry(claim.owner).or_insert(Standing::Queued(0));
            sql = self.book.ask(claim, &self.bell);
            if self.is_crowded(&claim.key) {
                let behind = self.book.ask_behind(claim, &self.bell);
                let answer = link.ask(behind, limit).await?;
                let state = answer.last().map(State::read).transpose()?;
                if let Some(state) = state.filter(|state| !state.over) {
                    return Ok(self.outcome(claim, state));
                }
            }
        }
        let answer = link.ask(sql, limit).await?;
        Ok(match answer.last() {
            Some(row) => self.outcome(claim, State::read(row)?),
            None => (Attempt::Busy(Busy::new(claim.key.clone())), Ring::Nobody),
        })
    }

    /// Takes down what an ask found.
    fn outcome(&self, claim: &Claim, state: State) -> (Attempt<FencingToken>, Ring) {
        match state.granted(claim) {
            Some(token) => {
                self.is_held(&claim.key, claim.owner, state.queued);
                (Attempt::Granted(token), Ring::Nobody)
            }
            None => {
                let busy = state.busy(claim);
                if let Some(ahead) = busy.ahead {
                    self.standings().insert(claim.owner, Standing::Queued(ahead));
                }
                (Attempt::Busy(busy), self.ring(&state))
            }
        }
    }

    /// Gives back or withdraws, after `before` in the same trip. `true` if it was held until now.
    pub(super) async fn release(&self, claim: &Claim, before: &str) -> Result<(bool, Ring)> {
        let (link, limit) = (self.link(&claim.key), limit(claim.ttl));
        let standing = self.standing(claim.owner);
        if standing.is_none() && !claim.doubtful {
            let alone = self.book.release_alone(claim);
            let answer =
                link.ask_once(format!("{before}{alone};SELECT ROW_COUNT()"), limit).await?;
            if answer.first(0) == Some(1) {
                return Ok((true, Ring::Nobody));
            }
        }
        let sql = format!("{before}{}", self.book.release(claim));
        let answer = link.ask_once(sql, limit).await?;
        self.standings().remove(&claim.owner);
        let was = answer.first::<bool>(0).unwrap_or(false);
        let ring = match answer.last().filter(|_| answer.sets.len() > 1) {
            Some(row) => self.ring(&State::read(row)?),
            None => Ring::Nobody,
        };
        Ok((was, ring))
    }

    /// Extends what is held; says which claims are, in a set of owners, and what the server said.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Result<(HashSet<String>, Answer)> {
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let answer = self.main().ask(self.book.renew(claims), limit(shortest)).await?;
        let rows = answer.sets.last().map(Vec::as_slice).unwrap_or_default();
        let held = rows.iter().map(|row| state::text(row, 1)).collect::<Result<_>>()?;
        Ok((held, answer))
    }

    pub(super) async fn evict(&self, key: &Key, token: FencingToken) -> Result<Option<Evicted>> {
        let answer = self.link(key).ask_once(self.book.evict(key, token), LOOK).await?;
        let [ended, rest @ ..] = &*answer.sets else { return Ok(None) };
        let Some(row) = ended.first() else { return Ok(None) };
        let mut rings = Vec::new();
        if let Some(connection) = state::value::<Option<u64>>(row, 1)? {
            rings.push(Ring::Connection(connection));
        }
        if let Some(row) = rest.last().and_then(|rows| rows.first()) {
            rings.push(self.ring(&State::read(row)?));
        }
        Ok(Some(Evicted { owner: state::text(row, 0)?.parse().ok(), rings }))
    }

    pub(super) async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let answer = self.main().ask(self.book.list(scope), LOOK).await?;
        match &*answer.sets {
            [holders, waiters] => state::holdings(holders, waiters),
            _ => Err(fault::strange("no listing")),
        }
    }

    /// Wakes who got the lock. `true` if that is one of our own claims.
    pub(super) fn wake(&self, ring: &Ring) -> bool {
        if let Ring::Connection(id) = ring {
            // Only the bell that the named lock belongs to was seen under this number. If it has
            // ended meanwhile, there is nothing under it: numbers are not used twice by one server.
            self.main().post(format!("KILL QUERY {id}"));
        }
        *ring == Ring::Ourselves
    }

    fn ring(&self, state: &State) -> Ring {
        match state.wake {
            _ if !state.handed => Ring::Nobody,
            _ if state.bell == self.bell => Ring::Ourselves,
            Some(connection) => Ring::Connection(connection),
            None => Ring::Nobody,
        }
    }

    /// A claim that waited or asked again holds now.
    pub(super) fn is_held(&self, key: &Key, owner: Owner, queued: u64) {
        let mut standings = self.standings();
        if queued == 0 {
            standings.remove(&owner);
            return;
        }
        standings.insert(owner, Standing::Crowded);
        let mut crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        if crowded.len() >= CROWDED_MOST {
            crowded.retain(|_, since| since.elapsed() < CROWDED_FOR);
        }
        crowded.insert(key.clone(), Instant::now());
    }

    /// How many were before a claim when it last asked.
    pub(super) fn ahead(&self, owner: Owner) -> u32 {
        match self.standing(owner) {
            Some(Standing::Queued(ahead)) => ahead,
            Some(Standing::Crowded) | None => 0,
        }
    }

    fn is_crowded(&self, key: &Key) -> bool {
        let crowded = self.crowded.lock().unwrap_or_else(PoisonError::into_inner);
        crowded.get(key).is_some_and(|since| since.elapsed() < CROWDED_FOR)
    }

    /// Nothing more is to be known of a claim.
    pub(super) fn forget(&self, owner: Owner) {
        self.standings().remove(&owner);
    }

    fn standing(&self, owner: Owner) -> Option<Standing> {
        self.standings().get(&owner).copied()
    }

    fn standings(&self) -> MutexGuard<'_, HashMap<Owner, Standing>> {
        self.standings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long a connection may be silent before it is given up. The core gives up waiting sooner; a
/// new connection costs more than a little patience.
pub(super) fn limit(ttl: Duration) -> Duration {
    (ttl / 2).clamp(Duration::from_secs(1), Duration::from_secs(5))
}

/// The server says that a claim is not held. The core knows whether its lease was over.
pub(super) fn lost() -> Error {
    Error::new(ErrorKind::Lost, "mysql has no such lock any more")
}

/// How long a key that others waited for is taken to be one, and how many are remembered.
const CROWDED_FOR: Duration = Duration::from_secs(2);
const CROWDED_MOST: usize = 1000;

/// How long a question for people may take.
pub(super) const LOOK: Duration = Duration::from_secs(5);
