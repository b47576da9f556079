//! Errors of SQLite and of the file system → [`Error`], with messages that name the file and say
//! what to try.

use std::io;
use std::path::Path;

use rusqlite::ErrorCode;

use super::store_path::StorePath;
use super::write_lock;
use crate::error::{Error, ErrorKind};

/// `SQLITE_IOERR_SHMSIZE`
const IOERR_SHMSIZE: i32 = 4874;

/// `SQLITE_IOERR_SHORT_READ`: the log says that there are pages which the file does not have.
const IOERR_SHORT_READ: i32 = 522;

/// An error of the file system about a file or folder of the store.
pub(super) fn from_io(path: &Path, error: io::Error) -> Error {
    use io::ErrorKind as Io;
    let shown = path.display();
    let (kind, message) = match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => (ErrorKind::Denied, denied(path)),
        Io::StorageFull | Io::QuotaExceeded => (ErrorKind::Unavailable, no_space(path)),
        Io::NotFound | Io::NotADirectory => {
            (ErrorKind::Invalid, format!("`{shown}` does not exist; create the folder first"))
        }
        Io::InvalidFilename | Io::InvalidInput => {
            (ErrorKind::Invalid, format!("`{shown}` cannot be the name of a file"))
        }
        _ => (ErrorKind::Unavailable, format!("cannot use `{shown}`")),
    };
    Error::new(kind, message).with_source(error)
}

/// The store was removed or replaced by another file while it was open.
pub(super) fn replaced(path: &StorePath) -> Error {
    let shown = path.file.display();
    let message = format!(
        "`{shown}` was deleted or replaced while in use; its locks are gone: connect again"
    );
    Error::new(ErrorKind::Unavailable, message)
}

pub(super) fn not_a_store(path: &Path) -> Error {
    let shown = path.display();
    let message = format!("`{shown}` is not a tenure store; name another file with `sqlite:PATH`");
    Error::new(ErrorKind::Invalid, message)
}

fn denied(path: &Path) -> String {
    format!("cannot write in `{}`; name another file with `sqlite:PATH`", path.display())
}

fn no_space(path: &Path) -> String {
    format!("no space in `{}`; free some, nothing is lost", path.display())
}

/// An error of SQLite about this store.
pub(super) fn from_sqlite(path: &StorePath, error: rusqlite::Error) -> Error {
    let shown = path.file.display();
    let Some(failure) = error.sqlite_error().copied() else {
        // A value of a type that tenure does not write into this column.
        let message = format!("`{shown}` holds what tenure did not write");
        return Error::new(ErrorKind::Internal, message).with_source(error);
    };
    let unavailable = |message: String| Error::new(ErrorKind::Unavailable, message);
    let mapped = match failure.code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => {
            unavailable(write_lock::describe(path))
        }
        ErrorCode::NotADatabase => not_a_store(&path.file),
        ErrorCode::DatabaseCorrupt => unavailable(format!(
            "`{shown}` is damaged; no lock is granted from it. With no holder running, move it away"
        )),
        ErrorCode::DiskFull => unavailable(no_space(&path.folder)),
        // The index of the log (`-shm`) could not grow.
        _ if failure.extended_code == IOERR_SHMSIZE => unavailable(no_space(&path.folder)),
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            Error::new(ErrorKind::Denied, denied(&path.folder))
        }
        ErrorCode::CannotOpen => cannot_open(path),
        ErrorCode::SystemIoFailure if failure.extended_code == IOERR_SHORT_READ => unavailable(
            format!("`{shown}` was deleted while in use; end its users and remove `{shown}-wal`"),
        ),
        ErrorCode::SystemIoFailure => unavailable(format!("cannot read or write `{shown}`")),
        _ => Error::new(ErrorKind::Internal, format!("SQLite refuses to work on `{shown}`")),
    };
    mapped.with_source(error)
}

/// The reason why SQLite cannot open its files, which it does not tell. The store file was checked
/// before; the log and its index may belong to another user.
fn cannot_open(path: &StorePath) -> Error {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let wanted = Access::READ_OK | Access::WRITE_OK;
    for file in [path.file.clone(), path.beside("-wal"), path.beside("-shm")] {
        if file.exists()
            && let Err(errno) = accessat(CWD, &file, wanted, AtFlags::EACCESS)
        {
            return from_io(&file, errno.into());
        }
    }
    let folder = accessat(CWD, &path.folder, Access::WRITE_OK, AtFlags::EACCESS);
    match folder {
        Err(errno) => from_io(&path.folder, errno.into()),
        Ok(()) => {
            let message = format!("cannot open `{}`", path.file.display());
            Error::new(ErrorKind::Unavailable, message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_file_system_has_the_kind_that_says_what_to_do() {
        use rustix::io::Errno;
        for (errno, kind, part) in [
            (Errno::ACCESS, ErrorKind::Denied, "cannot write in `/f/x`"),
            (Errno::PERM, ErrorKind::Denied, "sqlite:PATH"),
            (Errno::ROFS, ErrorKind::Denied, "cannot write in `/f/x`"),
            (Errno::NOSPC, ErrorKind::Unavailable, "no space in `/f/x`"),
            (Errno::DQUOT, ErrorKind::Unavailable, "no space in `/f/x`"),
            (Errno::NOENT, ErrorKind::Invalid, "create the folder"),
            (Errno::NAMETOOLONG, ErrorKind::Invalid, "name of a file"),
            (Errno::MFILE, ErrorKind::Unavailable, "cannot use `/f/x`"),
        ] {
            let error = from_io(Path::new("/f/x"), errno.into());
            assert_eq!(error.kind(), kind, "{errno:?}: {error}");
            assert!(error.to_string().contains(part), "{errno:?}: {error}");
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}
