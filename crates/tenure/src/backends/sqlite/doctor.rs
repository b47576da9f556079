//! Checks for `tenure doctor`: the file, the disk below it, and the sessions and claims in it.

use rusqlite::{Connection, OptionalExtension, Row};

use super::connection::store::OpenStore;
use super::store_path::StorePath;
use crate::error::Result;
use crate::finding::{Finding, Severity};

/// Enough space for the log and for some hundred thousand claims.
const LITTLE_SPACE: u64 = 50_000_000;

pub(super) fn doctor(store: &mut OpenStore) -> Result<Vec<Finding>> {
    let mut findings = vec![file(store), space(&store.path), sessions(&store.path)];
    let checks = [version, journal, integrity, claims, limits];
    for check in checks {
        let finding = check(&store.connection);
        findings.push(finding.map_err(|error| store.sqlite_error(error))?);
    }
    Ok(findings)
}

fn file(store: &mut OpenStore) -> Finding {
    let file = store.path.file.display().to_string();
    if store.is_file_in_place() {
        return Finding::good("store", format!("`{file}`"));
    }
    let detail = format!("`{file}` was deleted or replaced while it was open");
    Finding::new(Severity::Fault, "store", detail).advise("restart the processes that use it")
}

fn space(path: &StorePath) -> Finding {
    let subject = "disk";
    let Ok(file_system) = rustix::fs::statvfs(&path.folder) else {
        return Finding::new(Severity::Notice, subject, "its free space cannot be read")
            .advise("check it with df");
    };
    let free = file_system.f_bavail.saturating_mul(file_system.f_frsize);
    let megabytes = free / 1_000_000;
    if free < LITTLE_SPACE {
        let detail = format!("{megabytes} MB are free; without space no lock can be acquired");
        return Finding::new(Severity::Warning, subject, detail).advise("make room");
    }
    Finding::good(subject, format!("{megabytes} MB are free"))
}

fn sessions(path: &StorePath) -> Finding {
    let names = path.sessions.names();
    let count = names.iter().filter(|name| name.ends_with(".live")).count();
    Finding::good("sessions", format!("{count} of running or recently ended processes"))
}

fn version(_connection: &Connection) -> rusqlite::Result<Finding> {
    Ok(Finding::good("engine", format!("SQLite {}", rusqlite::version())))
}

fn journal(connection: &Connection) -> rusqlite::Result<Finding> {
    let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    Ok(match mode.as_str() {
        "wal" => Finding::good("journal", "write-ahead log"),
        other => Finding::new(Severity::Fault, "journal", format!("`{other}` instead of `wal`"))
            .advise("find the program that changed it; end all users, and open the store again"),
    })
}

fn integrity(connection: &Connection) -> rusqlite::Result<Finding> {
    let result: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(match result.as_str() {
        "ok" => Finding::good("integrity", "the file is whole"),
        other => Finding::new(Severity::Fault, "integrity", other)
            .advise("with no holder running, move the store away"),
    })
}

fn claims(connection: &Connection) -> rusqlite::Result<Finding> {
    // The marker of several holders has token 0.
    let count = "SELECT count(*) FILTER (WHERE place = 0 AND token > 0)
                        + (SELECT count(*) FROM holder),
                        count(*) FILTER (WHERE place > 0) FROM claim";
    let (held, waiting): (i64, i64) =
        connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Finding::good("claims", format!("{held} held or expired, {waiting} waiting")))
}

/// Programs that state different limits for one semaphore: each keeps its own.
fn limits(connection: &Connection) -> rusqlite::Result<Finding> {
    let differing = "
        SELECT key, min(capacity), max(capacity) FROM
            (SELECT key, capacity FROM holder UNION ALL
             SELECT key, capacity FROM claim WHERE place > 0 OR token > 0)
        WHERE capacity < 2147483647
        GROUP BY key HAVING min(capacity) < max(capacity) ORDER BY key LIMIT 1";
    let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let found = connection.query_row(differing, [], read).optional()?;
    let Some((key, least, most)): Option<(String, i64, i64)> = found else {
        return Ok(Finding::good("limits", "no semaphore is used with different limits"));
    };
    let detail = format!("`{key}` is used as a semaphore of {least} and of {most}");
    Ok(Finding::new(Severity::Notice, "limits", detail)
        .advise("state the same limit in all programs, unless it is being changed"))
}
