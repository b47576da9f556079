//! A program of the first schema, with its statements as they were.

use std::fs::File;

use rusqlite::{Connection, OptionalExtension};
use rustix::fs::{FlockOperation, flock};
use tenure::backend::{Claim, Owner};

use crate::{SOON, TestContext};

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
const HEAD: &str = "
SELECT place, owner, token, expires, session, ttl FROM claim
WHERE key = ?1 ORDER BY place LIMIT 1";
const DELETE_ROW: &str = "DELETE FROM claim WHERE key = ?1 AND place = ?2";
const DELETE_SESSION_OF_KEY: &str = "DELETE FROM claim WHERE key = ?1 AND session = ?2";
const NEXT_TOKEN: &str = "UPDATE meta SET next = next + 1 WHERE next < reserved RETURNING next";
const RESERVE: &str = "UPDATE meta SET reserved = reserved + ?1 WHERE next >= reserved - ?1 / 4";
const PROMOTE: &str = "
UPDATE claim SET place = 0, token = ?3, since = ?4, expires = ?5 WHERE key = ?1 AND place = ?2";
const CONFIRM: &str = "
UPDATE claim SET ttl = max(ttl, ?2), expires = max(expires, ?3) WHERE key = ?1 AND place = 0";
const LAST_POSITION: &str = "SELECT coalesce(max(place), 0) FROM claim WHERE key = ?1";
const INSERT: &str = "
INSERT INTO claim (key, place, owner, token, ttl, expires, since, session, pid, note)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
const RENEW: &str = "
UPDATE claim SET ttl = max(ttl, ?3), expires = max(expires, ?4)
WHERE key = ?1 AND place = 0 AND owner = ?2 AND expires > ?5 AND (?6 IS NULL OR token = ?6)";
const DELETE_HOLDER: &str =
    "DELETE FROM claim WHERE key = ?1 AND place = 0 AND owner = ?2 RETURNING expires";

/// The program, with a session.
pub(crate) struct OldProgram {
    pub(crate) connection: Connection,
    session: i64,
    folder: std::path::PathBuf,
    _locked: File,
}

struct OldRow {
    place: i64,
    owner: Vec<u8>,
    token: Option<i64>,
    expires: i64,
    session: i64,
    ttl: i64,
}

impl OldProgram {
    /// Opens the file, and creates its tables as the first version did.
    pub(crate) fn start(context: &TestContext) -> OldProgram {
        let connection = Connection::open(context.file()).unwrap();
        connection.busy_timeout(SOON).unwrap();
        connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let create = "BEGIN IMMEDIATE".to_owned() + ";" + TABLES;
        connection.execute_batch(&create).unwrap();
        let wall = std::time::UNIX_EPOCH.elapsed().unwrap().as_millis() as i64;
        let meta = "INSERT INTO meta VALUES (1, ?1, ?2, ?2 + 1024)";
        connection.execute(meta, (boot.trim(), wall)).unwrap();
        connection.execute_batch("COMMIT").unwrap();
        let folder = context.folder().join("locks.db.d");
        std::fs::create_dir_all(&folder).unwrap();
        let session = 0x7e57;
        let locked = File::create(folder.join(format!("{session:016x}.live"))).unwrap();
        flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        OldProgram { connection, session, folder, _locked: locked }
    }

    fn transact<T>(&self, work: impl FnOnce(i64) -> T) -> T {
        self.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let done = work(time.tv_sec * 1000 + time.tv_nsec / 1_000_000);
        self.connection.execute_batch("COMMIT").unwrap();
        done
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> usize {
        self.connection.prepare_cached(sql).unwrap().execute(params).unwrap()
    }

    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.connection.query_row(sql, [], |row| row.get(0)).unwrap()
    }

    fn next_token(&self) -> i64 {
        let next = || {
            let mut next = self.connection.prepare_cached(NEXT_TOKEN).unwrap();
            next.query_row([], |row| row.get(0)).optional().unwrap()
        };
        next().unwrap_or_else(|| {
            self.execute(RESERVE, [1024]);
            next().unwrap()
        })
    }

    fn head(&self, key: &str) -> Option<OldRow> {
        let mut head = self.connection.prepare_cached(HEAD).unwrap();
        let read = |row: &rusqlite::Row<'_>| {
            let (place, owner, token) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (expires, session, ttl) = (row.get(3)?, row.get(4)?, row.get(5)?);
            Ok(OldRow { place, owner, token, expires, session, ttl })
        };
        head.query_row([key], read).optional().unwrap()
    }

    fn is_dead(&self, session: i64) -> bool {
        let file = File::open(self.folder.join(format!("{session:016x}.live")));
        file.is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockShared).is_ok())
    }

    fn settle(&self, key: &str, now: i64) -> Option<OldRow> {
        loop {
            let mut head = self.head(key)?;
            if head.expires <= now {
                self.execute(DELETE_ROW, (key, head.place));
            } else if head.place == 0 {
                return Some(head);
            } else if self.is_dead(head.session) {
                self.execute(DELETE_SESSION_OF_KEY, (key, head.session));
            } else {
                let token = self.next_token();
                let end = now + 1 + head.ttl.min(1000);
                self.execute(PROMOTE, (key, head.place, token, now, end));
                (head.place, head.token) = (0, Some(token));
                return Some(head);
            }
        }
    }

    /// The token, if the key is granted.
    pub(crate) fn acquire(&self, claim: &Claim) -> Option<i64> {
        let (key, owner) = (claim.key.as_str(), bytes(claim.owner));
        let ttl = claim.ttl.as_millis() as i64;
        self.transact(|now| {
            let head = self.settle(key, now);
            let pid = std::process::id();
            let insert = |place, token| {
                let row = (key, place, &owner, token, ttl, now + 1 + ttl, now, self.session, pid);
                let (a, b, c, d, e, f, g, h, i) = row;
                self.execute(INSERT, rusqlite::params![a, b, c, d, e, f, g, h, i, "old\u{1f}"]);
            };
            match head {
                None => {
                    let token = self.next_token();
                    insert(0, Some(token));
                    Some(token)
                }
                // A token of 0 was none to the old program.
                Some(head) if head.owner == owner && head.token.is_some_and(|token| token > 0) => {
                    self.execute(CONFIRM, (key, ttl, now + 1 + ttl));
                    head.token
                }
                Some(_) if claim.waits => {
                    let mut last = self.connection.prepare_cached(LAST_POSITION).unwrap();
                    let last: i64 = last.query_row([key], |row| row.get(0)).unwrap();
                    insert(last + 1, None);
                    None
                }
                Some(_) => None,
            }
        })
    }

    pub(crate) fn renew(&self, claim: &Claim) -> bool {
        let ttl = claim.ttl.as_millis() as i64;
        let owner = bytes(claim.owner);
        self.transact(|now| {
            let change = (claim.key.as_str(), owner, ttl, now + 1 + ttl, now, None::<i64>);
            self.execute(RENEW, change) > 0
        })
    }

    pub(crate) fn release(&self, claim: &Claim) -> bool {
        let key = claim.key.as_str();
        self.transact(|now| {
            let mut delete = self.connection.prepare_cached(DELETE_HOLDER).unwrap();
            let held: Option<i64> =
                delete.query_row((key, bytes(claim.owner)), |row| row.get(0)).optional().unwrap();
            held.is_some_and(|expires| {
                self.settle(key, now);
                expires > now
            })
        })
    }
}

fn bytes(owner: Owner) -> Vec<u8> {
    [&owner.client()[..], &owner.number().to_be_bytes()].concat()
}
