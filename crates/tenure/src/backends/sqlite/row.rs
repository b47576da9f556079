//! A row of the table, and what people may know of it.

use std::time::Duration;

use rusqlite::types::{FromSqlError, Type};

use super::beacon::Session;
use super::bell::owner_from;
use crate::backend::{Note, Owner};
use crate::claim::{Holder, Waiter};
use crate::token::FencingToken;

/// A holder (place 0) or a waiter.
pub(super) struct Row {
    pub(super) place: i64,
    pub(super) owner: Owner,
    pub(super) token: Option<FencingToken>,
    pub(super) ttl: i64,
    pub(super) expires: i64,
    pub(super) since: i64,
    pub(super) session: Session,
    pub(super) pid: i32,
    note: String,
}

impl Row {
    /// Reads the columns of [`HEAD`].
    pub(super) fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Row> {
        let owner = owner_from(row.get_ref(1)?.as_blob()?).ok_or_else(|| odd(1, Type::Blob))?;
        let token = row.get::<_, Option<i64>>(2)?;
        let token = token.and_then(|token| u64::try_from(token).ok()).and_then(FencingToken::new);
        Ok(Row {
            place: row.get(0)?,
            owner,
            token,
            ttl: row.get(3)?,
            expires: row.get(4)?,
            since: row.get(5)?,
            session: Session(row.get(6)?),
            pid: row.get(7)?,
            note: row.get(8)?,
        })
    }

    pub(super) fn left(&self, now: i64) -> Duration {
        span(self.expires - now)
    }

    pub(super) fn holder(&self, now: i64) -> Holder {
        Holder {
            token: self.token,
            held_for: Some(span(now - self.since)),
            ttl_left: Some(self.left(now)),
            ..Holder::new(&Note::decode(&self.note))
        }
    }

    pub(super) fn waiter(&self, now: i64) -> Waiter {
        let waiting_for = Some(span(now - self.since));
        Waiter { waiting_for, ..Waiter::new(&Note::decode(&self.note)) }
    }
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

fn odd(column: usize, kind: Type) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(FromSqlError::InvalidType))
}

/// The holder of a key; if there is none, its first waiter.
pub(super) const HEAD: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note
FROM claim WHERE key = ?1 ORDER BY place LIMIT 1";
/// Everybody of one key.
pub(super) const OF_KEY: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note, key
FROM claim WHERE key = ?1 AND expires > ?2 ORDER BY key, place";
/// Everybody of the keys that start so. Not `LIKE`: a prefix may hold its wildcards.
pub(super) const OF_PREFIX: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note, key
FROM claim WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1 AND expires > ?2
ORDER BY key, place";
/// Our place in the queue, and until when.
pub(super) const MINE: &str =
    "SELECT place, expires FROM claim WHERE key = ?1 AND owner = ?2 AND place > 0";
