//! The folder that holds what was fetched. Its programs are run, so that it matters who can write
//! to it: nobody but this user, root, and the owner of this very program.

use std::env;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The folder that holds what was fetched: `TENURE_SERVERS_DIR`; else `servers` in cargo's target
/// folder, for a program that runs from there; else `tenure/servers` in the user's cache.
pub fn dir() -> PathBuf {
    place().map_or_else(PathBuf::new, |place| place.dir)
}

/// The same, made if it is not there, and checked.
pub(crate) fn trusted_dir() -> Result<PathBuf, String> {
    let place = place().ok_or_else(|| NO_PLACE.to_owned())?;
    let made = fs::DirBuilder::new().recursive(true).mode(place.mode).create(&place.dir);
    made.map_err(|error| format!("{}: {error}", place.dir.display()))?;
    check(&place.dir, place.parents)?;
    Ok(place.dir)
}

/// Whether a file or folder in there is one that may be run or read.
pub(crate) fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|facts| {
        !facts.is_symlink() && complaint(&facts, &trusted_users(), false).is_none()
    })
}

struct Place {
    dir: PathBuf,
    /// Of folders that are made.
    mode: u32,
    /// Whether the folders above it matter. Above cargo's target folder they do not: who can change
    /// those can change the program that runs.
    parents: bool,
}

fn place() -> Option<Place> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(chosen) = set("TENURE_SERVERS_DIR") {
        // apt wants absolute paths.
        let dir = std::path::absolute(&chosen).unwrap_or(chosen);
        return Some(Place { dir, mode: 0o755, parents: true });
    }
    if let Some(target) = env::current_exe().ok().and_then(|exe| target_of(&exe)) {
        return Some(Place { dir: target.join("servers"), mode: 0o755, parents: false });
    }
    // Never a path of the machine that this program was built on.
    let absolute = |path: &PathBuf| path.is_absolute();
    let home = || env::home_dir().map(|home| home.join(".cache"));
    let cache = set("XDG_CACHE_HOME").filter(absolute).or_else(home).filter(absolute)?;
    Some(Place { dir: cache.join("tenure/servers"), mode: 0o700, parents: true })
}

/// Cargo marks its target folder with this file, wherever the user has put it.
fn target_of(exe: &Path) -> Option<PathBuf> {
    let marked = |folder: &&Path| {
        let tag = fs::read_to_string(folder.join("CACHEDIR.TAG")).unwrap_or_default();
        tag.contains("created by cargo")
    };
    exe.ancestors().skip(1).find(marked).map(Path::to_owned)
}

/// Refuses a folder to which others can write, or which others can put another in the place of.
fn check(dir: &Path, parents: bool) -> Result<(), String> {
    let show = |error: io::Error| format!("{}: {error}", dir.display());
    let real = fs::canonicalize(dir).map_err(show)?;
    let users = trusted_users();
    for (above, folder) in real.ancestors().enumerate() {
        if above > 0 && !parents {
            break;
        }
        let facts = fs::metadata(folder).map_err(show)?;
        if let Some(complaint) = complaint(&facts, &users, above > 0) {
            return Err(format!(
                "`{}` {complaint}: programs of `{}` could be anybody's; make it yours alone, or \
                 name another folder in TENURE_SERVERS_DIR",
                folder.display(),
                dir.display()
            ));
        }
    }
    Ok(())
}

/// What is wrong with the owner or mode of a file or folder. In a sticky folder above ours only
/// owners can remove and rename.
fn complaint(facts: &Metadata, users: &[u32], above: bool) -> Option<String> {
    let sticky = above && facts.mode() & 0o1000 != 0;
    if !users.contains(&facts.uid()) {
        return Some(format!("belongs to user {}", facts.uid()));
    }
    if facts.mode() & 0o002 != 0 && !sticky {
        return Some("can be written to by everybody".into());
    }
    // A user's own group has the number of the user, and nobody else in it.
    if facts.mode() & 0o020 != 0 && !sticky && !users.contains(&facts.gid()) {
        return Some(format!("can be written to by group {}", facts.gid()));
    }
    None
}

/// This user, root, the owner of this program, and in a user namespace whoever is outside of it.
fn trusted_users() -> Vec<u32> {
    let own = env::current_exe().and_then(fs::metadata).ok().map(|facts| facts.uid());
    let users = [Some(rustix::process::geteuid().as_raw()), Some(0), own, unmapped_user()];
    users.into_iter().flatten().collect()
}

/// The number by which a user namespace shows owners that it does not know.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    number.trim().parse().ok().filter(|_| !whole)
}

const NO_PLACE: &str = "there is no folder for servers: neither HOME nor XDG_CACHE_HOME is set; \
    name one in TENURE_SERVERS_DIR";

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("servers");
        fs::create_dir(&dir).unwrap();
        set(&dir, 0o755);
        assert_eq!(check(&dir, true), Ok(()), "in a sticky /tmp");
        // A shared folder as CI has them: others cannot remove what is ours, but were there first.
        for (mode, wrong) in [(0o1777, "everybody"), (0o757, "everybody")] {
            set(&dir, mode);
            let refusal = check(&dir, true).unwrap_err();
            assert!(refusal.contains(wrong) && refusal.contains("TENURE_SERVERS_DIR"), "{refusal}");
        }
        set(&dir, 0o755);
        set(folder.path(), 0o777);
        assert!(check(&dir, true).unwrap_err().contains("everybody"), "it can be replaced");
        assert_eq!(check(&dir, false), Ok(()), "beside the program itself");
        set(folder.path(), 0o700);
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let facts = fs::metadata(folder.path()).unwrap();
        assert_eq!(complaint(&facts, &[facts.uid()], false), None);
        let wrong = complaint(&facts, &[facts.uid() + 1], true);
        assert_eq!(wrong, Some(format!("belongs to user {}", facts.uid())));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(is_ours(folder.path()) && !is_ours(&link));
    }

    #[test]
    fn only_cargos_mark_makes_a_target_folder() {
        let folder = tempfile::tempdir().unwrap();
        let exe = folder.path().join("debug/deps/x");
        assert_eq!(target_of(&exe), None);
        fs::write(folder.path().join("CACHEDIR.TAG"), "of a backup").unwrap();
        assert_eq!(target_of(&exe), None);
        fs::write(folder.path().join("CACHEDIR.TAG"), "# created by cargo.").unwrap();
        assert_eq!(target_of(&exe).as_deref(), Some(folder.path()));
    }
}
