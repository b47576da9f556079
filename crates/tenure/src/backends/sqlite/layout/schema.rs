//! The tables of a store file: their definition, and how they are checked, created and brought up
//! to date, from an older version or after a start of the machine.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::backends::sqlite::boot::{Boot, unix_ms};
use crate::backends::sqlite::error::{from_sqlite, not_a_store};
use crate::backends::sqlite::liveness::{DeadSession, Session};
use crate::backends::sqlite::store_path::StorePath;
use crate::error::{Error, ErrorKind, Result};
use crate::token::TOKENS_PER_GRANT;

/// How many tokens are reserved by one synced commit: those of 1,024 exclusive grants.
pub(crate) const TOKEN_BLOCK: i64 = 1024 * TOKENS_PER_GRANT as i64;

/// "tenu" in the header of the file.
const APPLICATION: i64 = 0x7465_6e75;

/// The version of the tables. A newer program brings an older file up to date, never the reverse.
const SCHEMA: i64 = 2;

/// Schema 1. `claim` has one row for each holder and waiter. In the column `place`, 0 is the
/// holder, and the others are the positions of the waiters in the queue: the primary key itself
/// forbids two exclusive holders of a key, and keeps its queue in order. A row is deleted with its
/// claim. Times are milliseconds of [`Boot`]. In `meta`, `next` is the last token that was granted;
/// it never passes `reserved`, and `reserved` is synced before a token of its block is granted.
const TABLES: &str = "
CREATE TABLE meta (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    boot TEXT NOT NULL,
    next INTEGER NOT NULL,
    reserved INTEGER NOT NULL CHECK (next <= reserved)
) STRICT;
CREATE TABLE claim (
    key TEXT NOT NULL,
    place INTEGER NOT NULL CHECK (place >= 0),
    owner BLOB NOT NULL CHECK (length(owner) = 24),
    token INTEGER,
    ttl INTEGER NOT NULL CHECK (ttl > 0),
    expires INTEGER NOT NULL,
    since INTEGER NOT NULL,
    session INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (key, place),
    CHECK ((place = 0) = (token IS NOT NULL))
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 1;
PRAGMA application_id = 1952804469;
";

/// Schema 2: several holders of a key. A new file takes this step as well, so that there is one
/// definition of the tables.
///
/// It adds columns and a table and rewrites no row: what is held stays held, and a program of
/// schema 1 that has the file open goes on with its statements. What it writes is exclusive and has
/// one token, by the defaults; what it must not touch is in the table that it does not know, behind
/// a row of `claim` that it takes for a holder (see `holders`). A program of schema 1 that opens
/// the file from now on refuses it: after a start of the machine it would bring `claim` up to date,
/// and not `holder`.
///
/// `weight` and `capacity` are weight and limit of a [`Mode`](crate::backend::Mode); `tokens` is
/// how many tokens from `token` on are the grant's. `holder` has what `claim` has, but for the
/// place: the holders of a key in the order of their tokens.
const MODES: &str = "
ALTER TABLE claim ADD COLUMN weight INTEGER NOT NULL DEFAULT 2147483647 CHECK (weight > 0);
ALTER TABLE claim ADD COLUMN capacity INTEGER NOT NULL DEFAULT 2147483647
    CHECK (capacity >= weight);
ALTER TABLE claim ADD COLUMN tokens INTEGER NOT NULL DEFAULT 1 CHECK (tokens > 0);
CREATE TABLE holder (
    key TEXT NOT NULL,
    token INTEGER NOT NULL CHECK (token > 0),
    owner BLOB NOT NULL CHECK (length(owner) = 24),
    weight INTEGER NOT NULL CHECK (weight > 0 AND weight < 2147483647),
    capacity INTEGER NOT NULL CHECK (capacity >= weight),
    tokens INTEGER NOT NULL CHECK (tokens > 0),
    ttl INTEGER NOT NULL CHECK (ttl > 0),
    expires INTEGER NOT NULL,
    since INTEGER NOT NULL,
    session INTEGER NOT NULL,
    pid INTEGER NOT NULL,
    note TEXT NOT NULL,
    PRIMARY KEY (key, token)
) STRICT, WITHOUT ROWID;
PRAGMA user_version = 2;
";

/// What the header of the file says.
pub(crate) struct Version {
    schema: i64,
    application: i64,
    empty: bool,
}

/// Why the tables could not be prepared.
pub(crate) enum PrepareError {
    Sqlite(rusqlite::Error),
    /// The file is not a store, or one of a newer version.
    Refused(Error),
}

impl From<rusqlite::Error> for PrepareError {
    fn from(error: rusqlite::Error) -> PrepareError {
        PrepareError::Sqlite(error)
    }
}

impl PrepareError {
    pub(crate) fn describe(self, path: &StorePath) -> Error {
        match self {
            PrepareError::Sqlite(error) => from_sqlite(path, error),
            PrepareError::Refused(error) => error,
        }
    }
}

impl Version {
    fn read(connection: &Connection) -> rusqlite::Result<Version> {
        let number = |sql| connection.query_row(sql, [], |row| row.get(0));
        let schema = number("PRAGMA user_version")?;
        let application = number("PRAGMA application_id")?;
        let empty = schema == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0;
        Ok(Version { schema, application, empty })
    }

    pub(crate) fn is_current(&self) -> bool {
        self.schema == SCHEMA
    }

    /// Refuses a file that is not a store, or one of a newer version.
    pub(crate) fn check(&self, path: &StorePath) -> Result<()> {
        if self.empty {
            return Ok(());
        }
        if self.application != APPLICATION {
            return Err(not_a_store(&path.file));
        }
        if self.schema > SCHEMA {
            let message = format!(
                "`{}` was written by a newer tenure (schema {}, this one knows {SCHEMA}); use \
                 that one, or name another file with `sqlite:PATH`",
                path.file.display(),
                self.schema
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(())
    }
}

/// Reads the version in one transaction: another process may create the tables between two reads.
pub(crate) fn read_version(connection: &Connection) -> rusqlite::Result<Version> {
    let transaction = connection.unchecked_transaction()?;
    let version = Version::read(&transaction)?;
    transaction.commit()?;
    Ok(version)
}

/// The boot in which the file was last used.
pub(crate) fn boot_of(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("SELECT boot FROM meta", [], |row| row.get(0))
}

/// Creates the tables of a new file, or brings those of an older one up to date; does what a start
/// of the machine requires. All of it is one transaction: a process that is killed in the middle
/// leaves the file as it was. Reads everything again under the write lock, since another process
/// may have done it meanwhile.
pub(crate) fn prepare(
    connection: &Connection,
    path: &StorePath,
    boot: &Boot,
) -> Result<(), PrepareError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let version = Version::read(&transaction)?;
    version.check(path).map_err(PrepareError::Refused)?;
    if version.schema == 0 {
        transaction.execute_batch(TABLES)?;
        transaction.execute("INSERT INTO meta VALUES (1, '', ?1, ?1)", [first_token()])?;
    }
    if version.schema < 2 {
        transaction.execute_batch(MODES)?;
    }
    if boot_of(&transaction)? != boot.id {
        start_boot(&transaction, path, boot)?;
    }
    Ok(transaction.commit()?)
}

/// The token at which a new file starts: the wall clock, in the scale in which grants use tokens
/// up. A store that was deleted and created again then does not start below the tokens that it had
/// granted, unless it granted more than 1,000 locks a second.
fn first_token() -> i64 {
    unix_ms().saturating_mul(TOKENS_PER_GRANT.into())
}

/// Brings the tables up to date after a start of the machine. The clock started again, and commits
/// that were not synced may be lost. So tokens continue behind every one that can have been
/// granted, the rows of dead sessions are deleted, and all other claims get one more lease:
/// containers have boot ids of their own on one kernel, so that a session of another boot may
/// still live.
fn start_boot(connection: &Connection, path: &StorePath, boot: &Boot) -> rusqlite::Result<()> {
    connection.execute(
        "UPDATE meta SET boot = ?1, next = reserved, reserved = reserved + ?2",
        (&boot.id, TOKEN_BLOCK),
    )?;
    let sessions = "SELECT session FROM claim UNION SELECT session FROM holder";
    let mut sessions = connection.prepare(sessions)?;
    let sessions: Vec<i64> = sessions.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for session in sessions {
        if DeadSession::probe(path, Session(session)).is_some() {
            connection.execute("DELETE FROM claim WHERE session = ?1", [session])?;
            connection.execute("DELETE FROM holder WHERE session = ?1", [session])?;
        }
    }
    // A marker's ttl is the longest of its holders: it does not end before one of them.
    let now = boot.now_ms();
    connection.execute("UPDATE claim SET expires = ?1 + 1 + ttl", [now])?;
    connection.execute("UPDATE holder SET expires = ?1 + 1 + ttl", [now])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_carries_the_numbers_that_are_checked() {
        assert!(TABLES.contains(&format!("application_id = {APPLICATION};")));
        assert!(TABLES.contains("user_version = 1;"));
        assert!(MODES.contains(&format!("user_version = {SCHEMA};")));
    }
}
