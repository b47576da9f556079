//! What could break the embedded store: the file, the disk below it, and who else is in it.

use rusqlite::Connection;

use super::store::Store;
use crate::error::Result;
use crate::finding::{Finding, Grade};

impl Store {
    pub(super) fn examine(&mut self) -> Result<Vec<Finding>> {
        let mut findings = vec![self.file(), self.space(), self.sessions()];
        let read = |findings: &mut Vec<Finding>| -> rusqlite::Result<()> {
            findings.push(version());
            findings.push(journal(&self.conn)?);
            findings.push(integrity(&self.conn)?);
            findings.push(holders(&self.conn)?);
            Ok(())
        };
        read(&mut findings).map_err(|error| self.fault(error))?;
        Ok(findings)
    }

    fn file(&mut self) -> Finding {
        let file = self.place.file.display().to_string();
        match self.in_place() {
            true => Finding::good("store", format!("`{file}`")),
            false => {
                let detail = format!("`{file}` was deleted or replaced while it was open");
                Finding::new(Grade::Fault, "store", detail).advise("start its users anew")
            }
        }
    }

    fn space(&self) -> Finding {
        let subject = "disk";
        let Ok(facts) = rustix::fs::statvfs(&self.place.folder) else {
            return Finding::new(Grade::Notice, subject, "its free space cannot be asked for")
                .advise("look at it with df");
        };
        let free = facts.f_bavail.saturating_mul(facts.f_frsize);
        let megabytes = free / 1_000_000;
        if free < LITTLE {
            let detail = format!("{megabytes} MB are free; without space nothing can be taken");
            return Finding::new(Grade::Warning, subject, detail).advise("make room");
        }
        Finding::good(subject, format!("{megabytes} MB are free"))
    }

    fn sessions(&self) -> Finding {
        let names = self.place.sessions.names();
        let count = names.iter().filter(|name| name.ends_with(".live")).count();
        Finding::good("sessions", format!("{count} of living or recently dead processes"))
    }
}

fn version() -> Finding {
    Finding::good("engine", format!("SQLite {}", rusqlite::version()))
}

fn journal(conn: &Connection) -> rusqlite::Result<Finding> {
    let mode: String = conn.query_row("PRAGMA journal_mode", [], |row| row.get(0))?;
    Ok(match mode.as_str() {
        "wal" => Finding::good("journal", "write-ahead log"),
        other => Finding::new(Grade::Fault, "journal", format!("`{other}` instead of `wal`"))
            .advise("find out who changed it; end all users and open the store anew"),
    })
}

fn integrity(conn: &Connection) -> rusqlite::Result<Finding> {
    let word: String = conn.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok(match word.as_str() {
        "ok" => Finding::good("integrity", "the file is whole"),
        other => Finding::new(Grade::Fault, "integrity", other)
            .advise("with no holder running, move the store away"),
    })
}

fn holders(conn: &Connection) -> rusqlite::Result<Finding> {
    let count = "SELECT count(*) FILTER (WHERE place = 0),
                        count(*) FILTER (WHERE place > 0) FROM claim";
    let (held, waiting): (i64, i64) =
        conn.query_row(count, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Finding::good("claims", format!("{held} held or expired, {waiting} waiting")))
}

/// Enough for the log and for some hundred thousand claims.
const LITTLE: u64 = 50_000_000;
