//! The beacon: a file on which a living session holds a lock of the kernel. It ends with the last
//! process that has it open, also by `kill -9`, so that nobody waits for the lease of the dead.
//!
//! A beacon only speeds things up. What is not *known* dead lives until its lease ends.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FlockOperation, flock};

use super::place::Place;
use super::sessions::swapped;

/// A session: 62 random bits, **never used twice**. That makes every race about its files harmless.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Session(pub(super) i64);

impl Session {
    fn random() -> Session {
        Session((uuid::Uuid::new_v4().as_u128() as u64 & !VARIANT) as i64)
    }

    /// One session in 32 clears up after the dead, so that their files do not pile up.
    pub(super) fn sweeps(self) -> bool {
        self.0 % 32 == 0
    }

    pub(super) fn beacon_name(self) -> String {
        format!("{:016x}.live", self.0)
    }

    pub(super) fn bell_name(self) -> String {
        format!("{:016x}.bell", self.0)
    }

    /// The session whose beacon has this file name.
    pub(super) fn of_beacon(name: &str) -> Option<Session> {
        let digits = name.strip_suffix(".live").filter(|digits| digits.len() == 16)?;
        i64::from_str_radix(digits, 16).ok().map(Session)
    }
}

/// Our own beacon. It is out when this is dropped and no child has inherited it.
#[derive(Debug)]
pub(super) struct Beacon {
    pub(super) session: Session,
    _lit: File,
}

impl Beacon {
    /// Lights a beacon for a new session. Only then may a row carry its id.
    pub(super) fn light(place: &Place, inherit: bool) -> io::Result<Beacon> {
        let (sessions, mode) = (&place.sessions, place.sessions.modes.beacon);
        for _ in 0..TRIES {
            let session = Session::random();
            let lit = match sessions.create(&session.beacon_name(), mode, inherit) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    sessions.make()?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                lit => lit?,
            };
            // Somebody who sweeps may have seen the file before it was locked. Then it is theirs.
            let locked = flock(&lit, FlockOperation::NonBlockingLockExclusive).is_ok();
            if locked && lit.metadata()?.nlink() == 1 {
                sessions.hand_over(lit.as_fd(), mode)?;
                return Ok(Beacon { session, _lit: lit });
            }
        }
        Err(swapped())
    }

    /// Removes the file of a session that has no rows any more. Left behind, it is found dark and
    /// removed by whoever sweeps next.
    pub(super) fn put_out(self, place: &Place) {
        place.sessions.remove(&self.session.beacon_name());
    }
}

/// A session that is dead for ever. Whoever has this may remove its files, and nobody else may.
#[derive(Debug)]
pub(super) struct Dead {
    pub(super) session: Session,
    /// Shared, so that two who look at once both see the truth.
    _dark: File,
}

impl Dead {
    /// Removes what the session has left, after its rows are gone. The beacon goes last: as long as
    /// it is there, somebody finds it.
    pub(super) fn clear(self, place: &Place) {
        place.sessions.remove(&self.session.bell_name());
        place.sessions.remove(&self.session.beacon_name());
    }
}

/// Looks whether a session is known to be dead. Absent or unreadable is *not known*.
pub(super) fn probe(place: &Place, session: Session) -> Option<Dead> {
    let dark = place.sessions.look(&session.beacon_name()).ok()?;
    flock(&dark, FlockOperation::NonBlockingLockShared).ok()?;
    Some(Dead { session, _dark: dark })
}

/// How often a beacon may be swept away, or its folder, before it is lit. Honest users of the store
/// do it once or twice.
const TRIES: u32 = 100;

/// The two highest bits of a UUID's lower half, which are the same in all of them.
const VARIANT: u64 = 0b11 << 62;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_positive_random_and_named_by_its_hex_digits() {
        let (one, two) = (Session::random(), Session::random());
        assert!(one.0 > 0 && two.0 > 0 && one != two);
        let name = format!("{:016x}.live", one.0);
        assert_eq!(Session::of_beacon(&name), Some(one));
        for name in ["", "x.live", "0123456789abcdef.bell", "0123456789abcdeg.live"] {
            assert_eq!(Session::of_beacon(name), None, "{name}");
        }
    }
}
