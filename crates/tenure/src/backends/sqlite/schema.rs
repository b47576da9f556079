//! Opens the file: checks that it is a store of ours, makes or renews it, and sets the connection
//! up.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::beacon::{Session, probe};
use super::boot::{Boot, unix_ms};
use super::fault::{from_sqlite, not_a_store};
use super::place::Place;
use crate::error::{Error, ErrorKind, Result};

/// Opens the store. Writes nothing if it was used since the machine was started.
pub(super) fn connect(place: &Place, boot: &Boot) -> Result<Connection> {
    check_library(rusqlite::version_number())?;
    let failed = |error| from_sqlite(place, error);
    let conn = open(place).map_err(failed)?;
    // Before the first change: whose file is this?
    let version = version_at_once(&conn).map_err(failed)?;
    check_version(place, &version)?;
    write_ahead(&conn).map_err(failed)?;
    conn.execute_batch(SYNC).and_then(|()| conn.execute_batch(SETUP)).map_err(failed)?;
    if version.schema == SCHEMA && boot_of(&conn).map_err(failed)? == boot.id {
        return Ok(conn);
    }
    let prepared = synced(&conn, || prepare(&conn, place, boot));
    prepared.map_err(failed)??;
    Ok(conn)
}

/// Runs `work` with its commit synced to the disk: `synchronous` cannot change inside a
/// transaction.
pub(super) fn synced<T>(
    conn: &Connection,
    work: impl FnOnce() -> rusqlite::Result<T>,
) -> rusqlite::Result<T> {
    conn.execute_batch("PRAGMA synchronous = FULL")?;
    let done = work();
    // Also after an error: else every later commit would be synced.
    conn.execute_batch(SYNC)?;
    done
}

/// For how long the statements of this thread wait for the file, from now on.
pub(super) fn be_patient(limit: Duration) {
    PATIENCE.set(limit);
}

/// What the header of the file says.
struct Version {
    schema: i64,
    application: i64,
    empty: bool,
}

fn open(place: &Place) -> rusqlite::Result<Connection> {
    // Not `CREATE`: `Place` made the file, and a file that vanished since is not made again.
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    #[allow(unused_mut, reason = "needed from rusqlite 0.41 on")]
    let mut conn = Connection::open_with_flags(&place.file, flags)?;
    conn.busy_handler(Some(wait_for_file as fn(i32) -> bool))?;
    // Else the last to close checkpoints, syncs and removes the log that the next one makes again.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(conn)
}

/// In one transaction: another process may make the tables between two reads.
fn version_at_once(conn: &Connection) -> rusqlite::Result<Version> {
    let tx = conn.unchecked_transaction()?;
    let version = version(&tx)?;
    tx.commit()?;
    Ok(version)
}

fn version(conn: &Connection) -> rusqlite::Result<Version> {
    let number = |sql| conn.query_row(sql, [], |row| row.get(0));
    let schema = number("PRAGMA user_version")?;
    let application = number("PRAGMA application_id")?;
    let empty = schema == 0 && number("SELECT count(*) FROM sqlite_schema")? == 0;
    Ok(Version { schema, application, empty })
}

fn check_version(place: &Place, version: &Version) -> Result<()> {
    if version.empty {
        return Ok(());
    }
    if version.application != APPLICATION {
        return Err(not_a_store(&place.file));
    }
    if version.schema > SCHEMA {
        let message = format!(
            "`{}` was written by a newer tenure (schema {}, this one knows {SCHEMA}); use that \
             one, or name another file with `sqlite:PATH`",
            place.file.display(),
            version.schema
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
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

/// Turns the log on, where it is not. This answers "busy" without asking the busy handler.
fn write_ahead(conn: &Connection) -> rusqlite::Result<()> {
    let mode = |sql| conn.query_row(sql, [], |row| row.get::<_, String>(0));
    if mode("PRAGMA journal_mode")? == "wal" {
        return Ok(());
    }
    let began = Instant::now();
    loop {
        match mode("PRAGMA journal_mode = WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && began.elapsed() < PATIENCE.get() =>
            {
                std::thread::sleep(Duration::from_millis(1));
            }
            answer => return answer.map(drop),
        }
    }
}

fn boot_of(conn: &Connection) -> rusqlite::Result<String> {
    conn.query_row("SELECT boot FROM meta", [], |row| row.get(0))
}

/// Makes the tables of a new file; after a start of the machine, goes on behind every token that
/// can have been given out. Looks at everything again, since another process may have done it
/// meanwhile.
fn prepare(conn: &Connection, place: &Place, boot: &Boot) -> rusqlite::Result<Result<()>> {
    let tx = rusqlite::Transaction::new_unchecked(conn, rusqlite::TransactionBehavior::Immediate)?;
    let version = version(&tx)?;
    if let Err(refused) = check_version(place, &version) {
        return Ok(Err(refused));
    }
    if version.schema == 0 {
        tx.execute_batch(TABLES)?;
        tx.execute("INSERT INTO meta VALUES (1, '', ?1, ?1)", [unix_ms()])?;
    }
    if boot_of(&tx)? != boot.id {
        rebase(&tx, place, boot)?;
    }
    tx.commit()?;
    Ok(Ok(()))
}

/// The clock began anew, and commits that were not synced may be gone: tokens go on where none can
/// have been given out, the dead are dropped, and who may live gets one lease more. (Containers
/// have boot ids of their own on one kernel: what lives must not be thrown out.)
fn rebase(conn: &Connection, place: &Place, boot: &Boot) -> rusqlite::Result<()> {
    conn.execute(
        "UPDATE meta SET boot = ?1, next = reserved, reserved = reserved + ?2",
        (&boot.id, BLOCK),
    )?;
    let mut sessions = conn.prepare("SELECT DISTINCT session FROM claim")?;
    let sessions: Vec<i64> = sessions.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for session in sessions {
        if let Some(_dead) = probe(place, Session(session)) {
            conn.execute("DELETE FROM claim WHERE session = ?1", [session])?;
        }
    }
    conn.execute("UPDATE claim SET expires = ?1 + 1 + ttl", [boot.now_ms()])?;
    Ok(())
}

/// How many frames of the log are not yet in the file.
pub(super) fn unmerged(conn: &Connection) -> rusqlite::Result<i64> {
    let read = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(1)? - row.get::<_, i64>(2)?);
    let mut look = conn.prepare_cached("PRAGMA wal_checkpoint(NOOP)")?;
    Ok(look.query_row([], read).optional()?.unwrap_or(0))
}

/// Puts the log into the file, as far as nobody is in the way.
pub(super) fn merge(conn: &Connection) -> rusqlite::Result<()> {
    conn.prepare_cached("PRAGMA wal_checkpoint(PASSIVE)")?.query_row([], |_| Ok(()))
}

/// Called by SQLite while another process writes. First politely, since a change takes some 50 µs;
/// then with sleeps, each a little different, so that two do not keep step. Limited by time,
/// because a number of tries means nothing on a loaded machine.
fn wait_for_file(tries: i32) -> bool {
    if tries == 0 {
        BEGAN.set(Some(Instant::now()));
    }
    if BEGAN.get().is_some_and(|began| began.elapsed() >= PATIENCE.get()) {
        return false;
    }
    match tries {
        0..40 => std::thread::yield_now(),
        _ => {
            let uneven = (tries as u32).wrapping_mul(0x9e37).wrapping_add(std::process::id());
            std::thread::sleep(Duration::from_micros(u64::from(100 + uneven % 400)));
        }
    }
    true
}

thread_local! {
    // A busy handler is a plain function, and each connection stays on its thread.
    static PATIENCE: Cell<Duration> = const { Cell::new(LONGEST) };
    static BEGAN: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// For how long a statement waits for the file unless somebody is in a hurry.
pub(super) const LONGEST: Duration = Duration::from_secs(5);

/// How many tokens are reserved by one synced commit.
pub(super) const BLOCK: i64 = 1024;

/// "tenu" in the header of the file.
const APPLICATION: i64 = 0x7465_6e75;

/// The version of the tables. A newer program brings an older file up to date, never the reverse.
const SCHEMA: i64 = 1;

/// More than there are.
const STATEMENTS: usize = 48;

/// An ordinary commit need not be synced: what a power cut takes back, the id of the boot tells,
/// and tokens that can have been given out are skipped. Where there is no such id, it must be.
const SYNC: &str = if cfg!(target_os = "linux") {
    "PRAGMA synchronous = NORMAL"
} else {
    "PRAGMA synchronous = FULL; PRAGMA fullfsync = ON"
};

/// Checkpoints are ours, after the answer (`Store::tidy`); the 1,000 pages are for a process that
/// never gets to it. Memory maps are off: a file truncated by a stranger would end the process.
const SETUP: &str = "
PRAGMA wal_autocheckpoint = 1000;
PRAGMA journal_size_limit = 4194304;
PRAGMA mmap_size = 0;
PRAGMA temp_store = MEMORY;
PRAGMA trusted_schema = OFF;
PRAGMA cell_size_check = ON;
";

/// The primary key itself forbids two holders of a key, and keeps its queue in order: place 0
/// holds, the others wait. A row lives only as long as its claim. Times are milliseconds of `Boot`.
/// `next` never passes `reserved`, and `reserved` was synced before anybody saw it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_loses_commits_is_refused() {
        assert_eq!(check_library(3_051_002).unwrap_err().kind(), ErrorKind::Unsupported);
        check_library(3_051_003).unwrap();
        check_library(rusqlite::version_number()).unwrap();
    }

    #[test]
    fn the_header_carries_the_numbers_that_are_looked_for() {
        assert!(TABLES.contains(&format!("application_id = {APPLICATION};")));
        assert!(TABLES.contains(&format!("user_version = {SCHEMA};")));
    }
}
