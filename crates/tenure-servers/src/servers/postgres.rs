//! PostgreSQL. It refuses to run as root; then it runs as the user `nobody`.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{StartContext, argv, ports};
use crate::error::{Error, Result};
use crate::node::{Node, START_LIMIT};
use crate::process::Launch;
use crate::provision::{self, Bundle, Program};
use crate::wire::postgres::Postgres;

const TLS_FILES: [(&str, &str); 3] =
    [("ssl_ca_file", "ca.pem"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")];
/// The user and group `nobody`.
const NOBODY: u32 = 65534;

pub(super) fn start(context: &StartContext<'_>) -> Result<Vec<Node>> {
    if is_root() && !on_path("setpriv") {
        let reason = "it refuses to run as root, and setpriv (package util-linux) is not there";
        return Err(Error::missing("postgres", reason));
    }
    let program = provision::program(Bundle::Postgres)?;
    let program = executable_by_nobody(context, program).map_err(|error| context.failed(error))?;
    let [port] = ports::<1>()?;
    let folder = context.folder("n1")?;
    let password = folder.join("password");
    context.write(&password, context.secret.as_str())?;
    give_folder(context, &folder).map_err(|error| context.failed(error))?;

    let options = ["-D", "data", "-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8"];
    let mut initdb = argv(as_nobody(), &[]);
    initdb.extend(argv(program.sibling("initdb").argv(None), &options));
    initdb.extend(["--pwfile=password", "--locale=C", "--no-sync"].map(Into::into));
    initdb.push("--no-instructions".into());
    let launch = Launch::new(initdb, &folder, context.dir.join("initdb.log"));
    launch.run(START_LIMIT).map_err(|reason| Error::failed("initialize postgres", reason))?;
    fs::remove_file(&password).map_err(|error| context.failed(error))?;

    let number = port.number().to_string();
    let mut options = vec!["-D", "data", "-p", &number, "-c", "listen_addresses=127.0.0.1"];
    options.extend(["-c", "unix_socket_directories=", "-c", "jit=off"]);
    options.extend(["-c", "max_connections=400", "-c", "shared_buffers=32MB"]);
    // In files of the data folder, which goes with the server: a killed server would leave segments
    // of shared memory behind, 1 MB for each.
    options.extend(["-c", "dynamic_shared_memory_type=mmap"]);
    if context.options.durability.skips_sync() {
        // Not synchronous_commit=off: that loses what was acknowledged on kill -9.
        options.extend(["-c", "fsync=off", "-c", "full_page_writes=off"]);
    }
    let tls_options: Vec<String> = TLS_FILES
        .iter()
        .filter(|_| context.options.tls.is_some())
        .map(|(name, file)| format!("{name}={}", folder.join(file).display()))
        .collect();
    if !tls_options.is_empty() {
        options.extend(["-c", "ssl=on"]);
        options.extend(tls_options.iter().flat_map(|option| ["-c", option]));
    }
    let mut command = as_nobody();
    let preload = preload(context).map_err(|error| context.failed(error))?;
    command.extend(argv(program.argv(preload.as_deref()), &options));
    let node = context.node("n1", vec![port], command)?;
    node.wait_response(START_LIMIT)?;
    Ok(vec![node])
}

pub(super) fn ready(node: &Node) -> io::Result<()> {
    Postgres::connect(node.port())?.query("select 1").map(drop)
}

/// Removes the segment of shared memory that a killed server leaves behind, as its next start
/// would.
pub(crate) fn remove_shared_memory(node: &Node) {
    // The server writes this file while it runs, and removes it in a regular shutdown.
    let note = fs::read_to_string(node.dir().join("data/postmaster.pid")).unwrap_or_default();
    let number = note.lines().nth(6).and_then(|line| line.split_whitespace().nth(1));
    if let Some(number) = number {
        // Without the tool the segment stays, which is 56 bytes.
        Command::new("ipcrm").args(["-m", number]).output().ok();
    }
}

/// The start of a command line that, as root, switches to the user `nobody` without any capability.
fn as_nobody() -> Vec<OsString> {
    if !is_root() {
        return Vec::new();
    }
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"];
    words.map(Into::into).into()
}

/// As root, a program that the user `nobody` can execute: a bundle in a folder that only root can
/// enter is copied.
fn executable_by_nobody(context: &StartContext<'_>, program: Program) -> io::Result<Program> {
    let Some(root) = program.root().filter(|root| is_root() && !is_reachable(root)) else {
        return Ok(program);
    };
    let copy = context.dir.join("bundle");
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

/// As root, a copy of the shared object that the user `nobody` can read.
fn preload(context: &StartContext<'_>) -> io::Result<Option<PathBuf>> {
    match context.preload() {
        Some(object) if is_root() => {
            let copy = context.dir.join("clock.so");
            fs::copy(object, &copy)?;
            Ok(Some(copy))
        }
        object => Ok(object.map(Path::to_owned)),
    }
}

/// Whether every user can enter a folder.
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

/// Gives the server its folder and the files that it reads. As root they belong to the user
/// `nobody`, who must be able to enter the folder.
fn give_folder(context: &StartContext<'_>, folder: &Path) -> io::Result<()> {
    let mut given = vec![folder.to_owned(), folder.join("password")];
    for (_, file) in TLS_FILES {
        if let Some(from) = context.options.tls_file(file) {
            fs::copy(from, folder.join(file))?;
            given.push(folder.join(file));
        }
    }
    if is_root() {
        fs::set_permissions(context.dir, fs::Permissions::from_mode(0o711))?;
        for path in given {
            chown(path, Some(NOBODY), Some(NOBODY))?;
        }
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
