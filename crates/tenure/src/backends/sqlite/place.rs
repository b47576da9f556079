//! Where a store lies: from the URL to a checked file, and the rights that its helper files get.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::sessions::Sessions;
use super::{fault, mounts, trust};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// What the URL says about a store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// As given, or `None` for the default store of this user.
    path: Option<PathBuf>,
    /// `network=allow`: a file system that is not known to be local is taken for one.
    network: bool,
    /// `inherit=yes`: the beacon stays open across `exec`, so that a child keeps the locks alive.
    pub(super) inherit: bool,
}

impl Settings {
    pub(super) fn take(mut options: Options) -> Result<Settings> {
        let network = options.take_word("network", &["allow", "refuse"])? == Some("allow");
        let inherit = options.take_word("inherit", &["no", "yes"])? == Some("yes");
        let path = path_of(&options)?;
        options.finish()?;
        Ok(Settings { path, network, inherit })
    }
}

/// A file that may be opened as a store: there, regular, under one name, and on a local file
/// system.
#[derive(Debug)]
pub(super) struct Place {
    /// Without symbolic links, so that our files lie beside those of SQLite, which resolves them.
    pub(super) file: PathBuf,
    pub(super) folder: PathBuf,
    /// Where the helper files are.
    pub(super) sessions: Sessions,
    id: (u64, u64),
}

impl Place {
    /// Finds the file, or makes an empty one that only its owner can read.
    pub(super) fn prepare(settings: &Settings) -> Result<Place> {
        let asked = match &settings.path {
            Some(path) => path.clone(),
            None => default_path()?,
        };
        let file = canonical(&asked)?;
        let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
        mounts::check_folder(&folder, settings.network)?;
        let facts = find_or_create(&file, &folder)?;
        check_file(&file, &facts)?;
        mounts::check_file(&file)?;
        trust::check_way(&folder, facts.uid())?;
        let sessions = Sessions::beside(&file, (facts.uid(), facts.gid()), facts.mode());
        let sessions = sessions.map_err(|error| fault::from_io(&folder, error))?;
        Ok(Place { folder, sessions, id: (facts.dev(), facts.ino()), file })
    }

    /// Whether the file under our name is still the one that we opened.
    ///
    /// Any other error than its absence says nothing about that; the next statement will.
    pub(super) fn is_in_place(&self) -> bool {
        match fs::symlink_metadata(&self.file) {
            Ok(facts) => (facts.dev(), facts.ino()) == self.id,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// One of SQLite's files beside ours: `-wal` or `-shm`.
    pub(super) fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(ending);
        name.into()
    }
}

fn path_of(options: &Options) -> Result<Option<PathBuf>> {
    let path = options.path();
    match options.authority() {
        Some("") if options.user().is_none() && path.len() > 1 => {}
        Some("") if path.is_empty() || path == "/" => {
            return Err(invalid("`sqlite://` names no file; `sqlite:` is the default store"));
        }
        Some(host) => {
            return Err(invalid(format!(
                "`sqlite://{host}{path}` names a host; write `sqlite:{host}{path}` for a file in \
                 the working directory, `sqlite:///…` for an absolute path"
            )));
        }
        None if path.is_empty() => return Ok(None),
        None => {}
    }
    if path == ":memory:" {
        return Err(invalid("`sqlite::memory:` would lock nobody out; use `memory:`"));
    }
    if path.starts_with('~') {
        return Err(invalid(format!("`~` is not expanded in `sqlite:{path}`; write the path out")));
    }
    if path.contains('\0') {
        return Err(invalid("the path in the sqlite URL has a zero byte in it"));
    }
    if path.ends_with('/') {
        return Err(invalid(format!("`{path}` is a folder; name a file in it")));
    }
    Ok(Some(path.into()))
}

/// `${XDG_STATE_HOME:-~/.local/state}/tenure/locks.db`, and its folder.
fn default_path() -> Result<PathBuf> {
    let absolute = |path: &PathBuf| path.is_absolute();
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).filter(absolute);
    let home = || std::env::home_dir().filter(absolute).map(|home| home.join(".local/state"));
    let advice = "cannot find the home folder of this user; name a file with `sqlite:PATH`";
    let folder = state.or_else(home).ok_or_else(|| invalid(advice))?.join("tenure");
    // Before the first folder is made: it would be root's, and no longer tell whose home it is in.
    if let Some(there) = folder.ancestors().find(|folder| folder.exists()) {
        trust::refuse_foreign_folder(there)?;
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| fault::from_io(&folder, error))?;
    Ok(folder.join("locks.db"))
}

fn canonical(asked: &Path) -> Result<PathBuf> {
    match fs::canonicalize(asked) {
        Ok(file) => return Ok(file),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(fault::from_io(asked, error)),
    }
    let shown = asked.display();
    // A file that is there now was made meanwhile, and has the name that is found below.
    if fs::symlink_metadata(asked).is_ok_and(|facts| facts.is_symlink()) {
        return Err(invalid(format!("`{shown}` is a symbolic link to a file that does not exist")));
    }
    let Some(name) = asked.file_name() else {
        return Err(invalid(format!("`{shown}` names no file")));
    };
    let folder = match asked.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    match fs::canonicalize(folder) {
        Ok(folder) => Ok(folder.join(name)),
        Err(error) => Err(fault::from_io(folder, error)),
    }
}

fn find_or_create(file: &Path, folder: &Path) -> Result<Metadata> {
    if let Ok(facts) = fs::symlink_metadata(file) {
        return Ok(facts);
    }
    trust::refuse_foreign_folder(folder)?;
    match create(file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fault::from_io(folder, error)),
    }
    fs::symlink_metadata(file).map_err(|error| fault::from_io(file, error))
}

/// Makes the file without opening it: to close a descriptor of a database would drop the locks that
/// SQLite holds on it for another connection of this process.
#[cfg(target_os = "linux")]
fn create(file: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    Ok(mknodat(CWD, file, FileType::RegularFile, Mode::RUSR | Mode::WUSR, 0)?)
}

#[cfg(not(target_os = "linux"))]
fn create(file: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(file).map(drop)
}

fn check_file(file: &Path, facts: &Metadata) -> Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    let shown = file.display();
    if !facts.is_file() {
        return Err(invalid(format!("`{shown}` is not a regular file; name another")));
    }
    if facts.nlink() > 1 {
        // A second name would get a second log, and would not see who holds what.
        return Err(invalid(format!(
            "`{shown}` has a second name (hard link); remove one of them"
        )));
    }
    if (1..SMALLEST).contains(&facts.len()) {
        // SQLite would take it for an empty database and write over it.
        return Err(fault::not_a_store(file));
    }
    // SQLite would say only that it cannot open the file.
    accessat(CWD, file, Access::READ_OK | Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(|errno| fault::from_io(file, errno.into()))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// The smallest page of a SQLite database, in bytes.
const SMALLEST: u64 = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<Settings> {
        Settings::take(Options::parse(url).unwrap())
    }

    #[test]
    fn a_path_is_relative_absolute_or_the_default() {
        let path = |url| settings(url).unwrap().path;
        assert_eq!(path("sqlite:"), None);
        assert_eq!(path("sqlite:x.db"), Some("x.db".into()));
        assert_eq!(path("sqlite:./a%20b/x.db"), Some("./a b/x.db".into()));
        assert_eq!(path("sqlite:/abs/x.db"), Some("/abs/x.db".into()));
        assert_eq!(path("sqlite:///abs/x.db"), Some("/abs/x.db".into()));
    }

    #[test]
    fn a_url_that_reads_otherwise_is_refused_with_a_hint() {
        for (url, hint) in [
            ("sqlite://rel.db", "`sqlite:rel.db`"),
            ("sqlite://rel/x.db", "`sqlite:rel/x.db`"),
            ("sqlite://", "`sqlite:`"),
            ("sqlite::memory:", "`memory:`"),
            ("sqlite:~/x.db", "write the path out"),
            ("sqlite:a/", "name a file"),
            ("sqlite:a%00b", "zero byte"),
            ("sqlite:x.db?network=yes", "it can be: allow, refuse"),
            ("sqlite:x.db?ttl=5s", "known: inherit, network"),
        ] {
            let error = settings(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}");
            assert!(error.to_string().contains(hint), "{url}: {error}");
        }
    }

    #[test]
    fn options_are_off_unless_asked_for() {
        let plain = settings("sqlite:x").unwrap();
        assert!(!plain.network && !plain.inherit);
        let both = settings("sqlite:x?network=allow&inherit=yes").unwrap();
        assert!(both.network && both.inherit);
    }
}
