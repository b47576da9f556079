//! The folder beside a store with the helper files of its sessions, and their owners and modes.
//!
//! Root may use a store in a folder that another user can write to. That user can put a link, or
//! anything else, under every name in there at any moment. So nothing here is opened, given to
//! another owner or removed by a path: the folder is reached from a descriptor of the store's
//! folder, its files from a descriptor of the folder, and a link as the last part of a name is not
//! followed. Owner and mode are set on a descriptor, after a check that it refers to what was just
//! created.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::fs::{fchmod, fchown, fstat, mkdirat, openat, renameat, unlinkat};
use rustix::process::{Gid, Uid, geteuid};

/// Opens a folder to reach the files in it, which needs no right to list them.
#[cfg(target_os = "linux")]
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY);
#[cfg(not(target_os = "linux"))]
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY);

/// The folder of a store's helper files: one liveness file and one wake socket for each session.
#[derive(Debug)]
pub(super) struct SessionFolder {
    /// The folder of the store.
    parent: OwnedFd,
    name: OsString,
    /// For error messages only.
    pub(super) path: PathBuf,
    pub(super) modes: FileModes,
    /// User and group of the store: root gives its helper files to them.
    owner: (u32, u32),
}

impl SessionFolder {
    /// The folder beside a file with this owner and mode. Creates nothing.
    pub(super) fn beside(file: &Path, owner: (u32, u32), mode: u32) -> io::Result<SessionFolder> {
        let parent = file.parent().unwrap_or(Path::new("/"));
        let mut name = file.file_name().unwrap_or_default().to_owned();
        name.push(".d");
        Ok(SessionFolder {
            path: parent.join(&name),
            parent: openat(CWD, parent, FOLDER | OFlags::CLOEXEC, Mode::empty())?,
            name,
            modes: FileModes::beside(mode),
            owner,
        })
    }

    fn open(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.parent, &self.name, flags, Mode::empty())?)
    }

    /// Creates the folder, unless it exists.
    ///
    /// It is created under a name that no session knows, so that it stays empty until it has its
    /// owner and mode, and is renamed only then: a folder that is not empty is not the one that was
    /// created here.
    pub(super) fn create_folder(&self) -> io::Result<()> {
        let fresh = format!(".tenure-{}", uuid::Uuid::new_v4().simple());
        mkdirat(&self.parent, &fresh, Mode::RWXU)?;
        let created = self.set_rights_of_new(&fresh);
        // This also replaces an empty folder that another process has created at the same time. A
        // session that is about to create a file in that one gets `NotFound`, and tries again.
        let created =
            created.and_then(|()| Ok(renameat(&self.parent, &fresh, &self.parent, &self.name)?));
        match created {
            Ok(()) => Ok(()),
            Err(error) => {
                let _ignored = unlinkat(&self.parent, &fresh, AtFlags::REMOVEDIR);
                // Another process was faster, and its sessions are in the folder.
                self.open(FOLDER).map(drop).map_err(|_| error)
            }
        }
    }

    fn set_rights_of_new(&self, fresh: &str) -> io::Result<()> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&self.parent, fresh, flags, Mode::empty())?;
        if fstat(&folder)?.st_uid != geteuid().as_raw() || !names(&folder)?.is_empty() {
            return Err(replaced_meanwhile());
        }
        self.set_rights(folder.as_fd(), self.modes.folder)
    }

    /// Creates a file. It is closed on `exec`, unless child processes shall inherit it.
    pub(super) fn create(&self, name: &str, mode: u32, inherit: bool) -> io::Result<File> {
        let folder = self.open(FOLDER)?;
        let mut flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
        flags.set(OFlags::CLOEXEC, !inherit);
        Ok(openat(folder, name, flags, Mode::from_raw_mode(mode as _))?.into())
    }

    /// Opens a file for reading. Does not block if another user put a pipe or device there.
    pub(super) fn open_file(&self, name: &str) -> io::Result<File> {
        let folder = self.open(FOLDER)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(folder, name, flags, Mode::empty())?.into())
    }

    /// Removes a file. If that fails, the next sweep removes it.
    pub(super) fn remove(&self, name: &str) {
        if let Ok(folder) = self.open(FOLDER) {
            let _ignored = unlinkat(folder, name, AtFlags::empty());
        }
    }

    /// The names of the files in the folder.
    pub(super) fn names(&self) -> Vec<String> {
        let folder = self.open(OFlags::RDONLY);
        folder.and_then(|folder| names(&folder)).unwrap_or_default()
    }

    /// Sets the mode of a file that was just created, whatever the umask was, and gives it from
    /// root to the owner of the store.
    pub(super) fn set_rights(&self, created: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
        if let Some((user, group)) = self.new_owner() {
            fchown(created, Some(user), Some(group))?;
        }
        Ok(fchmod(created, Mode::from_raw_mode(mode as _))?)
    }

    /// The owner to whom root gives its files; `None` for a store of root's, and for other users.
    fn new_owner(&self) -> Option<(Uid, Gid)> {
        let (user, group) = self.owner;
        let new_owner = (Uid::from_raw(user), Gid::from_raw(group));
        (user != 0 && geteuid().is_root()).then_some(new_owner)
    }
}

/// Sockets can only be reached by a path. `/proc/self/fd` makes a path of a descriptor.
#[cfg(target_os = "linux")]
impl SessionFolder {
    /// The path at which to bind a new socket; valid while the descriptor is open.
    pub(super) fn new_socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        let folder = self.open(FOLDER)?;
        Ok((by_descriptor(&folder).join(name), folder))
    }

    /// An existing socket: a path to exactly that one; valid while the descriptor is open.
    pub(super) fn socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        let folder = self.open(FOLDER)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = openat(folder, name, flags, Mode::empty())?;
        Ok((by_descriptor(&socket), socket))
    }

    /// Sets mode and owner of a socket, as [`set_rights`](Self::set_rights) does of a file.
    pub(super) fn set_socket_rights(&self, created: &OwnedFd, mode: u32) -> io::Result<()> {
        if let Some((user, group)) = self.new_owner() {
            rustix::fs::chownat(created, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?;
        }
        let mode = Mode::from_raw_mode(mode as _);
        Ok(rustix::fs::chmodat(CWD, by_descriptor(created), mode, AtFlags::empty())?)
    }
}

#[cfg(target_os = "linux")]
fn by_descriptor(of: &OwnedFd) -> PathBuf {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", of.as_raw_fd()).into()
}

/// Other systems have no such paths: root gets no wake socket in the store of another user.
#[cfg(not(target_os = "linux"))]
impl SessionFolder {
    pub(super) fn new_socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        match self.new_owner() {
            Some(_) => Err(io::ErrorKind::Unsupported.into()),
            None => Ok((self.path.join(name), self.open(FOLDER)?)),
        }
    }

    pub(super) fn socket(&self, name: &str) -> io::Result<(PathBuf, OwnedFd)> {
        Ok((self.path.join(name), self.open(FOLDER)?))
    }

    pub(super) fn set_socket_rights(&self, _created: &OwnedFd, _mode: u32) -> io::Result<()> {
        Ok(())
    }
}

/// The modes of the helper files, derived from the mode of the store: a user that may use the store
/// may use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileModes {
    folder: u32,
    /// Probing a liveness file needs the right to read it.
    pub(super) liveness_file: u32,
    /// Sending to a wake socket needs the right to write to it.
    pub(super) wake_socket: u32,
}

impl FileModes {
    fn beside(file: u32) -> FileModes {
        let shared = |bits: u32| file & bits == bits;
        let mut modes = FileModes { folder: 0o700, liveness_file: 0o600, wake_socket: 0o600 };
        if shared(0o060) {
            // Setgid: files get the group of the folder, not that of the process that creates them.
            modes.folder |= 0o2070;
            modes.liveness_file |= 0o040;
            modes.wake_socket |= 0o060;
        }
        if shared(0o006) {
            modes.folder |= 0o007;
            modes.liveness_file |= 0o004;
            modes.wake_socket |= 0o006;
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

/// What was created is no longer what its name leads to.
pub(super) fn replaced_meanwhile() -> io::Error {
    io::Error::other("another user replaced it while it was made")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_files_are_shared_exactly_as_the_store_is() {
        let modes =
            |folder, liveness_file, wake_socket| FileModes { folder, liveness_file, wake_socket };
        assert_eq!(FileModes::beside(0o100600), modes(0o700, 0o600, 0o600));
        assert_eq!(FileModes::beside(0o100644), modes(0o700, 0o600, 0o600));
        assert_eq!(FileModes::beside(0o100660), modes(0o2770, 0o640, 0o660));
        assert_eq!(FileModes::beside(0o100666), modes(0o2777, 0o644, 0o666));
    }

    #[test]
    fn an_existing_folder_is_kept_with_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let sessions = SessionFolder::beside(&folder.path().join("x"), (0, 0), 0o600).unwrap();
        sessions.create_folder().unwrap();
        sessions.create("a", 0o600, false).unwrap();
        sessions.create_folder().unwrap();
        assert_eq!(sessions.names(), ["a"]);
        let beside: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(beside.len(), 1, "{beside:?}");
    }
}
