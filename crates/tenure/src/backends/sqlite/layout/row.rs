//! A row of the tables `claim` and `holder`, and the statements that read rows.

use std::time::Duration;

use rusqlite::types::{FromSqlError, Type};
use rusqlite::{Connection, OptionalExtension};

use crate::backend::{Holder, HolderInfo, Mode, Owner, Scope, Waiter};
use crate::backends::sqlite::liveness::Session;
use crate::backends::sqlite::wake_socket::{owner_bytes, owner_from};
use crate::key::Key;
use crate::token::FencingToken;

/// What [`ClaimRow::read`] reads, after the column `place` or what stands for it.
macro_rules! columns {
    () => {
        "owner, token, ttl, expires, since, session, pid, note, weight, capacity, tokens"
    };
}

const HEAD: &str =
    concat!("SELECT place, ", columns!(), " FROM claim WHERE key = ?1 ORDER BY place LIMIT 1");
const FIRST_WAITER: &str = concat!(
    "SELECT place, ",
    columns!(),
    " FROM claim WHERE key = ?1 AND place > 0 ORDER BY place LIMIT 1"
);
const HOLDERS: &str =
    concat!("SELECT 0, ", columns!(), " FROM holder WHERE key = ?1 ORDER BY token");
const OF_KEY: &str = concat!(
    "SELECT place, ",
    columns!(),
    ", key FROM claim WHERE key = ?1 AND expires > ?2 ORDER BY key, place"
);
/// Not `LIKE`: a prefix may contain its wildcards.
const OF_PREFIX: &str = concat!(
    "SELECT place, ",
    columns!(),
    ", key FROM claim WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1 AND expires > ?2
ORDER BY key, place"
);
const QUEUE_ENTRY: &str = "
SELECT place, expires, weight, capacity FROM claim WHERE key = ?1 AND owner = ?2 AND place > 0";
const AHEAD: &str =
    "SELECT count(*) FROM claim WHERE key = ?1 AND place > 0 AND place < ?2 AND expires > ?3";

/// A holder (position 0), a waiter, or the marker of several holders.
pub(crate) struct ClaimRow {
    /// The column `place`.
    pub(crate) position: i64,
    pub(crate) owner: Owner,
    pub(crate) mode: Mode,
    /// Of a holder. A marker has the number 0, which is no token.
    pub(crate) token: Option<FencingToken>,
    /// How many tokens from `token` on are the grant's.
    pub(crate) tokens: u32,
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
    pub(crate) mode: Mode,
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
            mode: mode_of(row.get(9)?, row.get(10)?),
            tokens: row.get(11)?,
        })
    }

    /// Whether the row is a holder's. That of a marker stands for several.
    pub(crate) fn is_holder(&self) -> bool {
        self.position == 0
    }

    /// Whether the row only says that the holders of the key are in the table `holder`.
    pub(crate) fn is_marker(&self) -> bool {
        self.position == 0 && self.token.is_none()
    }

    /// Whether this is the grant in whose range the token is.
    pub(crate) fn has_token(&self, token: FencingToken) -> bool {
        let first = self.token.map(FencingToken::get);
        first.is_some_and(|first| (first..first + u64::from(self.tokens)).contains(&token.get()))
    }

    /// The time until the lease or queue entry expires.
    pub(crate) fn left(&self, now: i64) -> Duration {
        span(self.expires - now)
    }

    pub(crate) fn holder(&self, now: i64) -> Holder {
        Holder {
            mode: self.mode,
            token: self.token,
            held_for: Some(span(now - self.since)),
            ttl_left: Some(self.left(now)),
            ..Holder::new(&HolderInfo::decode(&self.note))
        }
    }

    pub(crate) fn waiter(&self, now: i64) -> Waiter {
        let waiting_for = Some(span(now - self.since));
        Waiter { mode: self.mode, waiting_for, ..Waiter::new(&HolderInfo::decode(&self.note)) }
    }
}

/// The mode with this weight and limit. Numbers of which this version knows no mode fit beside no
/// other, and nothing beside them.
fn mode_of(weight: i64, capacity: i64) -> Mode {
    let lock = capacity == i64::from(Mode::Shared.limit());
    if lock {
        let shared = weight == i64::from(Mode::Shared.weight());
        return if shared { Mode::Shared } else { Mode::Exclusive };
    }
    let numbers = u32::try_from(weight).ok().zip(u32::try_from(capacity).ok());
    let permits = numbers.and_then(|(take, of)| Mode::permits(take, of).ok());
    permits.unwrap_or(Mode::Exclusive)
}

/// The holder of a key, or the marker of several; if there is none, its first waiter.
pub(crate) fn head(connection: &Connection, key: &Key) -> rusqlite::Result<Option<ClaimRow>> {
    connection.prepare_cached(HEAD)?.query_row([key.as_str()], ClaimRow::read).optional()
}

/// The first waiter of a key. Its entry may have expired.
pub(crate) fn first_waiter(
    connection: &Connection,
    key: &Key,
) -> rusqlite::Result<Option<ClaimRow>> {
    connection.prepare_cached(FIRST_WAITER)?.query_row([key.as_str()], ClaimRow::read).optional()
}

/// The holders behind a marker, the oldest first. Their leases may have ended.
pub(crate) fn holders_of(connection: &Connection, key: &str) -> rusqlite::Result<Vec<ClaimRow>> {
    connection.prepare_cached(HOLDERS)?.query_map([key], ClaimRow::read)?.collect()
}

/// All holders of a key, the oldest first. Their leases may have ended.
pub(crate) fn all_holders(connection: &Connection, key: &Key) -> rusqlite::Result<Vec<ClaimRow>> {
    Ok(match head(connection, key)? {
        Some(head) if head.is_marker() => holders_of(connection, key.as_str())?,
        Some(head) if head.is_holder() => vec![head],
        Some(_) | None => Vec::new(),
    })
}

/// The queue entry of an owner, if it waits for the key. It may have expired.
pub(crate) fn queue_entry(
    connection: &Connection,
    key: &Key,
    owner: Owner,
) -> rusqlite::Result<Option<QueueEntry>> {
    let owner = owner_bytes(owner);
    let read = |row: &rusqlite::Row<'_>| {
        let mode = mode_of(row.get(2)?, row.get(3)?);
        Ok(QueueEntry { position: row.get(0)?, expires: row.get(1)?, mode })
    };
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
/// holder or the marker of several first, then the waiters in order.
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
    let rows = query.query_map((name, now), |row| Ok((row.get(12)?, ClaimRow::read(row)?)))?;
    rows.collect()
}

fn span(ms: i64) -> Duration {
    Duration::from_millis(ms.try_into().unwrap_or(0))
}

fn unexpected_owner() -> rusqlite::Error {
    let error = Box::new(FromSqlError::InvalidType);
    rusqlite::Error::FromSqlConversionFailure(1, Type::Blob, error)
}
