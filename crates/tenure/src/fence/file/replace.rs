//! Replaces a file as a whole, and keeps its rights.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

#[cfg(target_os = "linux")]
const ACCESS_LIST: &str = "system.posix_acl_access";

/// Replaces `path` by way of `new`, a name beside it that no other program uses. After a crash it
/// is the old one or the new one. The rights of the old one are kept, and never widened.
pub(super) fn replace(path: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    let old = match fs::symlink_metadata(path) {
        Ok(old) => Some(old),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // A holder that crashed may have left it. If it is a link, only the link is removed.
    remove(new)?;
    let mut file = create(new, old.is_some())?;
    if let Some(old) = &old {
        keep_rights(&file, path, old)?;
    }
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(new, path)?;
    sync_folder(path)
}

pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Follows no link. A file that replaces another is for its owner only until it has the other's
/// rights.
#[cfg(unix)]
fn create(path: &Path, replaces: bool) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = File::options();
    options.write(true).create_new(true);
    if replaces {
        options.mode(0o600);
    }
    options.open(path)
}

#[cfg(not(unix))]
fn create(path: &Path, _: bool) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

/// Gives the new file the owner and group of the old one, as far as this process may, its access
/// list and its mode. If the file cannot have its group, the group of this process gets no rights.
#[cfg(unix)]
fn keep_rights(file: &File, old_path: &Path, old: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};

    let new = file.metadata()?;
    let mut mode = old.mode() & 0o7777;
    let is_permitted = |result: io::Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(false),
        other => other.map(|()| true),
    };
    if (old.uid(), old.gid()) != (new.uid(), new.gid())
        && !is_permitted(fchown(file, Some(old.uid()), Some(old.gid())))?
    {
        // Set-id bits must not apply to the user of this process, nor the rights of the old group
        // to the group of this process.
        mode &= !0o6000;
        if !is_permitted(fchown(file, None, Some(old.gid())))? {
            mode &= !0o070;
        }
    }
    copy_access_list(file, old_path)?;
    // After the owner, because a new owner clears some bits; and after the list, because the mode
    // sets its mask.
    file.set_permissions(fs::Permissions::from_mode(mode))
}

#[cfg(not(unix))]
fn keep_rights(file: &File, _: &Path, old: &fs::Metadata) -> io::Result<()> {
    file.set_permissions(old.permissions())
}

/// Copies the access list. Without it the mask of the list would become the rights of the group.
#[cfg(target_os = "linux")]
fn copy_access_list(file: &File, old: &Path) -> io::Result<()> {
    use rustix::fs::{XattrFlags, fsetxattr, lgetxattr};
    use rustix::io::Errno;

    let mut list = vec![0; 64 * 1024];
    match lgetxattr(old, ACCESS_LIST, &mut list) {
        Ok(length) => {
            list.truncate(length);
            Ok(fsetxattr(file, ACCESS_LIST, &list, XattrFlags::empty())?)
        }
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn copy_access_list(_: &File, _: &Path) -> io::Result<()> {
    Ok(())
}

/// A rename is on the disk when its folder is.
#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A folder cannot be opened on these systems; the file system's own journal has the rename.
#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}
