//! The paths of a fence: one name for each file, whatever path leads to it, and the files beside
//! it.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};

/// A file by its one name, and the files of its fence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FencePaths {
    pub(super) path: PathBuf,
}

impl FencePaths {
    /// Follows all links. The file need not be there, its folder must be.
    ///
    /// # Errors
    ///
    /// The error of the system; `InvalidInput` if the path names no file, or one that has a second
    /// name, under which it would have a second fence.
    pub(super) fn find(path: &Path) -> io::Result<FencePaths> {
        let path = match fs::canonicalize(path) {
            Ok(path) => path,
            Err(error) if error.kind() == ErrorKind::NotFound => path_of_new_file(path)?,
            Err(error) => return Err(error),
        };
        if path.file_name().is_none() {
            return Err(invalid(&path, "names no file"));
        }
        refuse_second_name(&path)?;
        Ok(FencePaths { path })
    }

    /// The file with the highest token seen.
    pub(super) fn fence(&self) -> PathBuf {
        self.beside(".fence")
    }

    /// The next content of that file, until it is renamed. If it is there, the last change may not
    /// be on the disk.
    pub(super) fn next_fence(&self) -> PathBuf {
        self.beside(".fence.new")
    }

    /// The file that is locked while a holder is admitted.
    pub(super) fn lock(&self) -> PathBuf {
        self.beside(".fence.lock")
    }

    /// The next content of the protected file, until it is renamed.
    pub(super) fn next_data(&self) -> PathBuf {
        self.beside(".fence.data")
    }

    /// A name that begins as the file's does.
    fn beside(&self, end: &str) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(end);
        name.into()
    }
}

fn path_of_new_file(path: &Path) -> io::Result<PathBuf> {
    // A write through such a link would create a file elsewhere, with a fence elsewhere.
    if fs::symlink_metadata(path).is_ok() {
        return Err(invalid(path, "is a symbolic link to a file that is not there"));
    }
    let name = path.file_name().ok_or_else(|| invalid(path, "names no file"))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok(fs::canonicalize(folder.unwrap_or(Path::new(".")))?.join(name))
}

/// A hard link, or a file that is mounted by itself, has no one folder for its fence to be in.
#[cfg(unix)]
fn refuse_second_name(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;

    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.is_dir() && found.nlink() > 1 {
        return Err(invalid(path, "has a second name (a hard link)"));
    }
    if is_mounted(path)? {
        return Err(invalid(path, "is mounted by itself; mount its folder"));
    }
    Ok(())
}

#[cfg(not(unix))]
fn refuse_second_name(_: &Path) -> io::Result<()> {
    Ok(())
}

/// Whether the file is on another mount than its folder.
#[cfg(target_os = "linux")]
fn is_mounted(path: &Path) -> io::Result<bool> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

    let mount = |path: &Path| -> io::Result<Option<u64>> {
        let found = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID)?;
        // Kernels before 5.8 do not say.
        let says = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
        Ok(says.then_some(found.stx_mnt_id))
    };
    Ok(mount(path)? != mount(path.parent().unwrap_or(path))?)
}

#[cfg(all(unix, not(target_os = "linux")))]
fn is_mounted(_: &Path) -> io::Result<bool> {
    Ok(false)
}

fn invalid(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("`{}` {why}", path.display()))
}
