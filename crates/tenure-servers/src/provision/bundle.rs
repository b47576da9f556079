//! A bundle: a server with every library it needs, unpacked into one folder of the cache. It is
//! made at most once, also if several processes need it at the same time.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rustix::fs::OFlags;

use super::{Newest, Origin, apt, deb, dir, installed, is_trusted, trusted_dir};
use crate::error::{Error, Result};

/// The list of packages in a bundle.
const MANIFEST: &str = "MANIFEST";
/// The file that marks a complete bundle, with its recipe.
const STAMP: &str = "COMPLETE";

/// A server that can be fetched.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Bundle {
    Consul,
    Etcd,
    /// The Java that runs ZooKeeper.
    Jre,
    Mariadb,
    Mysql,
    Postgres,
    Redis,
    Redis8,
    Valkey,
    Zookeeper,
}

impl Bundle {
    /// Every bundle.
    pub const ALL: [Self; 10] = [
        Self::Consul,
        Self::Etcd,
        Self::Jre,
        Self::Mariadb,
        Self::Mysql,
        Self::Postgres,
        Self::Redis,
        Self::Redis8,
        Self::Valkey,
        Self::Zookeeper,
    ];

    /// The name, which is also that of its folder, unless the newest servers are used.
    pub fn name(self) -> &'static str {
        match self {
            Self::Consul => "consul",
            Self::Etcd => "etcd",
            Self::Jre => "jre",
            Self::Mariadb => "mariadb",
            Self::Mysql => "mysql",
            Self::Postgres => "postgres",
            Self::Redis => "redis",
            Self::Redis8 => "redis8",
            Self::Valkey => "valkey",
            Self::Zookeeper => "zookeeper",
        }
    }

    /// The program of the host that is used instead, and its version, if there is a supported one.
    pub fn on_host(self) -> Option<(PathBuf, String)> {
        if Origin::allowed_for(self).is_ok_and(|origin| origin == Origin::Bundle) {
            return None;
        }
        let (path, (major, minor)) = installed::find(self)?;
        Some((path, format!("{major}.{minor}")))
    }

    /// The version that was fetched; `None` if the bundle was not fetched.
    pub fn fetched(self) -> Option<String> {
        let root = root_of(&dir(), self);
        is_complete(&root, self).then(|| {
            let manifest = fs::read_to_string(root.join(MANIFEST)).unwrap_or_default();
            // The server's own package is the first of its list, so it is the first line.
            let package = manifest.lines().next().unwrap_or_default();
            package.split('_').nth(1).unwrap_or("unknown").replace("%3a", ":")
        })
    }
}

/// The folder of a bundle. The bundle is fetched if it does not exist yet.
pub(crate) fn fetch(bundle: Bundle) -> Result<PathBuf> {
    // A failure is remembered: otherwise, without a network, every case would wait for the same
    // timeout.
    static FAILED: Mutex<Option<HashMap<Bundle, Error>>> = Mutex::new(None);

    let refused = |reason| Error::failed(format!("get {}", bundle.name()), reason);
    let dir = trusted_dir().map_err(refused)?;
    let root = root_of(&dir, bundle);
    if is_complete(&root, bundle) {
        return Ok(root);
    }
    let mut failed = FAILED.lock().unwrap_or_else(|poison| poison.into_inner());
    let failed = failed.get_or_insert_default();
    if let Some(error) = failed.get(&bundle) {
        return Err(error.clone());
    }
    make(bundle, &dir, &root).map_err(|mut reason| {
        match bundle {
            Bundle::Consul => {
                reason.push_str("; only Debian bullseye has it, but any consul on PATH works");
            }
            Bundle::Mysql => {
                reason
                    .push_str("; only Debian sid has it, but a mysqld 8.0 or newer on PATH works");
            }
            _ => {}
        }
        let error = Error::missing(bundle.name(), reason);
        failed.insert(bundle, error.clone());
        error
    })?;
    Ok(root)
}

fn make(bundle: Bundle, dir: &Path, root: &Path) -> Result<(), String> {
    let _lock = lock_bundle(dir, bundle)?;
    if is_complete(root, bundle) {
        return Ok(());
    }
    let work = dir.join(format!("{}.part", folder_of(bundle)));
    let result = make_in(bundle, &work, root);
    // Also after a failure: an incomplete bundle is of no use.
    drop(fs::remove_dir_all(&work));
    result
}

fn make_in(bundle: Bundle, work: &Path, root: &Path) -> Result<(), String> {
    let show = |error: io::Error| format!("{}: {error}", work.display());
    if work.exists() {
        // Left by a process that was killed: this process has its lock now.
        fs::remove_dir_all(work).map_err(show)?;
    }
    let packages = work.join("packages");
    let fresh = work.join("root");
    fs::create_dir_all(&packages).map_err(show)?;
    fs::create_dir_all(&fresh).map_err(show)?;

    let bytes = apt::download(bundle, &packages)?;
    let names = deb::unpack(bundle, &packages, &fresh)?;
    fs::write(fresh.join(MANIFEST), format!("{}\n{bytes} bytes\n", names.join("\n")))
        .map_err(show)?;
    fs::write(fresh.join(STAMP), deb::recipe(bundle)).map_err(show)?;

    if root.exists() {
        fs::remove_dir_all(root).map_err(show)?;
    }
    fs::rename(&fresh, root).map_err(show)?;
    report(bundle, &format!("ready, {} of packages", megabytes(bytes)));
    Ok(())
}

/// Waits until no other process makes this bundle. The lock is held until the file is dropped.
fn lock_bundle(dir: &Path, bundle: Bundle) -> Result<File, String> {
    let path = dir.join(format!("{}.lock", folder_of(bundle)));
    let lock = lock_file(&path)?;
    if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        report(bundle, "waiting for another process that fetches it");
        lock.lock().map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(lock)
}

/// Opens a lock file. It is never removed, because all waiting processes must lock the same file.
pub(super) fn lock_file(path: &Path) -> Result<File, String> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).custom_flags(flags).open(path);
    file.map_err(|error| format!("{}: {error}", path.display()))
}

/// Reports progress. Written to stderr itself, which test harnesses do not capture.
pub(super) fn report(bundle: Bundle, text: &str) {
    // A closed stderr is no reason to fail.
    drop(writeln!(io::stderr(), "tenure-servers: {}: {text}", bundle.name()));
}

pub(super) fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

/// The folder of a bundle. A folder that was made with another recipe is not changed, because
/// servers of another process may run from it; then this bundle gets another name.
fn root_of(dir: &Path, bundle: Bundle) -> PathBuf {
    let folder = folder_of(bundle);
    let plain = dir.join(&folder);
    if !plain.exists() || is_complete(&plain, bundle) {
        return plain;
    }
    let mut hasher = DefaultHasher::new();
    deb::recipe(bundle).hash(&mut hasher);
    dir.join(format!("{folder}-{:016x}", hasher.finish()))
}

/// The name of the folder in the cache. The newest servers have separate folders.
fn folder_of(bundle: Bundle) -> String {
    if Newest::from_env().concerns(bundle) {
        format!("{}-newest", bundle.name())
    } else {
        bundle.name().to_owned()
    }
}

fn is_complete(root: &Path, bundle: Bundle) -> bool {
    let stamp = fs::read_to_string(root.join(STAMP));
    is_trusted(root) && stamp.is_ok_and(|stamp| stamp == deb::recipe(bundle))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bundle_of_another_recipe_is_not_changed() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("redis");
        assert_eq!(root_of(dir.path(), Bundle::Redis), plain);
        fs::create_dir(&plain).unwrap();
        fs::write(plain.join(STAMP), "another recipe").unwrap();
        let own = root_of(dir.path(), Bundle::Redis);
        assert_ne!(own, plain, "it would be removed while other processes use it");
        assert_eq!(root_of(dir.path(), Bundle::Redis), own);
        fs::write(plain.join(STAMP), deb::recipe(Bundle::Redis)).unwrap();
        assert_eq!(root_of(dir.path(), Bundle::Redis), plain);
    }

    #[test]
    fn a_lock_file_that_is_a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("redis.lock");
        std::os::unix::fs::symlink(dir.path().join("made"), &link).unwrap();
        assert!(lock_file(&link).is_err());
        assert!(!dir.path().join("made").exists());
    }
}
