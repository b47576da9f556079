//! The tables: their DDL, and making them when they are first needed.

use std::time::Duration;

use super::link::Link;
use super::options::Kind;
use crate::error::{Error, ErrorKind, Result};

/// The statements that make everything that any mode needs, for those who may not create tables
/// from a program. Running them again changes nothing.
///
/// # Examples
///
/// ```
/// assert!(tenure::backends::mysql::SCHEMA.contains("CREATE TABLE IF NOT EXISTS tenure_lease"));
/// ```
pub const SCHEMA: &str = "\
-- One row: no token that was swept away is higher. New keys begin above it.
CREATE TABLE IF NOT EXISTS tenure_floor (
  id TINYINT NOT NULL PRIMARY KEY,
  n BIGINT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO tenure_floor (id, n) VALUES (1, 0);

-- mode=lease: who holds, with which token, until when; and who waits.
CREATE TABLE IF NOT EXISTS tenure_lease (
  k VARBINARY(512) NOT NULL PRIMARY KEY,
  owner VARBINARY(64) NOT NULL,
  token BIGINT NOT NULL,
  until DATETIME(6) NOT NULL,
  since DATETIME(6) NOT NULL,
  note BLOB NOT NULL,
  home VARBINARY(32) NOT NULL,
  bell VARBINARY(32) NOT NULL,
  queued INT NOT NULL DEFAULT 0
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
CREATE TABLE IF NOT EXISTS tenure_waiter (
  k VARBINARY(512) NOT NULL,
  seat BIGINT NOT NULL AUTO_INCREMENT,
  owner VARBINARY(64) NOT NULL,
  until DATETIME(6) NOT NULL,
  since DATETIME(6) NOT NULL,
  note BLOB NOT NULL,
  home VARBINARY(32) NOT NULL,
  bell VARBINARY(32) NOT NULL,
  PRIMARY KEY (k, seat), UNIQUE KEY (k, owner), KEY (seat)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- mode=session: the same, as a record of who has the named lock.
CREATE TABLE IF NOT EXISTS tenure_session LIKE tenure_lease;
CREATE TABLE IF NOT EXISTS tenure_session_waiter LIKE tenure_waiter;

-- mode=row: the same, and the rows that are locked.
CREATE TABLE IF NOT EXISTS tenure_row LIKE tenure_lease;
CREATE TABLE IF NOT EXISTS tenure_row_waiter LIKE tenure_waiter;
CREATE TABLE IF NOT EXISTS tenure_row_lock (
  k VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
";

/// The tables that a mode uses.
pub(super) fn tables(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Lease => &["tenure_floor", "tenure_lease", "tenure_waiter"],
        Kind::Session => &["tenure_floor", "tenure_session", "tenure_session_waiter"],
        Kind::Row => &["tenure_floor", "tenure_row", "tenure_row_waiter", "tenure_row_lock"],
    }
}

/// Makes the tables if they are not there.
pub(super) async fn prepare(link: &Link, kind: Kind) -> Result<()> {
    let looks = tables(kind).iter().map(|table| format!("SELECT 1 FROM {table} LIMIT 1"));
    let look = looks.collect::<Vec<_>>().join(";");
    match link.ask(look, LONGEST).await {
        // The row of the floor is the last thing that is made.
        Ok(answer) if answer.sets.first().is_some_and(|rows| !rows.is_empty()) => return Ok(()),
        Err(error) if error.kind() != ErrorKind::Invalid => return Err(error),
        Ok(_) | Err(_) => {}
    }
    // Comments are for people.
    let lines = SCHEMA.lines().filter(|line| !line.starts_with("--"));
    let sql = lines.collect::<Vec<_>>().join("\n");
    match link.ask(sql.trim_end().trim_end_matches(';').to_owned(), LONGEST).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not(error)),
        Err(error) => Err(error),
    }
}

fn may_not(error: Error) -> Error {
    let message = "tenure's tables are missing and this user may not create them; let an \
                   administrator run what `tenure schema mysql` prints";
    Error::new(ErrorKind::Denied, message).with_source(error)
}

/// A busy server may take its time for DDL, but not for ever.
const LONGEST: Duration = Duration::from_secs(8);
