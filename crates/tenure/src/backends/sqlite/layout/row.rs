//! A row of the table `claim`, and the statements that read rows.

use std::time::Duration;

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension};

use crate::backend::{Holder, HolderInfo, Owner, Scope, Waiter};
use crate::backends::sqlite::liveness::Session;
use crate::backends::sqlite::wake_socket::{owner_bytes, owner_from};
use crate::key::Key;
use crate::token::FencingToken;

const HEAD: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note
FROM claim WHERE key = ?1 ORDER BY place LIMIT 1";
const OF_KEY: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note, key
FROM claim WHERE key = ?1 AND expires > ?2 ORDER BY key, place";
/// Not `LIKE`: a prefix may contain its wildcards.
const OF_PREFIX: &str = "
SELECT place, owner, token, ttl, expires, since, session, pid, note, key
FROM claim WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1 AND expires > ?2
ORDER BY key, place";
const QUEUE_ENTRY: &str =
    "SELECT place, expires FROM claim WHERE key = ?1 AND owner = ?2 AND place > 0";
const AHEAD: &str =
    "SELECT count(*) FROM claim WHERE key = ?1 AND place > 0 AND place < ?2 AND expires > ?3";

/// A holder (position 0) or a waiter.
pub(crate) struct ClaimRow {
    /// The column `place`.
    pub(crate) position: i64,
    pub(crate) owner: Owner,
    pub(crate) token: Option<FencingToken>,
    pub(crate) ttl: i64,
    pub(crate) expires: i64,
    pub(crate) since: i64,
    pub(crate) session: Session,
    pub(crate) pid: i32,
    /// The column `note`: an encoded [`HolderInfo`].
    note: String,
}

/// A waiter's position in the queue, and when its entry expires.
pub(crate) struct QueueEntry {
    pub(crate) position: i64,
    pub(crate) expires: i64,
}

impl ClaimRow {
    /// Reads the columns of [`HEAD`].
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<ClaimRow> {
        let owner = owner_from(row.get_ref(1)?.as_blob()?).ok_or_else(unexpected_owner)?;
        let token = row.get::<_, Option<i64>>(2)?;
        let token = token.and_then(|token| u64::try_from(token).ok()).and_then(FencingToken::new);
        Ok(ClaimRow {
            position: row.get(0)?,
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

    pub(crate) fn is_holder(&self) -> bool {
        self.position == 0
    }

    /// The time until the lease or queue entry expires.
    pub(crate) fn left(&self, now: i64) -> Duration {
        span(self.expires - now)
    }

    pub(crate) fn holder(&self, now: i64) -> Holder {
        Holder {
            token: self.token,
            held_for: Some(span(now - self.since)),
            ttl_left: Some(self.left(now)),
            ..Holder::new(&HolderInfo::decode(&self.note))
        }
    }

    pub(crate) fn waiter(&self, now: i64) -> Waiter {
        let waiting_for = Some(span(now - self.since));
        Waiter { waiting_for, ..Waiter::new(&HolderInfo::decode(&self.note)) }
    }
}

/// The holder of a key; if there is none, its first waiter.
pub(crate) fn head(connection: &Connection, key: &Key) -> rusqlite::Result<Option<ClaimRow>> {
    connection.prepare_cached(HEAD)?.query_row([key.as_str()], ClaimRow::read).optional()
}

/// The queue entry of an owner, if it waits for the key. It may have expired.
pub(crate) fn queue_entry(
    connection: &Connection,
    key: &Key,
    owner: Owner,
) -> rusqlite::Result<Option<QueueEntry>> {
    let owner = owner_bytes(owner);
    let read =
        |row: &rusqlite::Row<'_>| Ok(QueueEntry { position: row.get(0)?, expires: row.get(1)? });
    let mut query = connection.prepare_cached(QUEUE_ENTRY)?;
    query.query_row((key.as_str(), &owner[..]), read).optional()
}

/// How many waiters whose entries have not expired are ahead of a position.
pub(crate) fn ahead(
    connection: &Connection,
    key: &Key,
    position: i64,
    now: i64,
) -> rusqlite::Result<u32> {
    connection.prepare_cached(AHEAD)?.query_row((key.as_str(), position, now), |row| row.get(0))
}

/// All rows of these keys that have not expired, each with the name of its key: for each key the
/// holder first, then the waiters in order.
pub(crate) fn rows(
    connection: &Connection,
    scope: Scope<'_>,
    now: i64,
) -> rusqlite::Result<Vec<(String, ClaimRow)>> {
    let (sql, name) = match scope {
        Scope::Key(key) => (OF_KEY, key.as_str()),
        Scope::Prefix(prefix) => (OF_PREFIX, prefix),
    };
    let mut query = connection.prepare_cached(sql)?;
    let rows = query.query_map((name, now), |row| Ok((row.get(9)?, ClaimRow::read(row)?)))?;
    rows.collect()
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

fn unexpected_owner() -> rusqlite::Error {
    let error = Box::new(FromSqlError::InvalidType);
    rusqlite::Error::FromSqlConversionFailure(1, Type::Blob, error)
}
