//! A fence next to a file.
//!
//! The fence of `report.csv` is `report.csv.fence`, a file with the highest token seen, replaced
//! atomically; whoever looks at it holds a kernel lock on `report.csv.fence.lock`, which stays
//! empty. Both must be kept with the file: without them any token is admitted, as at first use.
//! Keep them also when the file is removed, for a stale holder could make it anew; [`forget`]
//! removes those that nobody came to for many days.
//!
//! A file has one fence, whatever path leads to it: links are followed, and a file with a second
//! name (a hard link, or a mount of the file by itself) is refused. **A file that is renamed leaves
//! its fence behind**, and a stale holder is admitted at its new name: `admit` your token there
//! too, before you rename.
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

mod place;
mod replace;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use self::place::Place;
use self::replace::{remove, replace};
use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// Admits this token for this file, and from now on none below it.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Garbage`] if the fence's file
/// does not hold a token, [`Refused::Store`] with what the system says.
pub fn admit(path: impl AsRef<Path>, token: FencingToken) -> Result<Admitted, Refused<io::Error>> {
    let (place, lock) = enter(path.as_ref()).map_err(Refused::Store)?;
    let fence = place.fence();
    let seen = match fs::read_to_string(&fence) {
        Ok(text) => Some(text.trim_end().parse().map_err(|_| Refused::Garbage(text))?),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(Refused::Store(error)),
    };
    if let Some(seen) = seen {
        Stale::check(token, seen)?;
    }
    let next = place.next_fence();
    // The same token again may be one whose last sync failed: then the next content is there.
    if seen != Some(token) || next.exists() {
        let text = format!("{token}\n");
        let written = replace(&fence, &next, text.as_bytes());
        // As long as this stays, nobody takes the fence for one that is on the disk.
        written.inspect_err(|_| drop(File::create_new(&next))).map_err(Refused::Store)?;
    }
    // For `forget`. It is empty as before, and its time is now; to set the time itself would take
    // its owner.
    lock.set_len(0).map_err(Refused::Store)?;
    Ok(Admitted { place, _lock: lock })
}

/// The file by its one name, and the kernel lock of its fence.
fn enter(path: &Path) -> io::Result<(Place, File)> {
    loop {
        let place = Place::find(path)?;
        let lock = lock(&place.lock())?;
        // While we waited, the path may have come to lead elsewhere.
        if Place::find(path)? == place {
            return Ok((place, lock));
        }
    }
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
    place: Place,
    _lock: File,
}

impl Admitted {
    /// The file, by a path without links.
    pub fn path(&self) -> &Path {
        &self.place.path
    }

    /// Its text.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn read(&self) -> io::Result<String> {
        fs::read_to_string(self.path())
    }

    /// Replaces the file as a whole: after a crash it is the old one or the new one. It keeps its
    /// mode, access list, group and owner; where we may not give a file away, it is ours then, and
    /// if it cannot have its group either, our own group has no rights by it. Other attributes are
    /// lost.
    ///
    /// # Errors
    ///
    /// What the system says. The file is the old one then, or, if the last sync failed, the new.
    pub fn replace(&self, content: impl AsRef<[u8]>) -> io::Result<()> {
        replace(self.path(), &self.place.next(), content.as_ref())
    }
}

/// Removes the fence of this file, and what belongs to it, if nobody was admitted for so many whole
/// days; says whether. Any token is admitted then, as at first use. Waits until nobody is admitted.
///
/// **Not when the file is removed**: a holder that lost its lock could still come, be admitted, and
/// make the file anew. It is safe if no holder that lost its lock so many days ago can still write;
/// 30 is a good number. 0 removes it at once: for a file that is never used again under that name.
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
/// assert!(!file::forget(&path, 30)?); // a stale holder may still come
/// # assert!(file::forget(&path, 0)?);
/// # assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn forget(path: impl AsRef<Path>, days: u16) -> io::Result<bool> {
    let (place, lock) = enter(path.as_ref())?;
    // After a clock was set back it looks younger than it is, which is safe.
    let age = lock.metadata()?.modified()?.elapsed().unwrap_or_default();
    if place.fence().exists() && age < DAY * u32::from(days) {
        return Ok(false);
    }
    for leftover in [place.fence(), place.next_fence(), place.next()] {
        remove(&leftover)?;
    }
    // Last, and still locked: whoever waits for it finds that it is no longer the one of that name.
    #[cfg(unix)]
    remove(&place.lock())?;
    drop(lock);
    Ok(true)
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The token's file cannot be locked itself: the one that is locked would be the replaced one.
fn lock(path: &Path) -> io::Result<File> {
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.lock() {
            Ok(()) if is_still(&file, path)? => return Ok(file),
            // A signal came: whoever handles it does not know of us.
            Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error),
            _ => {}
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
