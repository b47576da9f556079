//! Which folders root may use a store in. Other users are kept out by the modes of the folders.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::error::from_io;
use crate::error::{Error, ErrorKind, Result};

/// Writable by the group or by all.
const SHARED: u32 = 0o022;

/// Only their owners can remove or rename the entries of such a folder.
const STICKY: u32 = 0o1000;

/// Refuses to let root create a store in a private folder of another user: `sudo` may keep `HOME`,
/// and that user could not open the files.
pub(super) fn refuse_foreign_folder(folder: &Path) -> Result<()> {
    let metadata = fs::metadata(folder).map_err(|error| from_io(folder, error))?;
    if !is_foreign(geteuid().is_root(), metadata.uid(), metadata.mode()) {
        return Ok(());
    }
    Err(denied(format!(
        "`{}` belongs to user {}, and root would leave a store there that this user cannot open; \
         run as that user, or name another file with `sqlite:PATH`",
        folder.display(),
        metadata.uid()
    )))
}

fn is_foreign(root: bool, owner: u32, mode: u32) -> bool {
    root && owner != 0 && mode & SHARED == 0
}

/// Checks that root may open the store of this owner by its path, as SQLite does. SQLite also
/// creates two files beside the store and gives them to its owner.
///
/// A user that can write in the folder can put symbolic links there, which SQLite does not follow,
/// and hard links, which the kernel has to refuse. A user that can write in a folder *above* could
/// lead SQLite into a folder of root's between two of its steps.
pub(super) fn check_ancestors(folder: &Path, owner: u32) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let metadata = |path: &Path| fs::metadata(path).map_err(|error| from_io(path, error));
    let unmapped = unmapped_user();
    let own = metadata(folder)?;
    if !is_roots(own.uid(), own.mode(), None) && !links_are_protected() {
        return Err(denied(format!(
            "others than root can write in `{}`, and this kernel lets them link files of root's \
             there; set the sysctl `fs.protected_hardlinks` to 1",
            folder.display()
        )));
    }
    for above in folder.ancestors().skip(1).filter(|_| owner != 0) {
        let metadata = metadata(above)?;
        let sticky = metadata.mode() & STICKY != 0;
        let mode = if sticky { 0 } else { metadata.mode() };
        if !is_roots(metadata.uid(), mode, unmapped) {
            return Err(denied(format!(
                "others than root can change `{}`, which leads to a store of user {owner}; run as \
                 that user, or name another file with `sqlite:PATH`",
                above.display()
            )));
        }
    }
    Ok(())
}

/// Whether only root can change what is in a folder.
fn is_roots(owner: u32, mode: u32, trusted: Option<u32>) -> bool {
    (owner == 0 || Some(owner) == trusted) && mode & SHARED == 0
}

/// The number by which a user namespace shows owners that it does not know. They are outside of it,
/// so that root inside need not protect itself from them.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    number.trim().parse().ok().filter(|_| !whole)
}

/// Whether users can make hard links only to files that they may write anyway.
fn links_are_protected() -> bool {
    let set = fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    // Systems other than Linux have no such switch, and some have no such links.
    set.map_or(!cfg!(target_os = "linux"), |set| set.trim() != "0")
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_creates_no_store_in_a_private_folder_of_another_user() {
        assert!(is_foreign(true, 1000, 0o40700));
        assert!(is_foreign(true, 1000, 0o40755));
        assert!(!is_foreign(true, 1000, 0o42770), "shared with a group");
        assert!(!is_foreign(true, 0, 0o40700), "root's own");
        assert!(!is_foreign(false, 0, 0o41777), "/tmp");
    }

    #[test]
    fn a_folder_is_roots_if_only_root_can_write_in_it() {
        assert!(is_roots(0, 0o40755, None));
        assert!(!is_roots(0, 0o42770, None), "its group can");
        assert!(!is_roots(1000, 0o40700, None));
        assert!(!is_roots(65534, 0o40755, None), "a user as any other");
        assert!(is_roots(65534, 0o40755, Some(65534)), "outside of the namespace");
    }
}
