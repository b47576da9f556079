//! PostgreSQL. It refuses to run as root, where it gets the user nobody instead.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use super::{Site, argv, ports};
use crate::error::{Error, Result};
use crate::get::{self, Bundle};
use crate::node::{Node, START_LONGEST};
use crate::process::Launch;
use crate::wire::postgres::Postgres;

pub(super) fn start(site: &Site<'_>) -> Result<Vec<Node>> {
    if is_root() && !on_path("setpriv") {
        let reason = "it refuses to run as root, and setpriv (package util-linux) is not there";
        return Err(Error::missing("postgres", reason));
    }
    let program = get::program(Bundle::Postgres)?;
    let [port] = ports::<1>()?;
    let folder = site.folder("n1")?;
    hand_over(site.dir, &folder).map_err(|error| site.failed(error))?;

    let options = ["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C"];
    let mut initdb = argv(as_nobody(), &[]);
    initdb.extend(argv(program.sibling("initdb").argv(None), &options));
    initdb.extend(["--no-sync", "--no-instructions"].map(Into::into));
    let launch = Launch::new(initdb, &folder, site.dir.join("initdb.log"));
    launch.run(START_LONGEST).map_err(|reason| Error::failed("make a PostgreSQL", reason))?;

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
        .filter_map(|(name, file)| Some(format!("{name}={}", site.options.tls_file(file)?)))
        .collect();
    if !settings.is_empty() {
        options.extend(["-c", "ssl=on"]);
        options.extend(settings.iter().flat_map(|setting| ["-c", setting]));
    }
    let mut command = as_nobody();
    command.extend(argv(program.argv(site.preload()), &options));
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

/// As root, the user nobody with one capability: to read the bundle wherever it is, even below a
/// folder that only root may enter. Without `no_setuid_fixup`, access(2), by which PostgreSQL looks
/// at its own program, would ignore it.
fn as_nobody() -> Vec<OsString> {
    if !is_root() {
        return Vec::new();
    }
    let words = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "--securebits=+no_setuid_fixup",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
    ];
    words.map(Into::into).into()
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

fn hand_over(dir: &Path, folder: &Path) -> io::Result<()> {
    if is_root() {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
        chown(folder, Some(NOBODY), Some(NOBODY))?;
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

const TLS: [(&str, &str); 3] =
    [("ssl_ca_file", "ca.pem"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.key")];
const NOBODY: u32 = 65534;
