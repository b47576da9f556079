//! One write transaction: the steps that acquire, renew, release and evict share.
//!
//! **State.** The table `claim` has one row for the holder of a key (position 0, with the token)
//! and one for each waiter (positions 1, 2, … in the order in which they came). Each row has the
//! time at which its lease or queue entry expires, and the session that wrote it.
//!
//! **Who may change it.** Any process that has the file open, but only in a transaction that
//! begins with `BEGIN IMMEDIATE`: SQLite gives its write lock to one connection at a time. The
//! clock is read after the write lock was obtained, so that time does not go back from one
//! transaction to the next.
//!
//! **Invariant.** After a transaction that removed a holder, the key has no rows, or its first
//! waiter that has not expired or died is the holder. [`WriteTransaction::settle`] establishes it,
//! in the same transaction as the removal: no process can see a free key with waiters and overtake
//! them.
//!
//! **Handoff.** A waiter gets the key as an *offer* of at most [`OFFER_MS`], which its next
//! request turns into a lease. A waiter that was stopped (SIGSTOP) thus delays the others by the
//! length of an offer, not by that of a lease.
//!
//! **Wake-ups** are collected and sent after the commit: a waiter that is woken reads the file at
//! once, and would otherwise not see the change.

use rusqlite::{Connection, OptionalExtension, Params};

use super::layout::row::{self, ClaimRow};
use super::liveness::{DeadSession, Session};
use super::store_path::StorePath;
use super::wake_socket::{WakeReason, owner_bytes};
use crate::backend::Owner;
use crate::key::Key;
use crate::token::FencingToken;

/// How long a key is offered to a waiter.
const OFFER_MS: i64 = 1000;
/// How long it is offered to a waiter that could not be woken: longer than the longest time between
/// two polls of a waiter (see `wait`).
const UNSENT_OFFER_MS: i64 = 4000;
/// With fewer reserved tokens left, more are reserved as soon as no request waits.
const FEW_TOKENS: i64 = 256;

const AWAITED: &str = "
SELECT key FROM claim AS held WHERE session = ?1 AND place = 0
AND EXISTS (SELECT 1 FROM claim WHERE key = held.key AND place > 0)";
const DELETE_ROW: &str = "DELETE FROM claim WHERE key = ?1 AND place = ?2";
const DELETE_SESSION: &str = "DELETE FROM claim WHERE session = ?1";
const DELETE_SESSION_OF_KEY: &str = "DELETE FROM claim WHERE key = ?1 AND session = ?2";
const EXTEND_OFFER: &str = "
UPDATE claim SET expires = max(expires, ?3 + min(ttl, ?4))
WHERE key = ?1 AND place = 0 AND owner = ?2";
const NEXT_TOKEN: &str =
    "UPDATE meta SET next = next + 1 WHERE next < reserved RETURNING next, reserved";
const PROMOTE: &str = "
UPDATE claim SET place = 0, token = ?3, since = ?4, expires = ?5 WHERE key = ?1 AND place = ?2";

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
    pub(super) reason: WakeReason,
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
    /// Deletes a holder that has expired, and waiters at the head of the queue that have expired or
    /// died; offers a free key to the first of the others. Returns the holder.
    ///
    /// A holder that died is not noticed here, only one whose lease has expired: most holders live,
    /// and `acquire` probes them without the write lock.
    ///
    /// Only the head of the queue is read, so that a long queue costs nothing.
    pub(super) fn settle(&mut self, key: &Key) -> Result<Option<ClaimRow>, Abort> {
        loop {
            let Some(mut head) = self.head(key)? else { return Ok(None) };
            if head.expires <= self.now {
                self.delete(key, &head)?;
            } else if head.is_holder() {
                return Ok(Some(head));
            } else if self.is_dead(head.session) {
                self.execute(DELETE_SESSION_OF_KEY, (key.as_str(), head.session.0))?;
            } else {
                self.offer(key, &mut head)?;
                return Ok(Some(head));
            }
        }
    }

    /// Makes a waiter the holder, for the short time of an offer.
    fn offer(&mut self, key: &Key, waiter: &mut ClaimRow) -> Result<(), Abort> {
        let token = self.next_token()?;
        let until = self.end_of(waiter.ttl.min(OFFER_MS));
        let change = (key.as_str(), waiter.position, token.as_i64(), self.now, until);
        self.execute(PROMOTE, change)?;
        self.wake(key, waiter, WakeReason::Offered);
        waiter.position = 0;
        waiter.token = Some(token);
        waiter.since = self.now;
        waiter.expires = until;
        Ok(())
    }

    /// Sends a wake-up to the owner of a row after the commit.
    pub(super) fn wake(&mut self, key: &Key, row: &ClaimRow, reason: WakeReason) {
        let wake_up = WakeUp { session: row.session, key: key.clone(), owner: row.owner, reason };
        self.wake_ups.push(wake_up);
    }

    /// Extends an offer until its waiter has polled, because it could not be woken.
    pub(super) fn extend_offer(&mut self, key: &Key, owner: Owner) -> Result<(), Abort> {
        let owner = owner_bytes(owner);
        let change = (key.as_str(), &owner[..], self.end_of(0), UNSENT_OFFER_MS);
        self.execute(EXTEND_OFFER, change)?;
        Ok(())
    }

    /// Deletes all rows of a session that ended, and offers its keys to their waiters: a waiter
    /// that is not told would find out at its next poll.
    pub(super) fn delete_session(&mut self, session: Session) -> Result<(), Abort> {
        let keys: Vec<String> = self
            .connection
            .prepare_cached(AWAITED)?
            .query_map([session.0], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        self.execute(DELETE_SESSION, [session.0])?;
        for key in keys.iter().filter_map(|key| Key::new(key).ok()) {
            self.settle(&key)?;
        }
        Ok(())
    }

    /// The holder of a key; if there is none, its first waiter.
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

    /// The next token. Never above what was reserved by a synced commit: an unsynced token may be
    /// forgotten in a power cut, and must not be granted twice.
    pub(super) fn next_token(&mut self) -> Result<FencingToken, Abort> {
        let mut next = self.connection.prepare_cached(NEXT_TOKEN)?;
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (token, reserved) = next.query_row([], read).optional()?.ok_or(Abort::NoTokenLeft)?;
        self.few_tokens |= reserved - token < FEW_TOKENS;
        u64::try_from(token).ok().and_then(FencingToken::new).ok_or(Abort::NoTokenLeft)
    }

    fn is_dead(&self, session: Session) -> bool {
        self.session != Some(session) && DeadSession::probe(self.path, session).is_some()
    }

    /// Executes a statement and returns how many rows it changed.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql)?.execute(params)
    }
}
