//! Servers that are installed on this machine: on PATH, or where distributions put server programs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::bundle::Bundle;

const ZOOKEEPER_JARS: [&str; 6] = [
    "zookeeper.jar",
    "zookeeper-jute.jar",
    "slf4j-api.jar",
    "slf4j-simple.jar",
    "metrics-core.jar",
    "snappy-java.jar",
];

/// Finds a program of the host with a supported version. Returns its path and version.
pub(super) fn find(bundle: Bundle) -> Option<(PathBuf, (u32, u32))> {
    let wanted = Requirement::of(bundle)?;
    let found = wanted.names.iter().flat_map(|name| paths_of(name)).map(|path| {
        match wanted.siblings {
            // Links are not followed: the name may decide what a program does, as with Redis.
            [] => path,
            // The other programs are in the folder of the real program, not of a link on PATH.
            _ => fs::canonicalize(&path).unwrap_or(path),
        }
    });
    let complete =
        found.filter(|path| wanted.siblings.iter().all(|name| path.with_file_name(name).is_file()));
    let mut known = complete.filter_map(|path| version(&path, wanted.flag).map(|v| (path, v)));
    known.find(|&(_, version)| {
        version >= wanted.least && wanted.below.is_none_or(|below| version < below)
    })
}

/// The requirement of [`find`], for an error message.
pub(super) fn requirement(bundle: Bundle) -> String {
    match Requirement::of(bundle) {
        Some(wanted) => {
            let (major, minor) = wanted.least;
            format!("{} {major}.{minor} or newer", wanted.names.join(" or "))
        }
        None => bundle.name().to_owned(),
    }
}

/// The class path of a ZooKeeper that is installed here.
pub(super) fn zookeeper_class_path() -> Option<OsString> {
    if let Some(script) = paths_of("zkServer.sh").next()
        && let Ok(script) = fs::canonicalize(script)
        && let Some(home) = script.ancestors().nth(2)
        && home.join("lib").is_dir()
    {
        let mut path = home.join("lib/*").into_os_string();
        path.push(":");
        path.push(home.join("*"));
        return Some(path);
    }
    let jars = Path::new("/usr/share/java");
    // Without snappy-java it accepts connections and never responds.
    let complete = jars.join("zookeeper.jar").is_file() && jars.join("snappy-java.jar").is_file();
    complete.then(|| debian_class_path(jars))
}

/// The class path of Debian's packages. Their `zookeeper.jar` names its dependencies by absolute
/// path, which is wrong in a bundle.
pub(super) fn debian_class_path(jars: &Path) -> OsString {
    let mut path = OsString::new();
    for jar in ZOOKEEPER_JARS {
        path.push(jars.join(jar));
        path.push(":");
    }
    path
}

/// What a program of the host must be to be used.
struct Requirement {
    names: &'static [&'static str],
    flag: &'static str,
    least: (u32, u32),
    below: Option<(u32, u32)>,
    siblings: &'static [&'static str],
}

impl Requirement {
    fn of(bundle: Bundle) -> Option<Self> {
        let plain = |names, flag, least| Self { names, flag, least, below: None, siblings: &[] };
        Some(match bundle {
            // Any version is accepted, because the mirror's own is old.
            Bundle::Consul => plain(&["consul"], "version", (1, 0)),
            Bundle::Etcd => plain(&["etcd"], "--version", (3, 4)),
            Bundle::Jre => plain(&["java"], "-version", (11, 0)),
            Bundle::Mariadb => plain(&["mariadbd"], "--version", (10, 6)),
            // A MariaDB may have that name too; its version is higher.
            Bundle::Mysql => {
                Self { below: Some((10, 0)), ..plain(&["mysqld"], "--version", (8, 0)) }
            }
            Bundle::Postgres => {
                Self { siblings: &["initdb"], ..plain(&["postgres"], "--version", (12, 0)) }
            }
            // Since 7 the bus port of a cluster and the sentinels' intervals can be set.
            Bundle::Redis => {
                Self { below: Some((8, 0)), ..plain(&["redis-server"], "--version", (7, 0)) }
            }
            Bundle::Redis8 => plain(&["redis-server"], "--version", (8, 0)),
            Bundle::Valkey => plain(&["valkey-server"], "--version", (7, 2)),
            Bundle::Zookeeper => return None,
        })
    }
}

/// The paths of all programs with this name.
fn paths_of(name: &str) -> impl Iterator<Item = PathBuf> {
    let java = (name == "java").then(|| env::var_os("JAVA_HOME")).flatten();
    let java = java.map(|home| PathBuf::from(home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    let path: Vec<PathBuf> = env::split_paths(&path).collect();
    // Debian does not put PostgreSQL's programs on PATH.
    let postgres = matches!(name, "postgres").then(postgres_folders).into_iter().flatten();
    let hidden = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let hidden = hidden.into_iter().chain(postgres);
    let name = name.to_owned();
    java.into_iter()
        .chain(path)
        .chain(hidden)
        .map(move |folder| folder.join(&name))
        .filter(|path| path.is_file())
}

fn postgres_folders() -> Vec<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.sort();
    folders.reverse();
    folders
}

/// The first version number in what a program prints with this flag.
fn version(path: &Path, flag: &str) -> Option<(u32, u32)> {
    let output = Command::new(path).arg(flag).env("LC_ALL", "C").output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    parse_version(&String::from_utf8_lossy(&text))
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut parts = word.split('.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        Some((major, minor))
    })
}

#[cfg(test)]
mod tests {
    use super::parse_version;

    #[test]
    fn versions_are_read_from_the_output_of_programs() {
        assert_eq!(parse_version("Redis server v=7.0.15 sha=00000000:0 bits=64"), Some((7, 0)));
        assert_eq!(
            parse_version("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
            Some((15, 18))
        );
        assert_eq!(parse_version("openjdk version \"17.0.15\" 2025-04-15"), Some((17, 0)));
        assert_eq!(parse_version("etcd Version: 3.5.16\nGit SHA: Not provided"), Some((3, 5)));
        assert_eq!(parse_version("Consul v1.8.7\nProtocol 2 spoken by default"), Some((1, 8)));
        assert_eq!(parse_version("mariadbd  Ver 10.11.19-MariaDB for debian"), Some((10, 11)));
        assert_eq!(parse_version("mysqld  Ver 9.7.4-2 for Linux on x86_64"), Some((9, 7)));
        assert_eq!(parse_version("no such thing"), None);
    }
}
