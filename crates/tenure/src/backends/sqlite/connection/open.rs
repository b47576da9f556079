//! Opens the SQLite connection: sets it up, and has the file checked or created.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use crate::backends::sqlite::boot::Boot;
use crate::backends::sqlite::error::from_sqlite;
use crate::backends::sqlite::layout::schema;
use crate::backends::sqlite::store_path::StorePath;
use crate::error::{Error, ErrorKind, Result};

/// How long a statement waits for the write lock of the file, unless a shorter limit was set.
pub(crate) const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// Larger than the number of different statements.
const STATEMENTS: usize = 72;

/// An ordinary commit need not be synced: after a power cut the id of the boot shows that commits
/// may be lost, and all tokens that can have been granted are skipped. Without such an id every
/// commit must be synced.
const SYNC: &str = if cfg!(target_os = "linux") {
    "PRAGMA synchronous = NORMAL"
} else {
    "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON"
};

/// Checkpoints are made after the response (`OpenStore::run_maintenance`); the 1,000 pages are for
/// a process that never gets to it. Memory maps are off: if another program truncated a mapped
/// file, the process would be killed.
const SETUP: &str = "
PRAGMA wal_autocheckpoint = 1000;
PRAGMA journal_size_limit = 4194304;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
";

thread_local! {
    // A busy handler is a plain function without data; but a connection stays on its thread.
    static TIMEOUT: Cell<Duration> = const { Cell::new(LOCK_TIMEOUT) };
    static STARTED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Opens the store. Writes nothing if the store was used since the machine was started.
pub(crate) fn connect(path: &StorePath, boot: &Boot) -> Result<Connection> {
    check_library(rusqlite::version_number())?;
    let failed = |error| from_sqlite(path, error);
    let connection = open(path).map_err(failed)?;
    // Before the first change: the file may belong to another program.
    let version = schema::read_version(&connection).map_err(failed)?;
    version.check(path)?;
    enable_write_ahead_log(&connection).map_err(failed)?;
    let setup = connection.execute_batch(SYNC).and_then(|()| connection.execute_batch(SETUP));
    setup.map_err(failed)?;
    if version.is_current() && schema::boot_of(&connection).map_err(failed)? == boot.id {
        return Ok(connection);
    }
    let prepared = synced(&connection, || schema::prepare(&connection, path, boot));
    prepared.map_err(|error| error.describe(path))?;
    Ok(connection)
}

/// Runs `work` with its commit synced to the disk. Not for use inside a transaction, where
/// `synchronous` cannot be changed.
pub(crate) fn synced<T, E: From<rusqlite::Error>>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    connection.execute_batch("PRAGMA synchronous = FULL")?;
    let done = work();
    // Also after an error: otherwise every later commit would be synced.
    connection.execute_batch(SYNC)?;
    done
}

/// Sets how long the statements of this thread wait for the write lock of the file, from now on.
pub(crate) fn set_lock_timeout(limit: Duration) {
    TIMEOUT.set(limit);
}

fn open(path: &StorePath) -> rusqlite::Result<Connection> {
    // Not `CREATE`: `StorePath` created the file, and one that was deleted since is not created
    // again.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[allow(unused_mut, reason = "needed from rusqlite 0.41 on")]
    let mut connection = Connection::open_with_flags(&path.file, flags)?;
    connection.busy_handler(Some(wait_for_write_lock as fn(i32) -> bool))?;
    // Otherwise the last connection to close would checkpoint, sync and remove the log, and the
    // next one would create it again.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Otherwise SQLite prepares a cached statement again when a value is bound that might change
    // its plan, which with these tables it never does: some 3 µs for each request.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// SQLite below 3.51.3 can lose commits when a log is reset while another process reads it.
fn check_library(version: i32) -> Result<()> {
    if version >= 3_051_003 {
        return Ok(());
    }
    let message = format!(
        "the SQLite library {} can lose commits (WAL-reset bug); link 3.51.3 or newer",
        rusqlite::version()
    );
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// Enables the write-ahead log. SQLite does not call the busy handler for this statement.
fn enable_write_ahead_log(connection: &Connection) -> rusqlite::Result<()> {
    let mode = |sql| connection.query_row(sql, [], |row| row.get::<_, String>(0));
    if mode("PRAGMA journal_mode")? == "wal" {
        return Ok(());
    }
    let started = Instant::now();
    loop {
        match mode("PRAGMA journal_mode = WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && started.elapsed() < TIMEOUT.get() =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            outcome => return outcome.map(drop),
        }
    }
}

/// How many frames of the log are not yet in the file.
pub(crate) fn frames_in_log(connection: &Connection) -> rusqlite::Result<i64> {
    let read = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?);
    let mut query = connection.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?;
    Ok(query.query_row([], read).optional()?.unwrap_or(0))
}

/// Copies the log into the file, as far as no reader still needs it.
pub(crate) fn checkpoint(connection: &Connection) -> rusqlite::Result<()> {
    connection.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |_| Ok(()))
}

/// Called by SQLite while another process has the write lock; `true` tries again. The first tries
/// only yield, since a change takes some 50 µs. Later ones sleep, each for a different time, so
/// that two processes do not keep in step. The limit is a time, because a number of tries means
/// nothing on a loaded machine.
fn wait_for_write_lock(tries: i32) -> bool {
    if tries == 0 {
        STARTED.set(Some(Instant::now()));
    }
    if STARTED.get().is_some_and(|started| started.elapsed() >= TIMEOUT.get()) {
        return false;
    }
    match tries {
        0..40 => std::thread::yield_now(),
        _ => {
            let spread = (tries as u32).wrapping_mul(0x9e37).wrapping_add(std::process::id());
            std::thread::sleep(Duration::from_micros(u64::from(100 + spread % 400)));
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_loses_commits_is_refused() {
        assert_eq!(check_library(3_051_002).unwrap_err().kind(), ErrorKind::Unsupported);
        check_library(3_051_003).unwrap();
        check_library(rusqlite::version_number()).unwrap();
    }
}
