//! The verbs of the seam, on the open store.

use std::collections::HashMap;
use std::time::Duration;

use rusqlite::OptionalExtension;

use super::beacon::Session;
use super::bell::owner_bytes;
use super::change::{Renewed, Taken, ahead, millis};
use super::fault;
use super::row::{HEAD, MINE, OF_KEY, OF_PREFIX, Row};
use super::schema::{LONGEST, be_patient};
use super::store::Store;
use crate::backend::{Claim, Grant, Mode, Owner, Scope};
use crate::claim::{Attempt, Busy, Holding, LostReason};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

impl Store {
    /// Takes a key if it is free or ours; never waits.
    pub(super) fn take(&mut self, claim: &Claim) -> Result<Attempt<Grant>> {
        match claim.mode {
            Mode::Exclusive => {}
        }
        if !self.in_place() {
            return Err(fault::replaced(&self.place));
        }
        let session = self.session()?;
        if let Some(busy) = self.glance(claim)? {
            return Ok(Attempt::Busy(busy));
        }
        let mut burials = 0;
        loop {
            let (holder, ahead) = match self.change(|change| change.take(claim, session))? {
                Taken::Granted(token) => {
                    self.queued.remove(&claim.owner);
                    return Ok(Attempt::Granted(Grant::new(token, claim.ttl)));
                }
                Taken::Busy(holder, ahead) => (holder, ahead),
            };
            // A first look goes straight into a change, which does not notice a dead holder.
            match self.dead(holder.session) {
                Some(dead) if burials < BURIALS => self.bury(dead)?,
                _ => {
                    if ahead.is_some() {
                        self.queued.insert(claim.owner);
                    }
                    return Ok(Attempt::Busy(self.busy(&claim.key, &holder, ahead)));
                }
            }
            burials += 1;
        }
    }

    /// For a claim that is in the queue: the busy answer without the write lock, as long as its
    /// place has most of its lease left and the holder lives.
    fn glance(&mut self, claim: &Claim) -> Result<Option<Busy>> {
        if !self.queued.contains(&claim.owner) {
            return Ok(None);
        }
        let now = self.boot.now_ms();
        let Some(holder) = self.head(&claim.key)? else { return Ok(None) };
        if holder.place != 0 || holder.expires <= now || holder.owner == claim.owner {
            return Ok(None);
        }
        let Some((place, expires)) = self.mine(&claim.key, claim.owner)? else { return Ok(None) };
        let fresh = expires - now > millis(claim.ttl) / 3 * 2;
        if !fresh || self.dead(holder.session).is_some() {
            return Ok(None);
        }
        let ahead = ahead(&self.conn, claim.key.as_str(), place, now);
        let ahead = ahead.map_err(|error| self.fault(error))?;
        Ok(Some(self.busy(&claim.key, &holder, Some(ahead))))
    }

    fn busy(&self, key: &Key, holder: &Row, ahead: Option<u32>) -> Busy {
        let now = self.boot.now_ms();
        let mut busy = Busy::new(key.clone());
        busy.holder = Some(Box::new(holder.holder(now)));
        busy.retry_after = Some(holder.left(now));
        busy.ahead = ahead;
        busy
    }

    /// Extends what is held: many in one transaction, but not so many that others starve.
    pub(super) fn renew(&mut self, claims: &[Claim]) -> Vec<Result<Duration>> {
        if !self.in_place() {
            return claims.iter().map(|_| Err(Error::gone(LostReason::SessionGone))).collect();
        }
        // One call has to leave time for another before the lease ends.
        let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or(LONGEST);
        be_patient((shortest / 4).clamp(HURRY, LONGEST));
        let mut answers = Vec::with_capacity(claims.len());
        for batch in claims.chunks(RENEWALS) {
            let renewed = self.change(|change| {
                batch.iter().map(|claim| change.renew(claim)).collect::<Result<Vec<_>, _>>()
            });
            match renewed {
                Ok(renewed) => {
                    let each = batch.iter().zip(renewed);
                    answers.extend(each.map(|(claim, renewed)| self.renewal(claim, renewed)));
                }
                Err(error) => answers.extend(batch.iter().map(|_| Err(error.clone()))),
            }
        }
        be_patient(LONGEST);
        answers
    }

    fn renewal(&mut self, claim: &Claim, renewed: Renewed) -> Result<Duration> {
        if let Renewed::Kept = renewed {
            return Ok(claim.ttl);
        }
        if self.evicted.remove(&claim.owner) {
            return Err(Error::gone(LostReason::Evicted));
        }
        Err(match renewed {
            Renewed::TakenOver => Error::gone(LostReason::TakenOver),
            Renewed::Expired => Error::gone(LostReason::Expired),
            Renewed::Gone | Renewed::Kept => Error::new(ErrorKind::Lost, "the lock is not held"),
        })
    }

    /// Gives back, withdraws or undoes.
    ///
    /// A doubtful claim needs no more than that: commands run in the order in which they were sent,
    /// so that no earlier request of the claim can arrive after its release.
    pub(super) fn release(&mut self, claim: &Claim) -> Result<bool> {
        self.queued.remove(&claim.owner);
        self.evicted.remove(&claim.owner);
        self.change(|change| change.release(&claim.key, claim.owner))
    }

    pub(super) fn evict(&mut self, key: &Key, token: FencingToken) -> Result<bool> {
        self.change(|change| change.evict(key, token))
    }

    /// Who holds what. The dead are left out, though they are still in the file.
    pub(super) fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let now = self.boot.now_ms();
        let rows = self.rows(scope, now).map_err(|error| self.fault(error))?;
        let mut dead: HashMap<i64, bool> = HashMap::new();
        let mut holdings: Vec<Holding> = Vec::new();
        for (name, row) in rows {
            let Session(id) = row.session;
            let dead = dead.entry(id).or_insert_with(|| self.dead(row.session).is_some());
            match (*dead, row.place, holdings.last_mut()) {
                (true, _, _) => {}
                (false, 0, _) => {
                    // A name that is no key was written by a foreign client.
                    let key = Key::new(name).ok();
                    holdings.extend(key.map(|key| Holding::new(key, row.holder(now))));
                }
                (false, _, Some(held)) if held.key.as_str() == name => {
                    held.waiters.push(row.waiter(now));
                }
                // Nobody who lives holds the key: it is free, and about to be handed over.
                (false, _, _) => {}
            }
        }
        Ok(holdings)
    }

    fn rows(&self, scope: Scope<'_>, now: i64) -> rusqlite::Result<Vec<(String, Row)>> {
        let (sql, name) = match scope {
            Scope::Key(key) => (OF_KEY, key.as_str()),
            Scope::Prefix(prefix) => (OF_PREFIX, prefix),
        };
        let mut rows = self.conn.prepare_cached(sql)?;
        let rows = rows.query_map((name, now), |row| Ok((row.get(9)?, Row::read(row)?)))?;
        rows.collect()
    }

    /// The holder of a key; if there is none, its first waiter.
    pub(super) fn head(&self, key: &Key) -> Result<Option<Row>> {
        let read =
            || self.conn.prepare_cached(HEAD)?.query_row([key.as_str()], Row::read).optional();
        read().map_err(|error| self.fault(error))
    }

    /// The place in the queue of an owner, and until when it is his.
    pub(super) fn mine(&self, key: &Key, owner: Owner) -> Result<Option<(i64, i64)>> {
        let owner = owner_bytes(owner);
        let read = || {
            let mut mine = self.conn.prepare_cached(MINE)?;
            mine.query_row((key.as_str(), &owner[..]), |row| Ok((row.get(0)?, row.get(1)?)))
                .optional()
        };
        read().map_err(|error| self.fault(error))
    }
}

/// Dead holders of one key in a row: after each, the key went to somebody who lived a moment ago.
const BURIALS: u32 = 8;

/// Renewals in one transaction: some milliseconds.
const RENEWALS: usize = 1000;

/// The shortest time that a renewal waits for the file.
const HURRY: Duration = Duration::from_millis(50);
