//! The folder of the sessions beside a store, and who may use what is made in it.
//!
//! Root may use a store in a folder that another user can write to. That user can put a link, or
//! anything else, under every name in there at any moment. So nothing here is opened, handed over
//! or removed by a path: the folder is reached from a descriptor of the store's own folder, what is
//! in it from a descriptor of the folder, and no last link is followed. Owner and mode are set on a
//! descriptor, after a look that it is of what was just made.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::fs::{fchmod, fchown, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::process::{Gid, Uid, geteuid};

/// Where the beacons and bells of a store are, one of each a session.
#[derive(Debug)]
pub(super) struct Sessions {
    /// The folder of the store.
    home: OwnedFd,
    name: OsString,
    /// For messages.
    pub(super) path: PathBuf,
    pub(super) modes: Modes,
    /// Of the store: root hands its helper files to them.
    owner: (u32, u32),
}

impl Sessions {
    /// Beside a file with this owner and mode. Makes nothing.
    pub(super) fn beside(file: &Path, owner: (u32, u32), mode: u32) -> io::Result<Sessions> {
        let home = file.parent().unwrap_or(Path::new("/"));
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".d");
        Ok(Sessions {
            path: home.join(&name),
            home: openat(CWD, home, FOLDER | OFlags::CLOEXEC, Mode::empty())?,
            name,
            modes: Modes::beside(mode),
            owner,
        })
    }

    fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.home, &self.name, flags, Mode::empty())?)
    }

    /// Makes the folder, unless it is there.
    ///
    /// Under a name that no session knows, so that it is empty until it has its rights, and only
    /// then under its own: a folder that is not empty is not the one that was made.
    pub(super) fn make(&self) -> io::Result<()> {
        let fresh = format!(".tenure-{}", uuid::Uuid::new_v4().simple());
        mkdirat(&self.home, &fresh, Mode::RWXU)?;
        let made = self.dress(&fresh);
        // Over an empty folder too, which another process has made at the same time: whoever is
        // about to make a file there is told that it is gone, and comes back.
        let made = made.and_then(|()| Ok(renameat(&self.home, &fresh, &self.home, &self.name)?));
        match made {
            Ok(()) => Ok(()),
            Err(error) => {
                let _gone = unlinkat(&self.home, &fresh, AtFlags::REMOVEDIR);
                // Another process was faster, and its sessions are in there.
                self.open(FOLDER).map(drop).map_err(|_| error)
            }
        }
    }

    fn dress(&self, fresh: &str) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&self.home, fresh, flags, Mode::empty())?;
        if fstat(&folder)?.st_uid != geteuid().as_raw() || !names(&folder)?.is_empty() {
            return Err(swapped());
        }
        self.hand_over(folder.as_fd(), self.modes.folder)
    }

    /// Makes a file that is closed on exec, unless a child shall inherit it.
    pub(super) fn create(&self, name: &str, mode: u32, inherit: bool) -> io::Result<File> {
        let folder = self.open(FOLDER)?;
        let mut flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        flags.set(OFlags::CLOEXEC, !inherit);
        Ok(openat(folder, name, flags, Mode::from_raw_mode(mode as _))?.into())
    }

    /// Opens a file to look at it. A pipe or device that somebody put there is not waited for.
    pub(super) fn look(&self, name: &str) -> io::Result<File> {
        let folder = self.open(FOLDER)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(folder, name, flags, Mode::empty())?.into())
    }

    /// Removes a file. Left behind, it is removed by the next sweep.
    pub(super) fn remove(&self, name: &str) {
        if let Ok(folder) = self.open(FOLDER) {
            let _left = unlinkat(folder, name, AtFlags::empty());
        }
    }

    /// What is in the folder now.
    pub(super) fn names(&self) -> Vec<String> {
        let folder = self.open(OFlags::RDONLY);
        folder.and_then(|folder| names(&folder)).unwrap_or_default()
    }

    /// Gives what we made the rights that go with the store's own, whatever the umask was, and from
    /// root to the owner of the store.
    pub(super) fn hand_over(&self, made: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
        if let Some((user, group)) = self.heir() {
            fchown(made, Some(user), Some(group))?;
        }
        Ok(fchmod(made, Mode::from_raw_mode(mode as _))?)
    }

    /// To whom root leaves its files.
    fn heir(&self) -> Option<(Uid, Gid)> {
        let (user, group) = self.owner;
        let heir = (Uid::from_raw(user), Gid::from_raw(group));
        (user != 0 && geteuid().is_root()).then_some(heir)
    }
}

/// Sockets are reached by a path alone; through `/proc` that is a path to a descriptor.
#[cfg(target_os = "linux")]
impl Sessions {
    /// Where a socket with this name is to be bound, for as long as the descriptor is open.
    pub(super) fn new_socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        let folder = self.open(FOLDER)?;
        Ok((by_descriptor(&folder).join(name), folder))
    }

    /// The socket with this name, and a path to just that one.
    pub(super) fn socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        let folder = self.open(FOLDER)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(folder, name, flags, Mode::empty())?;
        Ok((by_descriptor(&socket), socket))
    }

    /// As [`hand_over`](Self::hand_over), for a socket that was found by its name.
    pub(super) fn hand_over_socket(&self, made: &OwnedFd, mode: u32) -> io::Result<()> {
        if let Some((user, group)) = self.heir() {
            rustix::fs::chownat(made, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
        let mode = Mode::from_raw_mode(mode as _);
        Ok(rustix::fs::chmodat(CWD, by_descriptor(made), mode, AtFlags::empty())?)
    }
}

#[cfg(target_os = "linux")]
fn by_descriptor(of: &OwnedFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", of.as_raw_fd()).into()
}

/// Elsewhere there are no such paths: root has no bell in the store of another user.
#[cfg(not(target_os = "linux"))]
impl Sessions {
    pub(super) fn new_socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        match self.heir() {
            Some(_) => Err(io::ErrorKind::Unsupported.into()),
            None => Ok((self.path.join(name), self.open(FOLDER)?)),
        }
    }

    pub(super) fn socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        Ok((self.path.join(name), self.open(FOLDER)?))
    }

    pub(super) fn hand_over_socket(&self, _made: &OwnedFd, _mode: u32) -> io::Result<()> {
        Ok(())
    }
}

/// Rights of the helper files, taken from the store's own: who may use the store may use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modes {
    folder: u32,
    /// To probe a beacon is to read it.
    pub(super) beacon: u32,
    /// To ring a bell is to write to it.
    pub(super) bell: u32,
}

impl Modes {
    fn beside(file: u32) -> Modes {
        let shared = |bits: u32| file & bits == bits;
        let mut modes = Modes { folder: 0o700, beacon: 0o600, bell: 0o600 };
        if shared(0o060) {
            // With the group of the folder, not of whoever happened to come first.
            modes.folder |= 0o2070;
            modes.beacon |= 0o040;
            modes.bell |= 0o060;
        }
        if shared(0o006) {
            modes.folder |= 0o007;
            modes.beacon |= 0o004;
            modes.bell |= 0o006;
        }
        modes
    }
}

fn names(folder: &OwnedFd) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// What we made is no longer what its name stands for.
pub(super) fn swapped() -> io::Error {
    io::Error::other("another user replaced it while it was made")
}

/// To reach what is in a folder needs no right to list it.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_files_are_shared_exactly_as_the_store_is() {
        let modes = |folder, beacon, bell| Modes { folder, beacon, bell };
        assert_eq!(Modes::beside(0o100600), modes(0o700, 0o600, 0o600));
        assert_eq!(Modes::beside(0o100644), modes(0o700, 0o600, 0o600));
        assert_eq!(Modes::beside(0o100660), modes(0o2770, 0o640, 0o660));
        assert_eq!(Modes::beside(0o100666), modes(0o2777, 0o644, 0o666));
    }

    #[test]
    fn a_folder_that_is_there_is_made_once_and_kept_with_what_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = Sessions::beside(&folder.path().join("x"), (0, 0), 0o600).unwrap();
        sessions.make().unwrap();
        sessions.create("a", 0o600, false).unwrap();
        sessions.make().unwrap();
        assert_eq!(sessions.names(), ["a"]);
        let beside: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
    }
}
