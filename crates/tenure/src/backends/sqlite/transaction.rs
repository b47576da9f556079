//! One write transaction: the steps that acquire, renew, release and evict share.
//!
//! **State.** The table `claim` has one row for the holder of a key (position 0, with the token)
//! and one for each waiter (positions 1, 2, … in the order in which they came). Each row has the
//! time at which its lease or queue entry expires, and the session that wrote it. Several holders
//! of a key are in a table of their own (see `holders`).
//!
//! **Who may change it.** Any process that has the file open, but only in a transaction that
//! begins with `BEGIN IMMEDIATE`: SQLite gives its write lock to one connection at a time. The
//! clock is read after the write lock was obtained, so that time does not go back from one
//! transaction to the next.
//!
//! **Invariant.** After a transaction that removed a holder or a waiter, or made a holder shared,
//! the key has no rows, or its first waiter that has not expired or died does not fit beside the
//! holders. [`WriteTransaction::settle`] establishes it, in the same transaction as the removal: no
//! process can see a key with room for its first waiter and overtake it, and a run of readers is
//! granted by one commit.
//!
//! **Handoff.** A waiter gets the key as an *offer* of at most [`OFFER_MS`], which its next
//! request turns into a lease. A waiter that was stopped (SIGSTOP) thus delays the others by the
//! length of an offer, not by that of a lease. Of several holders an offer that is not confirmed
//! ends alone.
//!
//! **Wake-ups** are collected and sent after the commit: a waiter that is woken reads the file at
//! once, and would otherwise not see the change.

use rusqlite::{Connection, OptionalExtension, Params};

use super::holders::fits;
use super::layout::row::{self, ClaimRow};
use super::layout::schema::TOKEN_BLOCK;
use super::liveness::{DeadSession, Session};
use super::store_path::StorePath;
use super::wake_socket::{WakeReason, owner_bytes};
use crate::backend::{Mode, Owner};
use crate::key::Key;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// How long a key is offered to a waiter.
const OFFER_MS: i64 = 1000;
/// How long it is offered to a waiter that could not be woken: longer than the longest time between
/// two polls of a waiter (see `wait`).
const UNSENT_OFFER_MS: i64 = 4000;
/// With fewer reserved tokens left, more are reserved as soon as no request waits.
const FEW_TOKENS: i64 = TOKEN_BLOCK / 4;

/// How many waiters one transaction adds to the holders of a key: more would keep other processes
/// from the write lock for too long. Each of them confirms its offer, and that request lets in the
/// next.
const LONGEST_RUN: usize = 255;

/// The keys of a session where its end may let waiters in, or leave a marker without holders.
const KEYS_OF_SESSION: &str = "
SELECT key FROM claim AS own WHERE session = ?1
AND EXISTS (SELECT 1 FROM claim WHERE key = own.key AND place != own.place)
UNION SELECT key FROM holder WHERE session = ?1";
const DELETE_ROW: &str = "DELETE FROM claim WHERE key = ?1 AND place = ?2";
const DELETE_SESSION: &str = "DELETE FROM claim WHERE session = ?1";
const DELETE_HOLDERS_OF_SESSION: &str = "DELETE FROM holder WHERE session = ?1";
const DELETE_WAITERS_OF_SESSION: &str =
    "DELETE FROM claim WHERE key = ?1 AND session = ?2 AND place > 0";
const EXTEND_OFFER: &str = "
UPDATE claim SET expires = max(expires, ?3 + min(ttl, ?4))
WHERE key = ?1 AND place = 0 AND owner = ?2";
const NEXT_TOKENS: &str = "
UPDATE meta SET next = next + ?1 WHERE next + ?1 <= reserved
RETURNING next - ?1 + 1, reserved - next";
const PROMOTE: &str = "
UPDATE claim SET place = 0, token = ?3, since = ?4, expires = ?5, tokens = ?6
WHERE key = ?1 AND place = ?2";

/// An open write transaction.
pub(super) struct WriteTransaction<'a> {
    pub(super) connection: &'a Connection,
    pub(super) path: &'a StorePath,
    /// The session of this client, if it has one. It is not probed: it lives.
    pub(super) session: Option<Session>,
    /// Milliseconds of the boot clock, read after the write lock was obtained.
    pub(super) now: i64,
    /// To be sent after the commit.
    pub(super) wake_ups: Vec<WakeUp>,
    /// Few of the reserved tokens are left.
    pub(super) few_tokens: bool,
}

/// A message to the owner of a claim, which may be in another process.
pub(super) struct WakeUp {
    pub(super) session: Session,
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) reason: WakeReason,
}

/// A key as a transaction has settled it.
#[derive(Default)]
pub(super) struct Settled {
    /// Those whose leases have not ended, the oldest first; none if the key is free.
    pub(super) holders: Vec<ClaimRow>,
    /// Whether there may be a waiter that does not fit beside them. Not read for an exclusive
    /// holder, beside which nothing fits.
    pub(super) queued: bool,
    /// End and ttl of the marker, if there is one.
    pub(super) marker: Option<(i64, i64)>,
}

/// Why a transaction is rolled back.
#[derive(Debug)]
pub(super) enum Abort {
    /// No reserved token is left: reserve more, and begin again.
    NoTokenLeft,
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Abort {
    fn from(error: rusqlite::Error) -> Abort {
        Abort::Sqlite(error)
    }
}

impl WriteTransaction<'_> {
    /// Deletes holders that have expired, and waiters at the head of the queue that have expired or
    /// died; lets in the first of the others for as long as they fit.
    ///
    /// A holder that died is not noticed here, only one whose lease has expired: most holders live,
    /// and `acquire` probes them without the write lock. A waiter at the head is probed if it could
    /// keep others out that fit.
    ///
    /// Only the head of the queue is read, so that a long queue costs nothing. A key with one
    /// exclusive holder costs one statement.
    pub(super) fn settle(&mut self, key: &Key) -> Result<Settled, Abort> {
        let mut state = self.settle_holders(key)?;
        let shares = state.holders.first().is_some_and(|first| first.mode != Mode::Exclusive);
        if shares {
            self.let_in(key, &mut state)?;
            self.set_marker_end(key, &state)?;
        }
        Ok(state)
    }

    /// The holders of a key whose leases have not ended. If there are none, the first waiter
    /// becomes one.
    fn settle_holders(&mut self, key: &Key) -> Result<Settled, Abort> {
        loop {
            let Some(mut head) = self.head(key)? else { return Ok(Settled::default()) };
            if head.is_marker() {
                let holders = self.living_holders(key)?;
                if !holders.is_empty() {
                    let marker = Some((head.expires, head.ttl));
                    return Ok(Settled { holders, marker, queued: false });
                }
                self.delete(key, &head)?;
            } else if head.expires <= self.now {
                self.delete(key, &head)?;
            } else if head.is_holder() {
                return Ok(Settled { holders: vec![head], ..Settled::default() });
            } else if self.is_dead(head.session) {
                self.execute(DELETE_WAITERS_OF_SESSION, (key.as_str(), head.session.0))?;
            } else {
                self.offer(key, &mut head)?;
                return Ok(Settled { holders: vec![head], ..Settled::default() });
            }
        }
    }

    /// Makes waiters of the head of the queue holders beside others, for as long as they fit.
    fn let_in(&mut self, key: &Key, state: &mut Settled) -> Result<(), Abort> {
        let mut run = 0;
        while let Some(mut waiter) = row::first_waiter(self.connection, key)? {
            if waiter.expires <= self.now {
                self.delete(key, &waiter)?;
            } else if self.is_dead(waiter.session) {
                self.execute(DELETE_WAITERS_OF_SESSION, (key.as_str(), waiter.session.0))?;
            } else if run == LONGEST_RUN || !fits(&state.holders, waiter.mode) {
                state.queued = true;
                return Ok(());
            } else {
                self.make_room(key, state)?;
                let position = waiter.position;
                self.grant_offer(&mut waiter)?;
                self.move_waiter(key, position, &waiter)?;
                self.wake(key, &waiter, WakeReason::Offered);
                state.holders.push(waiter);
                run += 1;
            }
        }
        Ok(())
    }

    /// Makes a waiter the holder, for the short time of an offer.
    fn offer(&mut self, key: &Key, waiter: &mut ClaimRow) -> Result<(), Abort> {
        let position = waiter.position;
        let token = self.grant_offer(waiter)?;
        let change = (key.as_str(), position, token, waiter.since, waiter.expires, waiter.tokens);
        self.execute(PROMOTE, change)?;
        self.wake(key, waiter, WakeReason::Offered);
        Ok(())
    }

    /// Makes the row of a waiter one of a holder, with a token and the end of an offer.
    fn grant_offer(&mut self, waiter: &mut ClaimRow) -> Result<i64, Abort> {
        let (token, tokens) = self.next_token(waiter.mode)?;
        waiter.position = 0;
        (waiter.token, waiter.tokens) = (Some(token), tokens);
        waiter.since = self.now;
        waiter.expires = self.end_of(waiter.ttl.min(OFFER_MS));
        Ok(token.as_i64())
    }

    /// Sends a wake-up to the owner of a row after the commit.
    pub(super) fn wake(&mut self, key: &Key, row: &ClaimRow, reason: WakeReason) {
        let (session, owner, mode) = (row.session, row.owner, row.mode);
        self.wake_ups.push(WakeUp { session, key: key.clone(), owner, mode, reason });
    }

    /// Extends an offer until its waiter has polled, because it could not be woken.
    pub(super) fn extend_offer(&mut self, key: &Key, owner: Owner) -> Result<(), Abort> {
        let bytes = owner_bytes(owner);
        let change = (key.as_str(), &bytes[..], self.end_of(0), UNSENT_OFFER_MS);
        if self.execute(EXTEND_OFFER, change)? == 0 {
            self.extend_offer_of_several(key, owner, UNSENT_OFFER_MS)?;
        }
        Ok(())
    }

    /// Deletes all rows of a session that ended, and hands its keys off: a waiter that is not told
    /// would find out at its next poll.
    pub(super) fn delete_session(&mut self, session: Session) -> Result<(), Abort> {
        let keys: Vec<String> = self
            .connection
            .prepare_cached(KEYS_OF_SESSION)?
            .query_map([session.0], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        self.execute(DELETE_SESSION, [session.0])?;
        self.execute(DELETE_HOLDERS_OF_SESSION, [session.0])?;
        for key in keys.iter().filter_map(|key| Key::new(key).ok()) {
            self.settle(&key)?;
        }
        Ok(())
    }

    /// The holder of a key, or the marker of several; if there is none, its first waiter.
    pub(super) fn head(&self, key: &Key) -> Result<Option<ClaimRow>, Abort> {
        Ok(row::head(self.connection, key)?)
    }

    pub(super) fn delete(&self, key: &Key, row: &ClaimRow) -> Result<(), Abort> {
        self.execute(DELETE_ROW, (key.as_str(), row.position))?;
        Ok(())
    }

    /// When a lease or queue entry of so many milliseconds ends that begins now.
    ///
    /// `now` is rounded down, and the holder counts in nanoseconds: without one millisecond more,
    /// the store would grant the key to the next owner before the holder's own deadline.
    pub(super) fn end_of(&self, ttl: i64) -> i64 {
        self.now + 1 + ttl
    }

    /// The token of the next grant, and how many from it on are the grant's. Never above what was
    /// reserved by a synced commit: an unsynced token may be forgotten in a power cut, and must not
    /// be granted twice.
    pub(super) fn next_token(&mut self, mode: Mode) -> Result<(FencingToken, u32), Abort> {
        // Only an exclusive holder can hand its lock on inside itself.
        let tokens = if mode == Mode::Exclusive { TOKENS_PER_GRANT } else { 1 };
        let mut next = self.connection.prepare_cached(NEXT_TOKENS)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (token, left) = next.query_row([tokens], read).optional()?.ok_or(Abort::NoTokenLeft)?;
        self.few_tokens |= left < FEW_TOKENS;
        let token = u64::try_from(token).ok().and_then(FencingToken::new);
        Ok((token.ok_or(Abort::NoTokenLeft)?, tokens))
    }

    fn is_dead(&self, session: Session) -> bool {
        self.session != Some(session) && DeadSession::probe(self.path, session).is_some()
    }

    /// Executes a statement and returns how many rows it changed.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql)?.execute(params)
    }
}
