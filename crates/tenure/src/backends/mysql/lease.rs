//! The verbs on the tables: take, ask, release, renew, evict, list. In `mode=lease` that is all; in
//! the other modes it decides whose turn it is.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::bell;
use super::book::{Asker, Book, HOME};
use super::fault;
use super::link::Link;
use super::options::Kind;
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
    /// For what never waits for a row: renewals, looks, named locks. In the other modes all records
    /// of this client end with its connection.
    main: Link,
    /// Requests about one key go over one link, so that they stay in order. One that waits for its
    /// row holds up others there, and no renewal.
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
    /// It waits.
    Queued {
        /// So many are before it.
        ahead: u32,
        /// The highest token that it was shown with another owner, or with none.
        shown: u64,
    },
}

/// Somebody got the lock, or lost it, by what we did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ring {
    Nobody,
    /// A claim of this client.
    Ourselves,
    /// The client that has this bell.
    Bell(String),
}

/// What became of a renewal.
pub(super) struct Renewal {
    /// The claims that are held.
    held: HashMap<String, Extended>,
    /// The connection that carried it out.
    home: Arc<str>,
}

struct Extended {
    /// Whether the lease is as long as was asked for; else its row is locked.
    whole: bool,
    /// The connection that said so.
    home: Arc<str>,
}

impl Renewal {
    /// The lease of a claim, or why it has none.
    pub(super) fn lease(&self, claim: &Claim) -> Result<Duration> {
        match self.held.get(&claim.owner.to_string()) {
            Some(Extended { whole: true, .. }) => Ok(claim.ttl),
            Some(_) => Err(fault::row_is_locked()),
            None => Err(lost()),
        }
    }

    /// The connection that answered for a claim.
    pub(super) fn home(&self, claim: &Claim) -> &Arc<str> {
        self.held.get(&claim.owner.to_string()).map_or(&self.home, |extended| &extended.home)
    }

    fn is_locked(&self, claim: &Claim) -> bool {
        self.held.get(&claim.owner.to_string()).is_some_and(|extended| !extended.whole)
    }

    /// Takes down what became of some of the claims, asked once more.
    fn correct(&mut self, claims: &[Claim], again: Renewal) {
        for claim in claims {
            self.held.remove(&claim.owner.to_string());
        }
        self.held.extend(again.held);
    }
}

/// What an eviction did.
pub(super) struct Evicted {
    pub(super) owner: Option<Owner>,
    pub(super) rings: Vec<Ring>,
}

impl Lease {
    /// `links` is not empty.
    pub(super) fn new(book: Book, main: Link, links: Vec<Link>, bell: String) -> Lease {
        let (standings, crowded) = (Mutex::default(), Mutex::default());
        Lease { book, main, links, bell, standings, crowded }
    }

    /// The link for everything that waits for no row.
    pub(super) fn main(&self) -> &Link {
        &self.main
    }

    /// The link for requests about one key.
    pub(super) fn link(&self, key: &Key) -> &Link {
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        &self.links[(hasher.finish() % self.links.len() as u64) as usize]
    }

    /// The link for what may take its time.
    pub(super) fn patient(&self) -> &Link {
        &self.links[self.links.len() - 1]
    }

    /// The connection that records of this client end with, as an expression.
    async fn home(&self, limit: Duration) -> Result<String> {
        if self.book.kind == Kind::Lease {
            return Ok(HOME.to_owned());
        }
        let home = match self.main.home() {
            Some(home) => home,
            None => self.main.ask("DO 1".to_owned(), limit).await?.home,
        };
        Ok(format!("'{home}'"))
    }

    /// Whether the short way to a free key is worth a trip.
    pub(super) fn may_be_free(&self, claim: &Claim) -> bool {
        let crowded = claim.waits && self.is_crowded(&claim.key);
        !crowded && self.standing(claim.owner).is_none()
    }

    /// Takes a known key that is free and that nobody waits for. The token, if it was.
    pub(super) async fn take_free(&self, claim: &Claim) -> Result<Option<FencingToken>> {
        let limit = limit(claim.ttl);
        let by = &Asker { bell: &self.bell, home: &self.home(limit).await? };
        let answer = self.link(&claim.key).ask(self.book.take_free(claim, by), limit).await?;
        Ok(answer.last_id.filter(|_| answer.affected == 1).and_then(FencingToken::new))
    }

    /// Takes the key, or says who has it; with `waits` leaves a place in the queue.
    pub(super) async fn take(&self, claim: &Claim) -> Result<(Attempt<FencingToken>, Ring)> {
        let (link, limit) = (self.link(&claim.key), limit(claim.ttl));
        let by = &Asker { bell: &self.bell, home: &self.home(limit).await? };
        let mut sql = self.book.take(claim, by);
        if claim.waits {
            self.standings().entry(claim.owner).or_insert(Standing::Queued { ahead: 0, shown: 0 });
            sql = self.book.ask(claim, by);
            if self.is_crowded(&claim.key) {
                let behind = self.book.ask_behind(claim, by);
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
                    self.is_queued(claim.owner, ahead, state.token);
                }
                (Attempt::Busy(busy), self.ring(&state))
            }
        }
    }

    /// Gives back or withdraws. `true` if it was held until now.
    pub(super) async fn release(&self, claim: &Claim) -> Result<(bool, Ring)> {
        let (link, limit) = (self.link(&claim.key), limit(claim.ttl));
        // Before anything can fail: what is known only saves a statement.
        let standing = self.standings().remove(&claim.owner);
        if standing.is_none() && !claim.doubtful {
            let sql = format!("{};SELECT ROW_COUNT()", self.book.release_alone(claim));
            let answer = link.ask_once(sql, limit).await?;
            if answer.first(0) == Some(1) {
                return Ok((true, Ring::Nobody));
            }
        }
        let answer = link.ask_once(self.book.release(claim), limit).await?;
        let was = answer.first::<bool>(0).unwrap_or(false);
        let ring = match answer.last().filter(|_| answer.sets.len() > 1) {
            Some(row) => self.ring(&State::read(row)?),
            None => Ring::Nobody,
        };
        Ok((was, ring))
    }

    /// Extends what is held. Rows that others have locked are tried again for a little: a lock of
    /// tenure's own lasts some milliseconds. Nobody has to wait for longer than that for them.
    pub(super) async fn renew(&self, claims: &[Claim]) -> Result<Renewal> {
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
        let end = Instant::now() + (shortest / 8).min(LOCKED_MOST);
        let mut pause = LOCKED_FIRST;
        let mut renewal = self.renew_once(claims, shortest).await?;
        loop {
            let locked = claims.iter().filter(|claim| renewal.is_locked(claim));
            let locked: Vec<_> = locked.cloned().collect();
            if locked.is_empty() || Instant::now() + pause > end {
                return Ok(renewal);
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
            match self.renew_once(&locked, shortest).await {
                Ok(again) => renewal.correct(&locked, again),
                // The others have their answer.
                Err(_unavailable) => return Ok(renewal),
            }
        }
    }

    async fn renew_once(&self, claims: &[Claim], shortest: Duration) -> Result<Renewal> {
        let answer = self.main().ask(self.book.renew(claims), limit(shortest)).await?;
        let rows = answer.sets.last().map(Vec::as_slice).unwrap_or_default();
        let extended = |row| {
            let (whole, home) = (state::value(row, 2)?, answer.home.clone());
            Ok((state::text(row, 1)?, Extended { whole, home }))
        };
        let held = rows.iter().map(extended).collect::<Result<_>>()?;
        Ok(Renewal { held, home: answer.home.clone() })
    }

    pub(super) async fn evict(&self, key: &Key, token: FencingToken) -> Result<Option<Evicted>> {
        let answer = self.link(key).ask_once(self.book.evict(key, token), LOOK).await?;
        let [ended, rest @ ..] = &*answer.sets else { return Ok(None) };
        let Some(row) = ended.first() else { return Ok(None) };
        let mut rings = Vec::new();
        if state::value::<Option<u64>>(row, 1)?.is_some() {
            rings.push(Ring::Bell(state::text(row, 2)?));
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
        if let Ring::Bell(name) = ring {
            self.main().post(bell::wake_sql(&bell::lock_name(name)));
        }
        *ring == Ring::Ourselves
    }

    fn ring(&self, state: &State) -> Ring {
        match state.wake {
            _ if !state.handed => Ring::Nobody,
            _ if state.bell == self.bell => Ring::Ourselves,
            Some(_connection) => Ring::Bell(state.bell.clone()),
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

    /// A claim waits behind so many, and was shown this token.
    pub(super) fn is_queued(&self, owner: Owner, ahead: u32, token: u64) {
        let shown = token.max(self.shown(owner));
        self.standings().insert(owner, Standing::Queued { ahead, shown });
    }

    /// How many were before a claim when it last asked.
    pub(super) fn ahead(&self, owner: Owner) -> u32 {
        match self.standing(owner) {
            Some(Standing::Queued { ahead, .. }) => ahead,
            Some(Standing::Crowded) | None => 0,
        }
    }

    /// The highest token that a claim was shown while it waited: its own grant has a higher one.
    pub(super) fn shown(&self, owner: Owner) -> u64 {
        match self.standing(owner) {
            Some(Standing::Queued { shown, .. }) => shown,
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

/// The first pause before a row that others have locked is tried again, and how long it is tried.
const LOCKED_FIRST: Duration = Duration::from_millis(2);
const LOCKED_MOST: Duration = Duration::from_secs(1);

/// How long a question for people may take.
pub(super) const LOOK: Duration = Duration::from_secs(5);
