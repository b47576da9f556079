//! A fence next to a file.
//!
//! The fence of `report.csv` is `report.csv.fence`, a file with the highest token seen, replaced
//! atomically; whoever looks at it holds a kernel lock on `report.csv.fence.lock`, which stays
//! empty. Both must be kept with the file: without them any token is admitted, as at first use.
//! They cost a few bytes per file; remove them with it.
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

/// A name that begins as the file's does.
fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(end);
    name.into()
}

/// The token's file cannot be locked itself: the one that is locked would be the replaced one.
fn lock(path: &Path) -> io::Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.lock()?;
    Ok(file)
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
