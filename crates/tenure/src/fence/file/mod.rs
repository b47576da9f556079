//! A fence next to a file.
//!
//! The fence of `report.csv` is `report.csv.fence`, a file with the highest token seen (and after a
//! `;` the highest of a reader, if there was one), replaced atomically; an admission holds a kernel
//! lock on `report.csv.fence.lock`, which stays empty. Both must be kept with the file: without
//! them any token is admitted, as at first use. Keep them also when the file is removed, because a
//! stale holder could create it again; [`forget`] removes those without an admission for many days.
//!
//! A file has one fence, whatever path leads to it: links are followed, and a file with a second
//! name (a hard link, or a mount of the file by itself) is refused. **A file that is renamed leaves
//! its fence behind**, and a stale holder is admitted at its new name: `admit` your token there
//! too, before you rename.
//!
//! [`admit`] blocks until it has the kernel lock, so no other holder is admitted while an
//! [`Admitted`] lives. Keep it for the read or the write only: a holder that is paused while it has
//! one is safe, and makes all others wait. The kernel lock is that of `flock(2)`: a network file
//! system must support it.
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

mod paths;
mod replace;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use self::paths::FencePaths;
use self::replace::{remove, replace};
use super::refused::{Refused, Stale};
use super::seen::Seen;
use crate::token::FencingToken;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Admits this token of a writer for this file, and from now on none below it.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, of a writer or of a reader;
/// [`Refused::Garbage`] if the fence's file does not hold a token, [`Refused::Store`] with the
/// error of the system.
pub fn admit(path: impl AsRef<Path>, token: FencingToken) -> Result<Admitted, Refused<io::Error>> {
    let (paths, lock) = admit_by(path.as_ref(), |seen| seen.admit(token))?;
    Ok(Admitted { paths, _lock: lock })
}

/// Admits this token of a reader for this file, and from now on no lower one of a writer. Readers
/// come in any order, one after another.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was here before; else as for [`admit`].
///
/// # Examples
///
/// ```
/// use tenure::{fence::file, FencingToken};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("stock");
/// # std::fs::write(&path, "10")?;
/// let [writer, one, other] = [7, 8, 9].map(|number| FencingToken::new(number).unwrap());
/// assert_eq!(file::admit_shared(&path, other)?.read()?, "10");
/// assert_eq!(file::admit_shared(&path, one)?.read()?, "10"); // both hold the lock
/// assert!(file::admit(&path, writer).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn admit_shared(
    path: impl AsRef<Path>,
    token: FencingToken,
) -> Result<AdmittedReader, Refused<io::Error>> {
    let (paths, lock) = admit_by(path.as_ref(), |seen| seen.admit_shared(token))?;
    Ok(AdmittedReader(Admitted { paths, _lock: lock }))
}

/// Changes the fence by the rule of a writer or of a reader.
fn admit_by(
    path: &Path,
    admit: impl FnOnce(&mut Seen) -> Result<(), Stale>,
) -> Result<(FencePaths, File), Refused<io::Error>> {
    let (paths, lock) = enter(path).map_err(Refused::Store)?;
    let fence = paths.fence();
    let before: Option<Seen> = match fs::read_to_string(&fence) {
        Ok(text) => Some(text.trim_end().parse().map_err(|_| Refused::Garbage(text))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Refused::Store(error)),
    };
    let mut seen = before.unwrap_or_default();
    admit(&mut seen)?;
    let next = paths.next_fence();
    // If the last sync failed, the next content is there: then the same tokens are written again.
    if before != Some(seen) || next.exists() {
        let text = format!("{seen}\n");
        let written = replace(&fence, &next, text.as_bytes());
        // As long as this file is there, no admission relies on the fence being on the disk.
        written.inspect_err(|_| drop(File::create_new(&next))).map_err(Refused::Store)?;
    }
    // Sets its time to now, for `forget`, without a change: only its owner may set the time itself.
    lock.set_len(0).map_err(Refused::Store)?;
    Ok((paths, lock))
}

/// The file by its one name, and the kernel lock of its fence.
fn enter(path: &Path) -> io::Result<(FencePaths, File)> {
    loop {
        let paths = FencePaths::find(path)?;
        let lock = lock(&paths.lock())?;
        // While this waited for the lock, the path may have come to lead elsewhere.
        if FencePaths::find(path)? == paths {
            return Ok((paths, lock));
        }
    }
}

/// Permission to read or write the file: no other holder is admitted while this lives.
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
#[must_use = "other holders are kept out only while this lives"]
pub struct Admitted {
    paths: FencePaths,
    _lock: File,
}

impl Admitted {
    /// The file, by a path without links.
    pub fn path(&self) -> &Path {
        &self.paths.path
    }

    /// The text of the file.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn read(&self) -> io::Result<String> {
        fs::read_to_string(self.path())
    }

    /// Replaces the file as a whole: after a crash it is the old one or the new one. It keeps its
    /// mode, access list, group and owner. Where this process may not give a file away, the file
    /// belongs to the user of this process, and if it cannot have its group either, the group of
    /// this process gets no rights to it. Other attributes are lost.
    ///
    /// # Errors
    ///
    /// The error of the system. The file is the old one then, or, if the last sync failed, the new.
    pub fn replace(&self, content: impl AsRef<[u8]>) -> io::Result<()> {
        replace(self.path(), &self.paths.next_data(), content.as_ref())
    }
}

/// Permission to read the file: no other holder is admitted while this lives.
///
/// # Examples
///
/// ```
/// use tenure::{fence::file::{self, AdmittedReader}, FencingToken};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("stock");
/// # std::fs::write(&path, "10")?;
/// let admitted: AdmittedReader = file::admit_shared(&path, FencingToken::new(8).unwrap())?;
/// assert_eq!(admitted.read()?, "10");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "other holders are kept out only while this lives"]
pub struct AdmittedReader(Admitted);

impl AdmittedReader {
    /// The file, by a path without links.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The text of the file.
    ///
    /// # Errors
    ///
    /// The error of the system.
    pub fn read(&self) -> io::Result<String> {
        self.0.read()
    }
}

/// Removes the fence of this file, with all that belongs to it, if there was no admission for so
/// many whole days; returns whether it did. Any token is admitted then, as at first use. Blocks
/// while a holder is admitted.
///
/// **Not when the file is removed**: a holder that lost its lock could still come, be admitted, and
/// create the file again. It is safe if no holder that lost its lock so many days ago can still
/// write; 30 is a good number. 0 removes it at once: for a file that is never used again under that
/// name.
///
/// # Errors
///
/// The error of the system. That there is no fence is no error.
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
/// assert!(!file::forget(&path, 30)?); // a stale holder may still come
/// # assert!(file::forget(&path, 0)?);
/// # assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn forget(path: impl AsRef<Path>, days: u16) -> io::Result<bool> {
    let (paths, lock) = enter(path.as_ref())?;
    // After a clock was set back it seems younger than it is, which is safe.
    let age = lock.metadata()?.modified()?.elapsed().unwrap_or_default();
    if paths.fence().exists() && age < DAY * u32::from(days) {
        return Ok(false);
    }
    for leftover in [paths.fence(), paths.next_fence(), paths.next_data()] {
        remove(&leftover)?;
    }
    // Last, and while it is locked: a holder that waits for it finds out in `is_still`.
    #[cfg(unix)]
    remove(&paths.lock())?;
    drop(lock);
    Ok(true)
}

/// Opens and locks the lock file. The token's own file cannot be locked, because it is replaced by
/// another file with each token.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.lock() {
            Ok(()) if is_still(&file, path)? => return Ok(file),
            // An interruption by a signal is retried.
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
    }
}

/// Whether this is still the file of that name: while this waited for the lock, `forget` may have
/// removed it.
#[cfg(unix)]
fn is_still(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let locked = file.metadata()?;
    match fs::metadata(path) {
        Ok(named) => Ok((named.dev(), named.ino()) == (locked.dev(), locked.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The lock file is never removed on these systems.
#[cfg(not(unix))]
fn is_still(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
