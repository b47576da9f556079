//! Real servers for tenure's tests, lab and benchmarks: Redis, etcd, ZooKeeper, Consul, PostgreSQL,
//! MariaDB and MySQL, alone and as clusters, on any machine, without root and without Docker.
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
//! A server that is not available here is an [`Error`] for which
//! [`is_missing`](Error::is_missing) is true, and which reads like `could not get redis: …`. No
//! server outlives the process that started it, however that ends. The page `docs/servers.md` says
//! where the servers come from.
//!
//! | module | job |
//! |---|---|
//! | `provision` | gets the programs: installed ones, or packages of a Debian mirror |
//! | `servers` | how each server is started, when it is ready, which node leads |
//! | `cluster`, `node`, `process` | what runs: a topology, one server of it, a process |
//! | `proxy` | a network link that can be slowed and cut |
//! | `wire` | enough of each wire protocol for readiness checks and tests |
//! | `guardian` | ends the servers when this process ends |
//! | `clock`, `ports`, `secret` | shifted clocks, free ports, passwords |

mod clock;
mod cluster;
mod error;
mod guardian;
mod node;
mod options;
mod ports;
mod process;
mod provision;
mod proxy;
mod secret;
mod servers;
mod topology;
mod wait;
pub mod wire;

use std::path::PathBuf;
use std::sync::OnceLock;

pub use cluster::{Cluster, start};
pub use error::{Error, Result};
pub use node::{Node, Role};
pub use options::{Durability, Flavor, Options};
pub use provision::{Bundle, dir};
pub use proxy::{Direction, Proxy};
pub use topology::Topology;
pub use wait::wait_until;

/// The instance of a topology that all tests of this process share, with default options. The first
/// call starts it, and it ends with the process. Tests keep apart by random prefixes in their keys;
/// a test that kills, pauses or reconfigures a server starts its own cluster.
///
/// # Errors
/// As [`start`]. Every later call returns the error of the first.
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

/// Makes sure that the server of a bundle is available, on PATH or fetched into [`dir`]. Returns
/// its path.
///
/// # Errors
/// When it is not available, with the reason.
pub fn fetch(bundle: Bundle) -> Result<PathBuf> {
    provision::provide(bundle)
}

/// A command that runs another program of a server, such as `etcdctl` of [`Bundle::Etcd`].
///
/// # Errors
/// When it is not available, with the reason.
pub fn tool(bundle: Bundle, name: &str) -> Result<std::process::Command> {
    provision::tool(bundle, name)
}

/// The environment variables that shift the wall clock of a program by this much, forward if
/// positive. Works for programs that get the time from libc; needs a C compiler.
///
/// # Errors
/// When the clock library cannot be built here, with the reason.
pub fn shifted_clock(
    file: &std::path::Path,
    offset_ms: i64,
) -> Result<[(&'static str, std::ffi::OsString); 2]> {
    let shim = clock::shim()?;
    let set = clock::Clock::create(file).and_then(|clock| clock.set(offset_ms));
    set.map_err(|error| Error::failed("shift a clock", error))?;
    Ok([("LD_PRELOAD", shim.into()), ("TENURE_CLOCK_FILE", file.into())])
}

/// Sets the monotonic clock of a program that was started with [`shifted_clock`] and this file back
/// by this much in total, while its boot clock and its wall clock go on: what a program sees after
/// the machine was suspended. Must be called while the program is stopped.
///
/// # Errors
/// When the file is not there.
pub fn sleeping_clock(file: &std::path::Path, slept: std::time::Duration) -> Result<()> {
    clock::sleep(file, slept).map_err(|error| Error::failed("set a clock back", error))
}

/// Removes this file or folder when the process ends, however it ends.
pub fn remove_at_exit(path: &std::path::Path) {
    guardian::remove_at_exit(path);
}
