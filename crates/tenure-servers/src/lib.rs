//! Real servers for tenure's tests, lab and benchmarks: Redis, etcd, ZooKeeper, Consul, PostgreSQL
//! and MariaDB, alone and as clusters, on any machine, without root and without Docker.
//!
//! ```no_run
//! use tenure_servers::{Options, Topology, start};
//!
//! # fn main() -> tenure_servers::Result<()> {
//! let cluster = start(Topology::Etcd3, &Options::default())?;
//! let leader = cluster.leader()?.expect("an etcd that is ready has a leader");
//! leader.kill()?;
//! cluster.wait_ready()?;      // the other two have elected a new one
//! leader.restart()?;          // same port, same data
//! # Ok(())
//! # }
//! ```
//!
//! What cannot be had here is an [`Error`] whose [`is_missing`](Error::is_missing) says so, and
//! which reads like `could not get redis: …`. Nothing outlives the process that started it, however
//! that ends. The page `docs/servers.md` tells where the servers come from.

mod clock;
mod cluster;
mod error;
mod get;
mod guardian;
mod node;
mod options;
mod ports;
mod process;
mod proxy;
mod run;
mod secret;
mod topology;
mod wait;
pub mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use cluster::{Cluster, start};
pub use error::{Error, Result};
pub use get::{Bundle, dir};
pub use node::{Node, Role};
pub use options::{Durability, Flavor, Options};
pub use proxy::{Direction, Proxy};
pub use topology::Topology;
pub use wait::wait_until;

/// The process-wide instance of a topology, with default options: started when it is first asked
/// for, shared by all tests of the process, and gone with it. Tests keep apart by random prefixes
/// in their keys, and start a cluster of their own to kill, pause or reconfigure it.
///
/// # Errors
/// The same for everybody who asks: whatever [`start`] answered.
pub fn shared(topology: Topology) -> Result<&'static Cluster> {
    static SHARED: [OnceLock<Result<Cluster>>; Topology::ALL.len()] =
        [const { OnceLock::new() }; Topology::ALL.len()];
    let cell = &SHARED[topology as usize];
    cell.get_or_init(|| start(topology, &Options::default())).as_ref().map_err(Clone::clone)
}

/// Whether a missing server is a failure rather than a case to ignore: `TENURE_REQUIRE` names the
/// topology or its server, or is `all`. The names are separated by commas.
pub fn require(name: &str) -> bool {
    let list = std::env::var("TENURE_REQUIRE").unwrap_or_default();
    let server = name.parse::<Topology>().map(Topology::server).unwrap_or(name);
    list.split(',').map(str::trim).any(|word| word == "all" || word == name || word == server)
}

/// Makes sure that what a bundle is for is there, on PATH or fetched into [`dir`]; returns where.
///
/// # Errors
/// When it cannot be had, with the reason.
pub fn fetch(bundle: Bundle) -> Result<PathBuf> {
    get::provide(bundle)
}

/// A command that runs another program of a server, such as `etcdctl` of [`Bundle::Etcd`].
///
/// # Errors
/// When it cannot be had, with the reason.
pub fn tool(bundle: Bundle, name: &str) -> Result<std::process::Command> {
    get::tool(bundle, name)
}

/// What the environment of a program has to say so that its wall clock is off by this much: forward
/// if positive. Works for programs that ask libc for the time; needs a C compiler.
///
/// # Errors
/// When the clock cannot be had here, with the reason.
pub fn shifted_clock(
    file: &std::path::Path,
    offset_ms: i64,
) -> Result<[(&'static str, std::ffi::OsString); 2]> {
    let shim = clock::shim()?;
    let set = clock::Clock::create(file).and_then(|clock| clock.set(offset_ms));
    set.map_err(|error| Error::failed("shift a clock", error))?;
    Ok([("LD_PRELOAD", shim.into()), ("TENURE_CLOCK_FILE", file.into())])
}

/// Lets the monotonic clock of a program that was started with [`shifted_clock`] and this file
/// stand for so long altogether, while its boot clock and its wall clock go on: what a program sees
/// of a machine that has slept. To be called while the program is stopped.
///
/// # Errors
/// When the file is not there.
pub fn sleeping_clock(file: &std::path::Path, slept: std::time::Duration) -> Result<()> {
    clock::sleep(file, slept).map_err(|error| Error::failed("let a clock stand", error))
}

/// Removes this file or folder when the process ends, however it ends.
pub fn remove_at_exit(path: &std::path::Path) {
    guardian::remove_at_exit(path);
}
