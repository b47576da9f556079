//! The file of a store: finds or creates it, and checks that it may be used.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::config::Config;
use super::error::{from_io, not_a_store};
use super::session_folder::SessionFolder;
use super::{mounts, trust};
use crate::error::{Error, Result};

/// The smallest page of a SQLite database, in bytes.
const SMALLEST_PAGE: u64 = 512;

/// A file that may be opened as a store: it exists, is a regular file with one name, and is on a
/// local file system.
#[derive(Debug)]
pub(super) struct StorePath {
    /// Without symbolic links. SQLite resolves them too, so that the helper files of tenure and
    /// those of SQLite are in the same folder.
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
    /// Where the helper files are.
    pub(super) sessions: SessionFolder,
    /// Device and inode of the file that was opened.
    id: (u64, u64),
}

impl StorePath {
    /// Finds the file, or creates an empty one that only its owner can read.
    pub(super) fn prepare(config: &Config) -> Result<StorePath> {
        let wanted = match &config.path {
            Some(path) => path.clone(),
            None => default_path()?,
        };
        let file = canonical(&wanted)?;
        let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
        mounts::check_folder(&folder, config.network)?;
        let metadata = find_or_create(&file, &folder)?;
        check_file(&file, &metadata)?;
        mounts::check_file(&file)?;
        trust::check_ancestors(&folder, metadata.uid())?;
        let owner = (metadata.uid(), metadata.gid());
        let sessions = SessionFolder::beside(&file, owner, metadata.mode());
        let sessions = sessions.map_err(|error| from_io(&folder, error))?;
        Ok(StorePath { folder, sessions, id: (metadata.dev(), metadata.ino()), file })
    }

    /// Whether the path still leads to the file that was opened.
    ///
    /// Any other error than that the file is missing says nothing about it; the next statement
    /// will.
    pub(super) fn is_in_place(&self) -> bool {
        match fs::symlink_metadata(&self.file) {
            Ok(metadata) => (metadata.dev(), metadata.ino()) == self.id,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// The path of one of SQLite's own files beside the store: `-wal` or `-shm`.
    pub(super) fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(ending);
        name.into()
    }
}

/// `${XDG_STATE_HOME:-~/.local/state}/tenure/locks.db`. Creates its folder.
fn default_path() -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(absolute);
    let home = || std::env::home_dir().filter(absolute).map(|home| home.join(".local/state"));
    let advice = "cannot find the home folder of this user; name a file with `sqlite:PATH`";
    let folder = state.or_else(home).ok_or_else(|| Error::invalid(advice))?.join("tenure");
    // Before the first folder is created: root would own it, and it would no longer show whose home
    // it is in.
    if let Some(existing) = folder.ancestors().find(|folder| folder.exists()) {
        trust::refuse_foreign_folder(existing)?;
    }
    let created = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    created.map_err(|error| from_io(&folder, error))?;
    Ok(folder.join("locks.db"))
}

fn canonical(wanted: &Path) -> Result<PathBuf> {
    match fs::canonicalize(wanted) {
        Ok(file) => return Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(from_io(wanted, error)),
    }
    let shown = wanted.display();
    // A file that exists now was created meanwhile; its name is found below.
    if fs::symlink_metadata(wanted).is_ok_and(|metadata| metadata.is_symlink()) {
        return Err(Error::invalid(format!(
            "`{shown}` is a symbolic link to a file that does not exist"
        )));
    }
    let Some(name) = wanted.file_name() else {
        return Err(Error::invalid(format!("`{shown}` names no file")));
    };
    let folder = match wanted.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match fs::canonicalize(folder) {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) => Err(from_io(folder, error)),
    }
}

fn find_or_create(file: &Path, folder: &Path) -> Result<Metadata> {
    if let Ok(metadata) = fs::symlink_metadata(file) {
        return Ok(metadata);
    }
    trust::refuse_foreign_folder(folder)?;
    match create(file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(from_io(folder, error)),
    }
    fs::symlink_metadata(file).map_err(|error| from_io(file, error))
}

/// Creates the file without opening it: closing a descriptor of a database file drops the locks
/// that SQLite holds on it for another connection of this process.
#[cfg(target_os = "linux")]
fn create(file: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, file, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)?)
}

#[cfg(not(target_os = "linux"))]
fn create(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map(drop)
}

fn check_file(file: &Path, metadata: &Metadata) -> Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let shown = file.display();
    if !metadata.is_file() {
        return Err(Error::invalid(format!("`{shown}` is not a regular file; name another")));
    }
    if metadata.nlink() > 1 {
        // A second name would get a second log, and would not show the locks in the first one.
        return Err(Error::invalid(format!(
            "`{shown}` has a second name (hard link); remove one of them"
        )));
    }
    if (1..SMALLEST_PAGE).contains(&metadata.len()) {
        // SQLite would treat it as an empty database and overwrite it.
        return Err(not_a_store(file));
    }
    // SQLite would say only that it cannot open the file.
    accessat(CWD, file, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(|errno| from_io(file, errno.into()))
}
