//! One write transaction, and the steps that the verbs are made of. Everything that decides who
//! holds a key happens in here, under SQLite's write lock, on one reading of the clock.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Params};

use super::beacon::{Dead, Session, probe};
use super::bell::{Ring, owner_bytes};
use super::place::Place;
use super::row::{HEAD, Row};
use crate::backend::{Claim, Owner};
use crate::key::Key;
use crate::token::FencingToken;

/// An open transaction. Calls are kept until it is committed: who is rung looks at once.
pub(super) struct Change<'a> {
    pub(super) conn: &'a Connection,
    pub(super) place: &'a Place,
    /// Ours, if we have one: it needs no probe.
    pub(super) session: Option<Session>,
    /// Read after the write lock was ours, so that time does not go back from change to change.
    pub(super) now: i64,
    pub(super) calls: Vec<Call>,
    /// Few of the reserved tokens are left.
    pub(super) low: bool,
}

/// Whom to ring, and why.
pub(super) struct Call {
    pub(super) session: Session,
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) ring: Ring,
}

/// Why a change cannot be made.
#[derive(Debug)]
pub(super) enum Stop {
    /// No reserved token is left: roll back, reserve more, begin again.
    Spent,
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Stop {
        Stop::Sqlite(error)
    }
}

/// What asking for a key came to.
pub(super) enum Taken {
    Granted(FencingToken),
    /// By this holder; and how many wait before us, if we do.
    Busy(Box<Row>, Option<u32>),
}

/// What renewing a claim came to.
pub(super) enum Renewed {
    Kept,
    /// Still in the file, but its lease has ended.
    Expired,
    Gone,
    TakenOver,
}

impl Change<'_> {
    /// Drops whoever has expired or died from the head of the queue, and hands a free key to the
    /// first living waiter. Answers who holds it then.
    ///
    /// Only the head is looked at, so that a long queue costs nothing.
    pub(super) fn settle(&mut self, key: &Key) -> Result<Option<Row>, Stop> {
        loop {
            let head = self.row(HEAD, [key.as_str()])?;
            let Some(mut head) = head else { return Ok(None) };
            if head.expires <= self.now {
                self.run(DROP_PLACE, (key.as_str(), head.place))?;
            } else if head.place == 0 {
                return Ok(Some(head));
            } else if self.dead(head.session).is_some() {
                self.run(DROP_SESSION_OF_KEY, (key.as_str(), head.session.0))?;
            } else {
                self.offer(key, &mut head)?;
                return Ok(Some(head));
            }
        }
    }

    /// Hands the key to a waiter, for a short time until its next ask confirms it: one that was
    /// stopped then costs the others an offer, not a lease.
    fn offer(&mut self, key: &Key, waiter: &mut Row) -> Result<(), Stop> {
        let token = self.token()?;
        let until = self.end_of(waiter.ttl.min(OFFER_MS));
        let change = (key.as_str(), waiter.place, token.as_i64(), self.now, until);
        self.run(PROMOTE, change)?;
        self.call(key, waiter, Ring::Offered);
        waiter.place = 0;
        waiter.token = Some(token);
        (waiter.since, waiter.expires) = (self.now, until);
        Ok(())
    }

    fn call(&mut self, key: &Key, row: &Row, ring: Ring) {
        let (session, owner) = (row.session, row.owner);
        self.calls.push(Call { session, key: key.clone(), owner, ring });
    }

    /// Lets an offer last until its waiter has looked by itself, because it cannot be rung.
    pub(super) fn prolong(&mut self, key: &Key, owner: Owner) -> Result<(), Stop> {
        let until = self.end_of(0);
        self.run(PROLONG, (key.as_str(), &owner_bytes(owner)[..], until, UNHEARD_MS))?;
        Ok(())
    }

    /// Takes the key if it is free or already ours; else a place in the queue, if the claim waits.
    pub(super) fn take(&mut self, claim: &Claim, session: Session) -> Result<Taken, Stop> {
        let (key, ttl) = (claim.key.as_str(), millis(claim.ttl));
        match self.settle(&claim.key)? {
            None => {
                let token = self.token()?;
                self.insert(claim, session, 0, Some(token))?;
                Ok(Taken::Granted(token))
            }
            Some(Row { owner, token: Some(token), .. }) if owner == claim.owner => {
                self.run(CONFIRM, (key, ttl, self.end_of(ttl)))?;
                Ok(Taken::Granted(token))
            }
            Some(holder) if claim.waits => {
                let ahead = self.queue_up(claim, session)?;
                Ok(Taken::Busy(Box::new(holder), Some(ahead)))
            }
            Some(holder) => Ok(Taken::Busy(Box::new(holder), None)),
        }
    }

    /// Takes or refreshes a place in the queue and says how many are before it.
    fn queue_up(&mut self, claim: &Claim, session: Session) -> Result<u32, Stop> {
        let (key, ttl) = (claim.key.as_str(), millis(claim.ttl));
        let owner = owner_bytes(claim.owner);
        let mine = self
            .conn
            .prepare_cached(REFRESH)?
            .query_row((key, &owner[..], ttl, self.end_of(ttl), self.now), |row| row.get(0));
        let place = match mine.optional()? {
            Some(place) => place,
            None => {
                // Ours too, if it has expired: who did not ask in time has lost his place.
                self.run(DROP_EXPIRED, (key, self.now))?;
                let last: i64 =
                    self.conn.prepare_cached(LAST)?.query_row([key], |row| row.get(0))?;
                self.insert(claim, session, last + 1, None)?;
                last + 1
            }
        };
        Ok(ahead(self.conn, key, place, self.now)?)
    }

    fn insert(
        &mut self,
        claim: &Claim,
        session: Session,
        place: i64,
        token: Option<FencingToken>,
    ) -> Result<(), Stop> {
        let ttl = millis(claim.ttl);
        self.run(
            INSERT,
            rusqlite::params![
                claim.key.as_str(),
                place,
                &owner_bytes(claim.owner)[..],
                token.map(FencingToken::as_i64),
                ttl,
                self.end_of(ttl),
                self.now,
                session.0,
                std::process::id(),
                claim.note.encode(),
            ],
        )?;
        Ok(())
    }

    /// Extends the grant that a claim names, and never creates anything.
    pub(super) fn renew(&mut self, claim: &Claim) -> Result<Renewed, Stop> {
        let (key, ttl) = (claim.key.as_str(), millis(claim.ttl));
        let owner = owner_bytes(claim.owner);
        let token = claim.token.map(FencingToken::as_i64);
        if self.run(RENEW, (key, &owner[..], ttl, self.end_of(ttl), self.now, token))? > 0 {
            return Ok(Renewed::Kept);
        }
        // A later grant of the same owner, as after an eviction, is not the one that was named.
        let named = |head: &Row| claim.token.is_none() || claim.token == head.token;
        Ok(match self.row(HEAD, [key])? {
            Some(head) if head.place == 0 && head.owner == claim.owner && named(&head) => {
                Renewed::Expired
            }
            Some(head) if head.place == 0 && head.owner == claim.owner => Renewed::Gone,
            Some(head) if head.place == 0 && head.expires > self.now => Renewed::TakenOver,
            _ => Renewed::Gone,
        })
    }

    /// Leaves no trace of (key, owner). `true` if it held the key until now.
    pub(super) fn release(&mut self, key: &Key, owner: Owner) -> Result<bool, Stop> {
        let bytes = owner_bytes(owner);
        let mut drop_holder = self.conn.prepare_cached(DROP_HOLDER)?;
        let held: Option<i64> =
            drop_holder.query_row((key.as_str(), &bytes[..]), |row| row.get(0)).optional()?;
        let Some(expires) = held else {
            self.run(DROP_OWNER, (key.as_str(), &bytes[..]))?;
            return Ok(false);
        };
        self.settle(key)?;
        Ok(expires > self.now)
    }

    /// Force-releases exactly this grant. Its holder is rung, too.
    pub(super) fn evict(&mut self, key: &Key, token: FencingToken) -> Result<bool, Stop> {
        let head = self.row(HEAD, [key.as_str()])?;
        let Some(head) = head.filter(|head| head.token == Some(token)) else { return Ok(false) };
        self.run(DROP_PLACE, (key.as_str(), head.place))?;
        self.call(key, &head, Ring::Evicted);
        self.settle(key)?;
        Ok(head.expires > self.now)
    }

    /// Drops everything of a session and hands on what others wait for: a waiter who is not told
    /// would find out at his next look.
    pub(super) fn forget(&mut self, session: Session) -> Result<(), Stop> {
        let keys: Vec<String> = self
            .conn
            .prepare_cached(AWAITED)?
            .query_map([session.0], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        self.run(DROP_SESSION, [session.0])?;
        for key in keys.iter().filter_map(|key| Key::new(key).ok()) {
            self.settle(&key)?;
        }
        Ok(())
    }

    /// When a lease or queue entry of so many milliseconds ends that begins now.
    ///
    /// `now` has its part of a millisecond cut off, and the holder counts in nanoseconds: without
    /// one more, the store would let the next one in before the holder has stopped to believe.
    fn end_of(&self, ttl: i64) -> i64 {
        self.now + 1 + ttl
    }

    /// The next token. Never beyond what was reserved by a synced commit.
    fn token(&mut self) -> Result<FencingToken, Stop> {
        let mut next = self.conn.prepare_cached(NEXT_TOKEN)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (token, reserved) = next.query_row([], read).optional()?.ok_or(Stop::Spent)?;
        self.low |= reserved - token < LOW;
        u64::try_from(token).ok().and_then(FencingToken::new).ok_or(Stop::Spent)
    }

    fn dead(&self, session: Session) -> Option<Dead> {
        if self.session == Some(session) { None } else { probe(self.place, session) }
    }

    fn row(&self, sql: &str, params: impl Params) -> rusqlite::Result<Option<Row>> {
        self.conn.prepare_cached(sql)?.query_row(params, Row::read).optional()
    }

    fn run(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.conn.prepare_cached(sql)?.execute(params)
    }
}

/// How many living waiters are before a place.
pub(super) fn ahead(conn: &Connection, key: &str, place: i64, now: i64) -> rusqlite::Result<u32> {
    conn.prepare_cached(AHEAD)?.query_row((key, place, now), |row| row.get(0))
}

/// In whole milliseconds, never less than was asked for: the core counts the lease itself.
pub(super) fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX / 4).max(1)
}

/// For how long a key is offered to a waiter.
const OFFER_MS: i64 = 1000;

/// And to one that cannot be rung: longer than the longest time between two looks (`wait`).
const UNHEARD_MS: i64 = 4000;

/// With fewer reserved tokens left, more are reserved when nobody waits for an answer.
const LOW: i64 = 256;

const AHEAD: &str =
    "SELECT count(*) FROM claim WHERE key = ?1 AND place > 0 AND place < ?2 AND expires > ?3";
const AWAITED: &str = "
SELECT key FROM claim AS held WHERE session = ?1 AND place = 0
AND EXISTS (SELECT 1 FROM claim WHERE key = held.key AND place > 0)";
// A request that comes late, or asks for less, shortens nothing: hence the `max` in here and below.
const CONFIRM: &str = "
UPDATE claim SET ttl = max(ttl, ?2), expires = max(expires, ?3) WHERE key = ?1 AND place = 0";
const DROP_EXPIRED: &str = "DELETE FROM claim WHERE key = ?1 AND place > 0 AND expires <= ?2";
const DROP_HOLDER: &str =
    "DELETE FROM claim WHERE key = ?1 AND place = 0 AND owner = ?2 RETURNING expires";
const DROP_OWNER: &str = "DELETE FROM claim WHERE key = ?1 AND owner = ?2";
const DROP_PLACE: &str = "DELETE FROM claim WHERE key = ?1 AND place = ?2";
const DROP_SESSION: &str = "DELETE FROM claim WHERE session = ?1";
const DROP_SESSION_OF_KEY: &str = "DELETE FROM claim WHERE key = ?1 AND session = ?2";
const INSERT: &str = "
INSERT INTO claim (key, place, owner, token, ttl, expires, since, session, pid, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const LAST: &str = "SELECT coalesce(max(place), 0) FROM claim WHERE key = ?1";
const NEXT_TOKEN: &str =
    "UPDATE meta SET next = next + 1 WHERE next < reserved RETURNING next, reserved";
const PROLONG: &str = "
UPDATE claim SET expires = max(expires, ?3 + min(ttl, ?4))
WHERE key = ?1 AND place = 0 AND owner = ?2";
const PROMOTE: &str = "
UPDATE claim SET place = 0, token = ?3, since = ?4, expires = ?5 WHERE key = ?1 AND place = ?2";
const REFRESH: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND owner = ?2 AND place > 0 AND expires > ?5 RETURNING place";
const RENEW: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND place = 0 AND owner = ?2 AND expires > ?5 AND (?6 IS NULL OR token = ?6)";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_shorter_than_was_asked_for() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_nanos(50_000_001)), 51);
        assert_eq!(millis(Duration::from_micros(50_001)), 51);
        assert_eq!(millis(Duration::ZERO), 1);
        assert!(millis(Duration::MAX).checked_add(millis(Duration::MAX)).is_some());
    }
}
