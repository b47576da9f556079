//! Where a store lies: from the URL to a checked file, and the rights that its helper files get.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::fault;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// What the URL says about a store.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// As given, or `None` for the default store of this user.
    path: Option<PathBuf>,
    /// `network=allow`: a FUSE mount is taken for a local one.
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
    /// Beacons and bells, one of each a session.
    pub(super) sessions: PathBuf,
    pub(super) modes: Modes,
    /// Of the file: root hands its helper files to them.
    owner: (u32, u32),
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
        refuse_network(&folder, settings.network)?;
        let facts = find_or_create(&file, &folder)?;
        check_file(&file, &facts)?;
        let mut sessions = file.clone().into_os_string();
        sessions.push(".d");
        Ok(Place {
            folder,
            sessions: sessions.into(),
            modes: Modes::beside(facts.mode()),
            owner: (facts.uid(), facts.gid()),
            id: (facts.dev(), facts.ino()),
            file,
        })
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

    /// Makes the folder of the sessions.
    pub(super) fn make_sessions(&self) -> io::Result<()> {
        match fs::DirBuilder::new().mode(self.modes.folder).create(&self.sessions) {
            Ok(()) => self.adopt(&self.sessions, self.modes.folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives a new helper file the rights that go with the store's own, whatever the umask was, and
    /// from root to the owner of the store.
    pub(super) fn adopt(&self, path: &Path, mode: u32) -> io::Result<()> {
        use std::os::unix::fs::{PermissionsExt, chown};
        if self.owner.0 != 0 && rustix::process::geteuid().is_root() {
            chown(path, Some(self.owner.0), Some(self.owner.1))?;
        }
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }
}

/// Rights of the helper files, taken from the store's own: who may use the store may use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Modes {
    pub(super) folder: u32,
    /// To probe a beacon is to read it.
    pub(super) beacon: u32,
    /// To ring a bell is to write to it.
    pub(super) bell: u32,
}

impl Modes {
    fn beside(file: u32) -> Modes {
        let shared = |bits: u32| file & bits == bits;
        let mut modes = Modes { folder: 0o700, beacon: 0o600, bell: 0o600 };
        if shared(0o060) {
            // With the group of the folder, not of whoever happened to come first.
            modes.folder |= 0o2070;
            modes.beacon |= 0o040;
            modes.bell |= 0o060;
        }
        if shared(0o006) {
            modes.folder |= 0o007;
            modes.beacon |= 0o004;
            modes.bell |= 0o006;
        }
        modes
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
    if let Ok(facts) = fs::metadata(file) {
        return Ok(facts);
    }
    refuse_foreign_folder(folder)?;
    match create(file) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(fault::from_io(folder, error)),
    }
    fs::metadata(file).map_err(|error| fault::from_io(file, error))
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

/// `sudo` may keep `HOME`: root must not leave files in a user's folder that the user cannot open.
fn refuse_foreign_folder(folder: &Path) -> Result<()> {
    let facts = fs::metadata(folder).map_err(|error| fault::from_io(folder, error))?;
    let root = rustix::process::geteuid().is_root();
    match is_foreign(root, facts.uid(), facts.mode()) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorKind::Denied,
            format!(
                "`{}` belongs to user {}, and root would leave a store there that this user cannot \
                 open; run as that user, or name another file with `sqlite:PATH`",
                folder.display(),
                facts.uid()
            ),
        )),
    }
}

/// Everybody else than root is kept out by the folder's own rights.
fn is_foreign(root: bool, owner: u32, mode: u32) -> bool {
    root && owner != 0 && mode & 0o022 == 0
}

#[cfg(target_os = "linux")]
fn refuse_network(folder: &Path, allow: bool) -> Result<()> {
    let facts = rustix::fs::statfs(folder).map_err(|errno| fault::from_io(folder, errno.into()))?;
    // Magic numbers have 32 bits; on some machines they come sign-extended.
    refuse_file_system(folder, facts.f_type as u32, allow)
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_folder: &Path, _allow: bool) -> Result<()> {
    Ok(())
}

#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the numbers are Linux's"))]
fn refuse_file_system(folder: &Path, magic: u32, allow: bool) -> Result<()> {
    let Some((_, name)) = NETWORK.iter().find(|(known, _)| *known == magic) else {
        return Ok(());
    };
    let advice = match *name {
        "FUSE" if allow => return Ok(()),
        "FUSE" => "add `?network=allow` if this mount is local, or name a file on a local disk",
        _ => "name a file on a local disk with `sqlite:PATH`, or use a server such as `redis:`",
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "`{}` is on {name}: the store needs memory shared by one kernel, and cannot promise \
             there that two machines do not hold the same lock; {advice}",
            folder.display()
        ),
    ))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// The smallest page of a SQLite database, in bytes.
const SMALLEST: u64 = 512;

/// File systems that more than one kernel may write to, from `linux/magic.h` and their sources.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the numbers are Linux's"))]
const NETWORK: [(u32, &str); 9] = [
    (0x0000_517b, "SMB"),
    (0x0000_6969, "NFS"),
    (0x00c3_6400, "Ceph"),
    (0x0102_1997, "9p"),
    (0x0bd0_0bd0, "Lustre"),
    (0x5346_414f, "AFS"),
    (0x6573_5546, "FUSE"),
    (0xfe53_4d42, "SMB"),
    (0xff53_4d42, "CIFS"),
];

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

    #[test]
    fn helper_files_are_shared_exactly_as_the_store_is() {
        let modes = |folder, beacon, bell| Modes { folder, beacon, bell };
        assert_eq!(Modes::beside(0o100600), modes(0o700, 0o600, 0o600));
        assert_eq!(Modes::beside(0o100644), modes(0o700, 0o600, 0o600));
        assert_eq!(Modes::beside(0o100660), modes(0o2770, 0o640, 0o660));
        assert_eq!(Modes::beside(0o100666), modes(0o2777, 0o644, 0o666));
    }

    #[test]
    fn a_network_file_system_is_refused_and_says_what_it_cannot_promise() {
        let refuse = |magic, allow| refuse_file_system(Path::new("/n"), magic, allow);
        let error = refuse(0x6969, true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("NFS") && error.to_string().contains("`/n`"));
        assert!(error.to_string().contains("cannot promise"), "{error}");
        let error = refuse(0x6573_5546, false).unwrap_err();
        assert!(error.to_string().contains("?network=allow"), "{error}");
        refuse(0x6573_5546, true).unwrap();
        refuse(0xef53, false).unwrap();
    }

    #[test]
    fn root_makes_no_store_in_a_private_folder_of_somebody_else() {
        assert!(is_foreign(true, 1000, 0o40700));
        assert!(is_foreign(true, 1000, 0o40755));
        assert!(!is_foreign(true, 1000, 0o42770), "shared with a group");
        assert!(!is_foreign(true, 0, 0o40700), "root's own");
        assert!(!is_foreign(false, 0, 0o41777), "/tmp");
    }
}
