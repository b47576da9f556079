//! Sessions, and the liveness file of each: a file on which the session holds an exclusive `flock`.
//!
//! The kernel drops that lock with the last process that has the file open, also after `kill -9`.
//! A client that gets a shared lock on the file of another session therefore knows that this
//! session is dead, and can free its locks before their leases end.
//!
//! Rules that make this safe:
//!
//! - The id of a session is random and never used twice, and a row may carry it only after the file
//!   exists and is locked. So a file that can be locked belongs to a session that has ended, or to
//!   one without rows that has not locked it yet and then starts again with another id.
//! - Only a [`DeadSession`], the proof that the lock was obtained, allows removing the rows and
//!   then the files of a session. The liveness file is removed last: while it exists, a sweep
//!   finds it.
//! - A missing or unreadable file proves nothing. Then the lease decides, as with any other server.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};

use super::session_folder::replaced_meanwhile;
use super::store_path::StorePath;

/// How often the file or its folder may be removed before the file is locked. In ordinary use it
/// happens once or twice.
const TRIES: u32 = 100;

/// The two highest bits of a UUID's lower half, which are the same in all of them.
const VARIANT: u64 = 0b11 << 62;

/// The id of a session: 62 random bits, **never used twice**.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session(pub(super) i64);

impl Session {
    fn random() -> Session {
        Session((uuid::Uuid::new_v4().as_u128() as u64 & !VARIANT) as i64)
    }

    /// Whether this session removes dead ones when it begins: one in 32 does, so that their files
    /// do not pile up.
    pub(super) fn sweeps(self) -> bool {
        self.0 % 32 == 0
    }

    pub(super) fn liveness_name(self) -> String {
        format!("{:016x}.live", self.0)
    }

    pub(super) fn socket_name(self) -> String {
        format!("{:016x}.bell", self.0)
    }

    /// The session whose liveness file has this name.
    pub(super) fn from_liveness_name(name: &str) -> Option<Session> {
        let digits = name.strip_suffix(".live").filter(|digits| digits.len() == 16)?;
        i64::from_str_radix(digits, 16).ok().map(Session)
    }
}

/// The liveness file of this client's session, locked. The lock ends when this value is dropped and
/// no child process has inherited the descriptor.
#[derive(Debug)]
pub(super) struct LivenessFile {
    pub(super) session: Session,
    _locked: File,
}

impl LivenessFile {
    /// Creates and locks the file of a new session. Only then may a row carry the session's id.
    pub(super) fn create(path: &StorePath, inherit: bool) -> io::Result<LivenessFile> {
        let sessions = &path.sessions;
        let mode = sessions.modes.liveness_file;
        for _ in 0..TRIES {
            let session = Session::random();
            let file = match sessions.create(&session.liveness_name(), mode, inherit) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    sessions.create_folder()?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                created => created?,
            };
            // A sweep may have found the file before it was locked, taken it for one of a dead
            // session and removed it. Then start again with another id.
            let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            if locked && file.metadata()?.nlink() == 1 {
                sessions.set_rights(file.as_fd(), mode)?;
                return Ok(LivenessFile { session, _locked: file });
            }
        }
        Err(replaced_meanwhile())
    }

    /// Removes the file of a session that has no rows any more. If that fails, it is found unlocked
    /// and removed by the next sweep.
    pub(super) fn remove(self, path: &StorePath) {
        path.sessions.remove(&self.session.liveness_name());
    }
}

/// The proof that a session has ended. Only its owner may remove the rows and files of the session.
#[derive(Debug)]
pub(super) struct DeadSession {
    pub(super) session: Session,
    /// Locked shared, so that two clients that probe at the same time both get the proof.
    _locked: File,
}

impl DeadSession {
    /// Probes whether a session has ended. `None` if it lives, or if that is not known: the file is
    /// missing or cannot be read.
    pub(super) fn probe(path: &StorePath, session: Session) -> Option<DeadSession> {
        let file = path.sessions.open_file(&session.liveness_name()).ok()?;
        flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(DeadSession { session, _locked: file })
    }

    /// Removes the files of the session, after its rows were deleted. The liveness file is removed
    /// last: while it exists, a sweep finds the session.
    pub(super) fn remove_files(self, path: &StorePath) {
        path.sessions.remove(&self.session.socket_name());
        path.sessions.remove(&self.session.liveness_name());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_positive_random_and_named_by_its_hex_digits() {
        let (one, two) = (Session::random(), Session::random());
        assert!(one.0 > 0 && two.0 > 0 && one != two);
        let name = format!("{:016x}.live", one.0);
        assert_eq!(Session::from_liveness_name(&name), Some(one));
        for name in ["", "x.live", "0123456789abcdef.bell", "0123456789abcdeg.live"] {
            assert_eq!(Session::from_liveness_name(name), None, "{name}");
        }
    }
}
