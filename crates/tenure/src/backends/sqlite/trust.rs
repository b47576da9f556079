//! Whose folders root may work in. Everybody else is kept out by the rights of the folders.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::process::geteuid;

use super::fault;
use crate::error::{Error, ErrorKind, Result};

/// `sudo` may keep `HOME`: root must not leave files in a user's folder that the user cannot open.
pub(super) fn refuse_foreign_folder(folder: &Path) -> Result<()> {
    let facts = fs::metadata(folder).map_err(|error| fault::from_io(folder, error))?;
    match is_foreign(geteuid().is_root(), facts.uid(), facts.mode()) {
        false => Ok(()),
        true => Err(denied(format!(
            "`{}` belongs to user {}, and root would leave a store there that this user cannot \
             open; run as that user, or name another file with `sqlite:PATH`",
            folder.display(),
            facts.uid()
        ))),
    }
}

fn is_foreign(root: bool, owner: u32, mode: u32) -> bool {
    root && owner != 0 && mode & SHARED == 0
}

/// Whether root may open the store of this owner by its path, as SQLite does, which also makes two
/// files beside it and gives them to the owner of the store.
///
/// Who can write in the folder can put links there, which SQLite does not follow, and hard links,
/// which the kernel has to refuse. Who can write in a folder *above* could lead SQLite into a
/// folder of root's between two of its steps.
pub(super) fn check_way(folder: &Path, owner: u32) -> Result<()> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let facts = |path: &Path| fs::metadata(path).map_err(|error| fault::from_io(path, error));
    let unmapped = unmapped_user();
    let own = facts(folder)?;
    if !is_roots(own.uid(), own.mode(), None) && !links_are_protected() {
        return Err(denied(format!(
            "others than root can write in `{}`, and this kernel lets them link files of root's \
             there; set the sysctl `fs.protected_hardlinks` to 1",
            folder.display()
        )));
    }
    for above in folder.ancestors().skip(1).filter(|_| owner != 0) {
        let facts = facts(above)?;
        let sticky = if facts.mode() & STICKY == 0 { facts.mode() } else { 0 };
        if !is_roots(facts.uid(), sticky, unmapped) {
            return Err(denied(format!(
                "others than root can change `{}`, the way to a store of user {owner}; run as \
                 that user, or name another file with `sqlite:PATH`",
                above.display()
            )));
        }
    }
    Ok(())
}

/// Whether nobody but root can change what is in a folder.
fn is_roots(owner: u32, mode: u32, trusted: Option<u32>) -> bool {
    (owner == 0 || Some(owner) == trusted) && mode & SHARED == 0
}

/// The number by which a user namespace shows owners that it does not know: they are outside of it,
/// and not users whom root inside has to fear.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    number.trim().parse().ok().filter(|_| !whole)
}

/// Whether users can make hard links only to files that they may write anyway.
fn links_are_protected() -> bool {
    let set = fs::read_to_string("/proc/sys/fs/protected_hardlinks");
    // Other systems than Linux have no such switch, and some no such links.
    set.map_or(!cfg!(target_os = "linux"), |set| set.trim() != "0")
}

fn denied(message: String) -> Error {
    Error::new(ErrorKind::Denied, message)
}

/// Writable by the group or by all.
const SHARED: u32 = 0o022;

/// Only their owners can remove or rename the entries of such a folder.
const STICKY: u32 = 0o1000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_makes_no_store_in_a_private_folder_of_somebody_else() {
        assert!(is_foreign(true, 1000, 0o40700));
        assert!(is_foreign(true, 1000, 0o40755));
        assert!(!is_foreign(true, 1000, 0o42770), "shared with a group");
        assert!(!is_foreign(true, 0, 0o40700), "root's own");
        assert!(!is_foreign(false, 0, 0o41777), "/tmp");
    }

    #[test]
    fn a_folder_is_roots_if_nobody_else_can_write_in_it() {
        assert!(is_roots(0, 0o40755, None));
        assert!(!is_roots(0, 0o42770, None), "its group can");
        assert!(!is_roots(1000, 0o40700, None));
        assert!(!is_roots(65534, 0o40755, None), "a user as any other");
        assert!(is_roots(65534, 0o40755, Some(65534)), "outside of the namespace");
    }
}
