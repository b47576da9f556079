//! Checks for `tenure doctor`: the file, the disk below it, and the sessions and claims in it.

use rusqlite::Connection;

use super::connection::store::OpenStore;
use super::store_path::StorePath;
use crate::error::Result;
use crate::finding::{Finding, Severity};

/// Enough space for the log and for some hundred thousand claims.
const LITTLE_SPACE: u64 = 50_000_000;

pub(super) fn doctor(store: &mut OpenStore) -> Result<Vec<Finding>> {
    let mut findings = vec![file(store), space(&store.path), sessions(&store.path)];
    let checks = [version, journal, integrity, claims];
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
    let count = "SELECT count(*) FILTER (WHERE place = 0),
                        count(*) FILTER (WHERE place > 0) FROM claim";
    let (held, waiting): (i64, i64) =
        connection.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Finding::good("claims", format!("{held} held or expired, {waiting} waiting")))
}
