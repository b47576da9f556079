//! The folder of fetched servers. Its programs are executed, so only this user, root and the owner
//! of this program may write to it.

use std::env;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The error where no folder can be found.
const NO_LOCATION: &str = "there is no folder for servers: neither HOME nor XDG_CACHE_HOME is set; \
    name one in TENURE_SERVERS_DIR";

/// The folder of fetched servers: `TENURE_SERVERS_DIR`; otherwise `servers` in cargo's target
/// folder, for a program that runs from there; otherwise `tenure/servers` in the user's cache.
pub fn dir() -> PathBuf {
    location().map_or_else(PathBuf::new, |location| location.dir)
}

/// The folder of fetched servers. It is created if it does not exist, and its owner and mode are
/// checked.
pub(crate) fn trusted_dir() -> Result<PathBuf, String> {
    let location = location().ok_or_else(|| NO_LOCATION.to_owned())?;
    let made = fs::DirBuilder::new().recursive(true).mode(location.mode).create(&location.dir);
    made.map_err(|error| format!("{}: {error}", location.dir.display()))?;
    check(&location.dir, location.check_parents)?;
    Ok(location.dir)
}

/// Whether a file or folder in the cache may be executed or read.
pub(crate) fn is_trusted(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|facts| {
        !facts.is_symlink() && problem(&facts, &trusted_users(), false).is_none()
    })
}

struct Location {
    dir: PathBuf,
    /// The mode of folders that are created.
    mode: u32,
    /// Whether the folders above it are checked. Not above cargo's target folder: a user who can
    /// change those can also change this program.
    check_parents: bool,
}

fn location() -> Option<Location> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(chosen) = set("TENURE_SERVERS_DIR") {
        // apt requires absolute paths.
        let dir = std::path::absolute(&chosen).unwrap_or(chosen);
        return Some(Location { dir, mode: 0o755, check_parents: true });
    }
    if let Some(target) = env::current_exe().ok().and_then(|exe| target_of(&exe)) {
        return Some(Location { dir: target.join("servers"), mode: 0o755, check_parents: false });
    }
    // Never a path of the machine that this program was built on.
    let absolute = |path: &PathBuf| path.is_absolute();
    let home = || env::home_dir().map(|home| home.join(".cache"));
    let cache = set("XDG_CACHE_HOME").filter(absolute).or_else(home).filter(absolute)?;
    Some(Location { dir: cache.join("tenure/servers"), mode: 0o700, check_parents: true })
}

/// Cargo's target folder above a program, found by the tag file that cargo puts into it.
fn target_of(exe: &Path) -> Option<PathBuf> {
    let marked = |folder: &&Path| {
        let tag = fs::read_to_string(folder.join("CACHEDIR.TAG")).unwrap_or_default();
        tag.contains("created by cargo")
    };
    exe.ancestors().skip(1).find(marked).map(Path::to_owned)
}

/// Refuses a folder that other users can write to or replace.
fn check(dir: &Path, check_parents: bool) -> Result<(), String> {
    let show = |error: io::Error| format!("{}: {error}", dir.display());
    let real = fs::canonicalize(dir).map_err(show)?;
    let users = trusted_users();
    for (above, folder) in real.ancestors().enumerate() {
        if above > 0 && !check_parents {
            break;
        }
        let facts = fs::metadata(folder).map_err(show)?;
        if let Some(problem) = problem(&facts, &users, above > 0) {
            return Err(format!(
                "`{}` {problem}: other users could change programs of `{}`; make it yours alone, \
                 or name another folder in TENURE_SERVERS_DIR",
                folder.display(),
                dir.display()
            ));
        }
    }
    Ok(())
}

/// What is wrong with the owner or mode of a file or folder. In a sticky folder above the cache
/// only owners can remove and rename.
fn problem(facts: &Metadata, users: &[u32], above: bool) -> Option<String> {
    let sticky = above && facts.mode() & 0o1000 != 0;
    if !users.contains(&facts.uid()) {
        return Some(format!("belongs to user {}", facts.uid()));
    }
    if facts.mode() & 0o002 != 0 && !sticky {
        return Some("can be written to by all users".into());
    }
    // A user's private group has the number of the user and no other member.
    if facts.mode() & 0o020 != 0 && !sticky && !users.contains(&facts.gid()) {
        return Some(format!("can be written to by group {}", facts.gid()));
    }
    None
}

/// This user, root, the owner of this program, and in a user namespace the users outside of it.
fn trusted_users() -> Vec<u32> {
    let own = env::current_exe().and_then(fs::metadata).ok().map(|facts| facts.uid());
    let users = [Some(rustix::process::geteuid().as_raw()), Some(0), own, unmapped_user()];
    users.into_iter().flatten().collect()
}

/// The user id that a user namespace shows for owners outside of it.
fn unmapped_user() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    let number = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    number.trim().parse().ok().filter(|_| !whole)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_other_users_can_write_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("servers");
        fs::create_dir(&dir).unwrap();
        set(&dir, 0o755);
        assert_eq!(check(&dir, true), Ok(()), "in a sticky /tmp");
        // A shared folder, as on CI: other users cannot remove files, but may have created them.
        for (mode, wrong) in [(0o1777, "all users"), (0o757, "all users")] {
            set(&dir, mode);
            let refusal = check(&dir, true).unwrap_err();
            assert!(refusal.contains(wrong) && refusal.contains("TENURE_SERVERS_DIR"), "{refusal}");
        }
        set(&dir, 0o755);
        set(folder.path(), 0o777);
        assert!(check(&dir, true).unwrap_err().contains("all users"), "it can be replaced");
        assert_eq!(check(&dir, false), Ok(()), "beside the program itself");
        set(folder.path(), 0o700);
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let facts = fs::metadata(folder.path()).unwrap();
        assert_eq!(problem(&facts, &[facts.uid()], false), None);
        let wrong = problem(&facts, &[facts.uid() + 1], true);
        assert_eq!(wrong, Some(format!("belongs to user {}", facts.uid())));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(is_trusted(folder.path()) && !is_trusted(&link));
    }

    #[test]
    fn only_cargos_tag_file_marks_a_target_folder() {
        let folder = tempfile::tempdir().unwrap();
        let exe = folder.path().join("debug/deps/x");
        assert_eq!(target_of(&exe), None);
        fs::write(folder.path().join("CACHEDIR.TAG"), "of a backup").unwrap();
        assert_eq!(target_of(&exe), None);
        fs::write(folder.path().join("CACHEDIR.TAG"), "# created by cargo.").unwrap();
        assert_eq!(target_of(&exe).as_deref(), Some(folder.path()));
    }
}
