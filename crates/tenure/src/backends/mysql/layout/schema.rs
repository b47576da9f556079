//! The tables: their DDL, and creating them on first use.
//!
//! **Older installations.** Other modes than the exclusive one need one more table, and no change
//! of the others: clients of before go on meanwhile. It is created like the others; where the
//! user may not, or the server is too old for the statements, the client has exclusive locks
//! only, and says so ([`Info::modes`](crate::backend::Info::modes), `doctor`).

use std::time::Duration;

use super::super::config::LockMode;
use super::super::connection::Connection;
use crate::error::{Error, ErrorKind, Result};

/// A busy server may take long for DDL.
const PREPARE_LIMIT: Duration = Duration::from_secs(8);

/// The table of those who hold a key together.
pub(crate) const HOLDERS: &str = "tenure_holder";

/// The statements that create the tables of all modes, for an administrator to run where the
/// application's user may not create tables. Running them again changes nothing.
///
/// # Examples
///
/// ```
/// assert!(tenure::backends::mysql::SCHEMA.contains("CREATE TABLE IF NOT EXISTS tenure_lease"));
/// ```
pub const SCHEMA: &str = "\
-- One row: no token of a swept row is higher. New keys begin above it.
CREATE TABLE IF NOT EXISTS tenure_floor (
  id TINYINT NOT NULL PRIMARY KEY,
  n BIGINT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO tenure_floor (id, n) VALUES (1, 0);

-- mode=lease: the holder of each key, its token and the end of its lease; and the waiters.
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

-- mode=lease: those who hold a key together (shared locks, semaphores). The row of the key in
-- tenure_lease says that there are any.
CREATE TABLE IF NOT EXISTS tenure_holder (
  k VARBINARY(512) NOT NULL,
  owner VARBINARY(64) NOT NULL,
  token BIGINT NOT NULL,
  tokens INT NOT NULL,
  weight INT NOT NULL,
  lim INT NOT NULL,
  until DATETIME(6) NOT NULL,
  since DATETIME(6) NOT NULL,
  note BLOB NOT NULL,
  bell VARBINARY(32) NOT NULL,
  PRIMARY KEY (k, owner)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

-- mode=session: the holders of named locks, and the waiters.
CREATE TABLE IF NOT EXISTS tenure_session LIKE tenure_lease;
CREATE TABLE IF NOT EXISTS tenure_session_waiter LIKE tenure_waiter;

-- mode=row: the holders of row locks, the waiters, and the rows to lock.
CREATE TABLE IF NOT EXISTS tenure_row LIKE tenure_lease;
CREATE TABLE IF NOT EXISTS tenure_row_waiter LIKE tenure_waiter;
CREATE TABLE IF NOT EXISTS tenure_row_lock (
  k VARBINARY(512) NOT NULL PRIMARY KEY
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
";

/// The tables that a mode uses.
pub(crate) fn tables(mode: LockMode) -> &'static [&'static str] {
    match mode {
        LockMode::Lease => &["tenure_floor", "tenure_lease", "tenure_waiter"],
        LockMode::Session => &["tenure_floor", "tenure_session", "tenure_session_waiter"],
        LockMode::Row => &["tenure_floor", "tenure_row", "tenure_row_waiter", "tenure_row_lock"],
    }
}

/// Creates the tables if they do not exist.
pub(crate) async fn prepare(connection: &Connection, mode: LockMode) -> Result<()> {
    let probes = tables(mode).iter().map(|table| format!("SELECT 1 FROM {table} LIMIT 1"));
    let probe = probes.collect::<Vec<_>>().join(";");
    match connection.execute(probe, PREPARE_LIMIT).await {
        // The tables can be there without the row of the floor, if creating them was interrupted.
        Ok(response) if response.result_sets.first().is_some_and(|rows| !rows.is_empty()) => {
            return Ok(());
        }
        Err(error) if error.kind() != ErrorKind::Invalid => return Err(error),
        Ok(_) | Err(_) => {}
    }
    match connection.execute(ddl(|_| true), PREPARE_LIMIT).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Denied => Err(may_not_create(error)),
        Err(error) => Err(error),
    }
}

/// Whether keys can be held in other modes than the exclusive one. Creates their table if it does
/// not exist and the user may.
///
/// # Errors
///
/// `Unavailable` if the server does not respond. Any other refusal means that they cannot.
pub(crate) async fn prepare_other_modes(connection: &Connection) -> Result<bool> {
    let found = match probe_holders(connection).await {
        Err(error) if error.kind() == ErrorKind::Invalid => {
            let create = ddl(|statement| statement.contains(HOLDERS));
            match connection.execute(create, PREPARE_LIMIT).await {
                Ok(_) => probe_holders(connection).await,
                Err(error) => Err(error),
            }
        }
        probed => probed,
    };
    match found {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Unavailable => Err(error),
        Err(_refused) => Ok(false),
    }
}

/// Uses what the statements need: the table with its columns, and window functions.
async fn probe_holders(connection: &Connection) -> Result<()> {
    let probe = format!(
        "SELECT tokens,lim,bell,SUM(weight) OVER (ORDER BY token) AS together FROM {HOLDERS} \
         LIMIT 1"
    );
    connection.execute(probe, PREPARE_LIMIT).await.map(drop)
}

/// Those statements of the schema, without the comments, which are for administrators.
fn ddl(choose: impl Fn(&str) -> bool) -> String {
    let lines = SCHEMA.lines().filter(|line| !line.starts_with("--"));
    let sql = lines.collect::<Vec<_>>().join("\n");
    let statements = sql.split(';').map(str::trim).filter(|one| !one.is_empty() && choose(one));
    statements.collect::<Vec<_>>().join(";")
}

fn may_not_create(error: Error) -> Error {
    let message = "tenure's tables are missing and this user may not create them; let an \
                   administrator run what `tenure schema mysql` prints";
    Error::new(ErrorKind::Denied, message).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_other_modes_is_created_alone() {
        let create = ddl(|statement| statement.contains(HOLDERS));
        assert!(create.starts_with("CREATE TABLE IF NOT EXISTS tenure_holder ("), "{create}");
        assert!(!create.contains(';') && create.ends_with("DYNAMIC"), "{create}");
    }
}
