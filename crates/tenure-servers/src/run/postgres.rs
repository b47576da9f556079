//! PostgreSQL. It refuses to run as root, where it gets the user nobody instead.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Site, argv, ports};
use crate::error::{Error, Result};
use crate::get::{self, Bundle, Program};
use crate::node::{Node, START_LONGEST};
use crate::process::Launch;
use crate::wire::postgres::Postgres;

pub(super) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    if is_root() && !on_path("setpriv") {
        let reason = "it refuses to run as root, and setpriv (package util-linux) is not there";
        return Err(Error::missing("postgres", reason));
    }
    let program = get::program(Bundle::Postgres)?;
    let program = within_reach(site, program).map_err(|error| site.failed(error))?;
    let [port] = ports::<1>()?;
    let folder = site.folder("n1")?;
    let password = folder.join("password");
    site.write(&password, site.secret.as_str())?;
    hand_over(site, &folder).map_err(|error| site.failed(error))?;

    let options = ["-D", "data", "-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8"];
    let mut initdb = argv(as_nobody(), &[]);
    initdb.extend(argv(program.sibling("initdb").argv(None), &options));
    initdb.extend(["--pwfile=password", "--locale=C", "--no-sync"].map(Into::into));
    initdb.push("--no-instructions".into());
    let launch = Launch::new(initdb, &folder, site.dir.join("initdb.log"));
    launch.run(START_LONGEST).map_err(|reason| Error::failed("make a PostgreSQL", reason))?;
    fs::remove_file(&password).map_err(|error| site.failed(error))?;

    let number = port.number().to_string();
    let mut options = vec!["-D", "data", "-p", &number, "-c", "listen_addresses=127.0.0.1"];
    options.extend(["-c", "unix_socket_directories=", "-c", "jit=off"]);
    options.extend(["-c", "max_connections=400", "-c", "shared_buffers=32MB"]);
    if site.options.durability.skips_sync() {
        // Not synchronous_commit=off: that loses what was acknowledged on kill -9.
        options.extend(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    let settings: Vec<String> = TLS
        .iter()
        .filter(|_| site.options.tls.is_some())
        .map(|(name, file)| format!("{name}={}", folder.join(file).display()))
        .collect();
    if !settings.is_empty() {
        options.extend(["-c", "ssl=on"]);
        options.extend(settings.iter().flat_map(|setting| ["-c", setting]));
    }
    let mut command = as_nobody();
    let preload = preload(site).map_err(|error| site.failed(error))?;
    command.extend(argv(program.argv(preload.as_deref()), &options));
    let node = site.node("n1", vec![port], command)?;
    node.wait_answer(START_LONGEST)?;
    Ok(vec![node])
}

pub(super) fn ready(node: &Node) -> io::Result<()> {
    Postgres::connect(node.port())?.query("select 1").map(drop)
}

/// Removes the piece of shared memory that a killed server leaves behind, as its next start would.
pub(crate) fn sweep(node: &Node) {
    // Written while it runs, and removed by itself when it ends in peace.
    let note = fs::read_to_string(node.dir().join("data/postmaster.pid")).unwrap_or_default();
    let number = note.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
    if let Some(number) = number {
        // Without the tool the piece stays, which is 56 bytes.
        Command::new("ipcrm").args(["-m", number]).output().ok();
    }
}

/// As root, the user nobody, without any right of root's, now or later.
fn as_nobody() -> Vec<OsString> {
    if !is_root() {
        return Vec::new();
    }
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    words.map(Into::into).into()
}

/// As root, a program that the user nobody can run: a bundle that only root can get to is copied.
fn within_reach(site: &Site<'_>, program: Program) -> io::Result<Program> {
    let Some(root) = program.root().filter(|root| is_root() && !is_reachable(root)) else {
        return Ok(program);
    };
    let copy = site.dir.join("bundle");
    run(Command::new("cp").arg("-a").args([root, &copy]))?;
    run(Command::new("chmod").args(["-R", "a+rX"]).arg(&copy))?;
    Ok(program.moved_to(&copy))
}

fn run(command: &mut Command) -> io::Result<()> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(io::Error::other(format!("{command:?}: {status}"))),
    }
}

/// The same for the object to load first.
fn preload(site: &Site<'_>) -> io::Result<Option<PathBuf>> {
    match site.preload() {
        Some(object) if is_root() => {
            let copy = site.dir.join("clock.so");
            fs::copy(object, &copy)?;
            Ok(Some(copy))
        }
        object => Ok(object.map(Path::to_owned)),
    }
}

/// Whether everybody can get to a folder.
fn is_reachable(folder: &Path) -> bool {
    let open = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|facts| facts.permissions().mode() & 0o001 != 0)
    };
    folder.ancestors().all(open)
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Gives the server its folder, with what it reads from it. As root it is the user nobody who
/// needs it, and who must get there.
fn hand_over(site: &Site<'_>, folder: &Path) -> io::Result<()> {
    let mut given = vec![folder.to_owned(), folder.join("password")];
    for (_, file) in TLS {
        if let Some(from) = site.options.tls_file(file) {
            fs::copy(from, folder.join(file))?;
            given.push(folder.join(file));
        }
    }
    if is_root() {
        fs::set_permissions(site.dir, fs::Permissions::from_mode(0o711))?;
        for path in given {
            chown(path, Some(NOBODY), Some(NOBODY))?;
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const TLS: [(&str, &str); 3] =
    [("ssl_ca_file", "ca.pem"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")];
const NOBODY: u32 = 65534;
