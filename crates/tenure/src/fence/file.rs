//! A fence next to a file.
//!
//! The fence of `report.csv` is `report.csv.fence`, a file with the highest token seen, replaced
//! atomically; whoever looks at it holds a kernel lock on `report.csv.fence.lock`, which stays
//! empty. Both must be kept with the file: without them any token is admitted, as at first use.
//! They cost a few bytes per file; where you remove the file, [`forget`] removes them.
//!
//! [`admit`] blocks until the kernel lock is had, so nobody else is admitted while an [`Admitted`]
//! lives. Keep it for the read or the write only: one that is paused with it in its hands is safe,
//! and makes all others wait. The kernel lock is that of `flock(2)`: a network file system must
//! support it.
//!
//! ```
//! use tenure::{fence::file, FencingToken};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("stock");
//! # std::fs::write(&path, "10")?;
//! # let token = FencingToken::new(7).unwrap();
//! let text = file::admit(&path, token)?.read()?; // first, before any read
//! let left = text.parse::<u32>()? - 1;
//! file::admit(&path, token)?.replace(left.to_string())?; // and again with the write
//! # assert_eq!(std::fs::read_to_string(&path)?, "9");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// Admits this token for this file, and from now on none below it.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Garbage`] if the fence's file
/// does not hold a token, [`Refused::Store`] with what the system says.
pub fn admit(path: impl AsRef<Path>, token: FencingToken) -> Result<Admitted, Refused<io::Error>> {
    let path = path.as_ref();
    let lock = lock(&beside(path, ".fence.lock")).map_err(Refused::Store)?;
    let fence = beside(path, ".fence");
    let seen = match fs::read_to_string(&fence) {
        Ok(text) => Some(text.trim_end().parse().map_err(|_| Refused::Garbage(text))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Refused::Store(error)),
    };
    if let Some(seen) = seen {
        Stale::check(token, seen)?;
    }
    if seen != Some(token) {
        replace(&fence, format!("{token}\n").as_bytes()).map_err(Refused::Store)?;
    }
    Ok(Admitted { path: path.to_owned(), _lock: lock })
}

/// Leave to read or write the file: nobody with another token is admitted while this lives.
///
/// # Examples
///
/// ```
/// use tenure::{fence::file, FencingToken};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("log");
/// let admitted = file::admit(&path, FencingToken::new(1).unwrap())?;
/// // Any other way to write will do as well.
/// std::fs::write(admitted.path(), "hello")?;
/// drop(admitted);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "others are kept out only while this lives"]
pub struct Admitted {
    path: PathBuf,
    _lock: File,
}

impl Admitted {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its text.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn read(&self) -> io::Result<String> {
        fs::read_to_string(&self.path)
    }

    /// Replaces the file as a whole: after a crash it is the old one or the new one.
    ///
    /// # Errors
    ///
    /// What the system says. The file is the old one then, or, if the last sync failed, the new.
    pub fn replace(&self, content: impl AsRef<[u8]>) -> io::Result<()> {
        replace(&self.path, content.as_ref())
    }
}

/// Removes the fence of this file, and what belongs to it: any token is admitted then, as at first
/// use. Waits until nobody is admitted.
///
/// For a file that is removed. As long as a holder that lost its lock can still write, keep the
/// fence: it could make the file anew.
///
/// # Errors
///
/// What the system says. That there is no fence is no error.
///
/// # Examples
///
/// ```
/// use tenure::{fence::file, FencingToken};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("report.csv");
/// file::admit(&path, FencingToken::new(8).unwrap())?.replace("1;2")?;
/// std::fs::remove_file(&path)?;
/// file::forget(&path)?;
/// # assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn forget(path: impl AsRef<Path>) -> io::Result<()> {
    let path = path.as_ref();
    let name = beside(path, ".fence.lock");
    let lock = lock(&name)?;
    for leftover in [beside(path, ".fence"), beside(path, ".fence.new")] {
        remove(&leftover)?;
    }
    // Last, and still locked: whoever waits for it finds that it is no longer the one of that name.
    #[cfg(unix)]
    remove(&name)?;
    drop(lock);
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A name that begins as the file's does.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// The token's file cannot be locked itself: the one that is locked would be the replaced one.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        file.lock()?;
        if is_still(&file, path)? {
            return Ok(file);
        }
    }
}

/// Whether this is the file of that name: while we waited, it may have been forgotten.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let ours = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// It is never removed here.
#[cfg(not(unix))]
fn is_still(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}

fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let new = beside(path, ".new");
    let mut file = File::create(&new)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
