//! The open store: the SQLite connection, and the session that this client has in the file. It is
//! used by one thread only.

use std::collections::{HashMap, HashSet};
use std::{io, mem};

use rusqlite::Connection;

use super::open;
use crate::backend::{Mode, Owner};
use crate::backends::sqlite::boot::Boot;
use crate::backends::sqlite::config::Config;
use crate::backends::sqlite::error::{from_io, from_sqlite};
use crate::backends::sqlite::layout::row::{self, ClaimRow, QueueEntry};
use crate::backends::sqlite::layout::schema::TOKEN_BLOCK;
use crate::backends::sqlite::liveness::{DeadSession, LivenessFile, Session};
use crate::backends::sqlite::store_path::StorePath;
use crate::backends::sqlite::transaction::{Abort, WakeUp, WriteTransaction};
use crate::backends::sqlite::wake_socket::{self, LONGEST_MESSAGE, WakeReason, WakeSocket};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// After how many frames in the log there is a checkpoint: the first process to open the file reads
/// the whole log.
const CHECKPOINT_FRAMES: i64 = 200;
/// How often a transaction is repeated after more tokens were reserved. Other clients may use up a
/// whole block in between, but not so often.
const TRIES: u32 = 10;

const RESERVE: &str = "UPDATE meta SET reserved = reserved + ?1 WHERE next >= reserved - ?1 / 4";
const RESERVE_MORE: &str = "UPDATE meta SET reserved = reserved + ?1";
const HAS_ROWS: &str = "
SELECT EXISTS (SELECT 1 FROM claim WHERE session = ?1)
    OR EXISTS (SELECT 1 FROM holder WHERE session = ?1)";

/// An open store. It has no session until its first claim: reading needs none.
pub(crate) struct OpenStore {
    pub(crate) connection: Connection,
    pub(crate) path: StorePath,
    pub(crate) boot: Boot,
    inherit: bool,
    liveness_file: Option<LivenessFile>,
    wake_socket: Option<WakeSocket>,
    /// Owners that have a queue entry: to get the busy response again they need not write.
    pub(crate) queued: HashSet<Owner>,
    /// Owners whose lock was evicted, until a renewal reported it.
    pub(crate) evicted: HashSet<Owner>,
    /// Wake-ups for owners of this client, which need no socket.
    local_wake_ups: Vec<(Owner, WakeReason)>,
    /// The path no longer leads to the file that was opened.
    replaced: bool,
    maintenance: Maintenance,
}

/// Work that is done when no request waits.
#[derive(Default)]
struct Maintenance {
    checkpoint: bool,
    reserve_tokens: bool,
    sweep: bool,
}

impl OpenStore {
    pub(crate) fn open(config: &Config) -> Result<OpenStore> {
        let path = StorePath::prepare(config)?;
        let boot = Boot::read().map_err(|error| {
            let message = "cannot read the id of this boot; is `/proc` mounted?";
            Error::new(ErrorKind::Unsupported, message).with_source(error)
        })?;
        let connection = open::connect(&path, &boot)?;
        Ok(OpenStore {
            connection,
            path,
            boot,
            inherit: config.inherit,
            liveness_file: None,
            wake_socket: None,
            queued: HashSet::new(),
            evicted: HashSet::new(),
            local_wake_ups: Vec::new(),
            replaced: false,
            maintenance: Maintenance::default(),
        })
    }

    /// The session of this client, which begins with its first claim.
    pub(crate) fn session(&mut self) -> Result<Session> {
        if let Some(file) = &self.liveness_file {
            return Ok(file.session);
        }
        let created = LivenessFile::create(&self.path, self.inherit);
        let file = created.map_err(|error| from_io(&self.path.sessions.path, error))?;
        let session = file.session;
        self.maintenance.sweep = session.sweeps();
        self.liveness_file = Some(file);
        Ok(session)
    }

    /// Binds the wake socket, if that was not done yet. Without one, waiters poll more often.
    pub(crate) fn bind_wake_socket(&mut self) -> Option<&WakeSocket> {
        if self.wake_socket.is_none() {
            let session = self.session().ok()?;
            self.wake_socket = WakeSocket::bind(&self.path, session).ok();
        }
        self.wake_socket.as_ref()
    }

    pub(crate) fn wake_socket(&self) -> Option<&WakeSocket> {
        self.wake_socket.as_ref()
    }

    /// All wake-ups for owners of this client since the last call.
    pub(crate) fn receive_wake_ups(&mut self) -> Vec<(Owner, WakeReason)> {
        let mut received = mem::take(&mut self.local_wake_ups);
        let socket = self.wake_socket.iter();
        received
            .extend(socket.flat_map(|socket| std::iter::from_fn(|| socket.receive())).flatten());
        received
    }

    fn is_own(&self, session: Session) -> bool {
        self.liveness_file.as_ref().is_some_and(|file| file.session == session)
    }

    /// Checks whether the path still leads to the file that was opened. If it once did not, it
    /// never does again.
    pub(crate) fn is_file_in_place(&mut self) -> bool {
        self.replaced |= !self.path.is_in_place();
        !self.replaced
    }

    /// Whether the last check found another file under the path.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// The proof that a session is dead, if it is known to be.
    pub(crate) fn find_dead(&self, session: Session) -> Option<DeadSession> {
        if self.is_own(session) { None } else { DeadSession::probe(&self.path, session) }
    }

    /// The proofs for those of these holders whose sessions are known to be dead.
    pub(crate) fn find_dead_among(&self, holders: &[ClaimRow]) -> Vec<DeadSession> {
        let mut seen = HashSet::new();
        let sessions = holders.iter().map(|holder| holder.session);
        sessions.filter(|session| seen.insert(*session)).filter_map(|s| self.find_dead(s)).collect()
    }

    /// All holders of a key, the oldest first. Their leases may have ended.
    pub(crate) fn holders(&self, key: &Key) -> Result<Vec<ClaimRow>> {
        row::all_holders(&self.connection, key).map_err(|error| self.sqlite_error(error))
    }

    /// The first waiter of a key. Its entry may have expired.
    pub(crate) fn first_waiter(&self, key: &Key) -> Result<Option<ClaimRow>> {
        row::first_waiter(&self.connection, key).map_err(|error| self.sqlite_error(error))
    }

    /// The queue entry of an owner, if it waits for the key. It may have expired.
    pub(crate) fn queue_entry(&self, key: &Key, owner: Owner) -> Result<Option<QueueEntry>> {
        let entry = row::queue_entry(&self.connection, key, owner);
        entry.map_err(|error| self.sqlite_error(error))
    }

    /// How many waiters whose entries have not expired are ahead of a position.
    pub(crate) fn ahead(&self, key: &Key, position: i64, now: i64) -> Result<u32> {
        let ahead = row::ahead(&self.connection, key, position, now);
        ahead.map_err(|error| self.sqlite_error(error))
    }

    /// Runs `work` in one write transaction, and sends its wake-ups after the commit. May run it
    /// more than once, but commits it at most once.
    pub(crate) fn transact<T>(
        &mut self,
        mut work: impl FnMut(&mut WriteTransaction<'_>) -> Result<T, Abort>,
    ) -> Result<T> {
        for tries in 0..TRIES {
            match self.try_transact(&mut work) {
                Ok(done) => return Ok(done),
                Err(Abort::NoTokenLeft) => {
                    // Where one block was not enough, the transaction hands off many keys.
                    let reserved = match tries {
                        0 => self.reserve_tokens(),
                        _ => self.reserve(RESERVE_MORE, TOKEN_BLOCK << tries),
                    };
                    reserved.map_err(|error| self.sqlite_error(error))?;
                }
                Err(Abort::Sqlite(error)) => return Err(self.sqlite_error(error)),
            }
        }
        let message = format!("no fencing token is left in `{}`", self.path.file.display());
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    fn try_transact<T>(
        &mut self,
        work: &mut impl FnMut(&mut WriteTransaction<'_>) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        self.execute("BEGIN IMMEDIATE")?;
        let mut transaction = WriteTransaction {
            connection: &self.connection,
            path: &self.path,
            session: self.liveness_file.as_ref().map(|file| file.session),
            now: self.boot.now_ms(),
            wake_ups: Vec::new(),
            few_tokens: false,
        };
        let done = work(&mut transaction);
        let WriteTransaction { wake_ups, few_tokens, .. } = transaction;
        let done = done.and_then(|done| Ok(self.execute("COMMIT").map(|()| done)?));
        match &done {
            Ok(_) => {
                self.maintenance.checkpoint = true;
                self.maintenance.reserve_tokens |= few_tokens;
                self.send(wake_ups);
            }
            // SQLite may have rolled back by itself, as after a full disk.
            Err(_) if self.connection.is_autocommit() => {}
            Err(_) => self.execute("ROLLBACK")?,
        }
        done
    }

    /// Sends wake-ups to their sessions: those of one run of waiters that share the key in one
    /// message, since the queue of a socket is short.
    fn send(&mut self, wake_ups: Vec<WakeUp>) {
        let mut messages: Vec<Vec<WakeUp>> = Vec::new();
        let mut shared: HashMap<Session, usize> = HashMap::new();
        for wake_up in wake_ups {
            if self.is_own(wake_up.session) {
                self.local_wake_ups.push((wake_up.owner, wake_up.reason));
                continue;
            }
            // An owner that waits to hold alone may be of a program that reads only messages of
            // one wake-up.
            if wake_up.mode == Mode::Exclusive {
                messages.push(vec![wake_up]);
                continue;
            }
            let at = shared.entry(wake_up.session).or_insert(messages.len());
            if messages.get(*at).is_none_or(|message| message.len() == LONGEST_MESSAGE) {
                *at = messages.len();
                messages.push(Vec::new());
            }
            messages[*at].push(wake_up);
        }
        messages.into_iter().for_each(|message| self.send_to_session(&message));
    }

    fn send_to_session(&mut self, message: &[WakeUp]) {
        let Some(WakeUp { session, .. }) = message.first() else { return };
        let wake_ups: Vec<_> = message.iter().map(|one| (one.owner, one.reason)).collect();
        let sent = wake_socket::wake(&self.path, *session, &wake_ups);
        // A session without a socket polls often, and one with a full socket is stopped. But a
        // waiter of another user, whose socket this user may not write to, relies on it.
        let denied = sent.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        let offers = || message.iter().filter(|one| one.reason == WakeReason::Offered);
        if denied && offers().next().is_some() {
            // If that fails, the offers expire and the next waiters get them.
            let _ignored = self.transact(|change| {
                offers().try_for_each(|one| change.extend_offer(&one.key, one.owner))
            });
        }
    }

    /// Deletes the rows of a dead session, then its files.
    pub(crate) fn remove_dead_session(&mut self, dead: DeadSession) -> Result<()> {
        self.transact(|transaction| transaction.delete_session(dead.session))?;
        dead.remove_files(&self.path);
        Ok(())
    }

    /// Reserves another block of tokens, by a commit that is synced before one of them is granted.
    fn reserve_tokens(&self) -> rusqlite::Result<()> {
        self.reserve(RESERVE, TOKEN_BLOCK)
    }

    fn reserve(&self, sql: &str, tokens: i64) -> rusqlite::Result<()> {
        open::synced(&self.connection, || self.connection.execute(sql, [tokens]).map(drop))
    }

    pub(crate) fn needs_maintenance(&self) -> bool {
        let Maintenance { checkpoint, reserve_tokens, sweep } = self.maintenance;
        checkpoint || reserve_tokens || sweep
    }

    /// Does the work that was put off until no request waits. What fails here is done by the next
    /// client that gets to it.
    pub(crate) fn run_maintenance(&mut self) {
        let due = mem::take(&mut self.maintenance);
        if due.reserve_tokens {
            let _ignored = self.reserve_tokens();
        }
        if due.sweep {
            self.sweep();
        }
        let frames = || open::frames_in_log(&self.connection);
        if due.checkpoint && frames().is_ok_and(|frames| frames >= CHECKPOINT_FRAMES) {
            let _ignored = open::checkpoint(&self.connection);
        }
    }

    /// Removes all dead sessions.
    pub(crate) fn sweep(&mut self) {
        let names = self.path.sessions.names();
        for session in names.iter().filter_map(|name| Session::from_liveness_name(name)) {
            if let Some(dead) = self.find_dead(session) {
                let _ignored = self.remove_dead_session(dead);
            }
        }
    }

    /// Ends the session: deletes its rows, wakes the waiters of its locks, and removes its files.
    pub(crate) fn close(mut self) {
        if let Some(file) = self.liveness_file.take() {
            let session = file.session;
            let has_rows = self.connection.query_row(HAS_ROWS, [session.0], |row| row.get(0));
            let deleted = match has_rows {
                Ok(false) => true,
                _ => self.transact(|change| change.delete_session(session)).is_ok(),
            };
            if let Some(socket) = self.wake_socket.take() {
                socket.remove(&self.path);
            }
            // If rows are left, other clients find the unlocked liveness file and delete them.
            if deleted {
                file.remove(&self.path);
            }
        }
        self.run_maintenance();
    }

    pub(crate) fn sqlite_error(&self, error: rusqlite::Error) -> Error {
        from_sqlite(&self.path, error)
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([]).map(drop)
    }
}
