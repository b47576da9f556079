//! The backends: one folder for each server, and the table that finds one by the scheme of a URL.
//!
//! Every folder has the same files, so that knowing one backend helps with the next:
//!
//! | file | what it has |
//! |---|---|
//! | `mod.rs` | the public type, `impl Backend` that delegates, and a map of the folder |
//! | `config.rs` | what the URL says |
//! | `connection.rs` | connections: open, replace, execute a request |
//! | `layout.rs` | what is stored at the server: keys, tables, nodes, scripts |
//! | `acquire.rs`, `renew.rs`, `release.rs` | the three methods that change the state of a lock |
//! | `wait.rs` | `until_free` and `until_lost` |
//! | `admin.rs` | `list` and `evict`, for operators |
//! | `doctor.rs` | checks of the server |
//! | `error.rs` | errors of the server and its client library as [`Error`] |
//!
//! A file that grows is a folder of the same name. What only one server needs is a file of its own,
//! listed in the folder's `mod.rs`. `cargo xtask tidy` holds all of this; what a new backend has to
//! touch is in ARCHITECTURE.md.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::support::url::Url;

#[cfg(feature = "consul")]
pub mod consul;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

#[cfg(feature = "consul")]
#[doc(inline)]
pub use consul::Consul;
#[cfg(feature = "etcd")]
#[doc(inline)]
pub use etcd::Etcd;
#[cfg(feature = "memory")]
#[doc(inline)]
pub use memory::Memory;
#[cfg(feature = "mysql")]
#[doc(inline)]
pub use mysql::Mysql;
#[cfg(feature = "postgres")]
#[doc(inline)]
pub use postgres::Postgres;
#[cfg(feature = "redis")]
#[doc(inline)]
pub use redis::Redis;
#[cfg(feature = "redlock")]
#[doc(inline)]
pub use redlock::Redlock;
#[cfg(feature = "sqlite")]
#[doc(inline)]
pub use sqlite::Sqlite;
#[cfg(feature = "zookeeper")]
#[doc(inline)]
pub use zookeeper::Zookeeper;

/// Makes `open`, which finds the backend of a URL by its scheme.
macro_rules! backends {
    ($($module:ident $feature:literal [$($scheme:literal),+];)+) => {
        /// The name of the backend of a URL.
        ///
        /// # Errors
        ///
        /// `Invalid` for an unknown scheme, `Unsupported` if the backend is not built in.
        pub(crate) fn name(url: &Url) -> Result<&'static str> {
            match url.scheme() {
                $(
                    #[cfg(feature = $feature)]
                    $($scheme)|+ => Ok(stringify!($module)),
                    #[cfg(not(feature = $feature))]
                    $($scheme)|+ => Err(not_built(url.scheme(), $feature)),
                )+
                unknown => Err(unknown_scheme(unknown, &[$($($scheme),+),+])),
            }
        }

        /// Opens the backend that the URL's scheme names.
        pub(crate) async fn open(url: Url) -> Result<Arc<dyn Backend>> {
            if url.scheme() == "zk" && url.has_own_credentials() {
                let message = "`zk:` takes its login from the URL, not from `Config::credentials`";
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            match url.scheme() {
                $(
                    #[cfg(feature = $feature)]
                    $($scheme)|+ => Ok(Arc::new($module::open(url).await?)),
                    #[cfg(not(feature = $feature))]
                    $($scheme)|+ => Err(not_built(url.scheme(), $feature)),
                )+
                unknown => Err(unknown_scheme(unknown, &[$($($scheme),+),+])),
            }
        }
    };
}

backends! {
    // module  feature     URL schemes
    consul     "consul"    ["consul", "consuls"];
    etcd       "etcd"      ["etcd", "etcds"];
    memory     "memory"    ["memory"];
    mysql      "mysql"     ["mysql"];
    postgres   "postgres"  ["postgres", "postgresql"];
    redis      "redis"     ["redis", "rediss", "redis+unix", "redis+sentinel", "redis+cluster"];
    redlock    "redlock"   ["redlock"];
    sqlite     "sqlite"    ["sqlite"];
    zookeeper  "zookeeper" ["zk"];
}

/// Whether the locks of this URL reach only within this process: their client then runs on the
/// caller's runtime and its clock, so that tests with paused time work.
pub(crate) fn is_in_process(url: &Url) -> bool {
    url.scheme() == "memory"
}

#[allow(dead_code, reason = "used only where a backend is left out of the build")]
fn not_built(scheme: &str, feature: &str) -> Error {
    let message = format!("`{scheme}:` needs the cargo feature `{feature}` of tenure");
    Error::new(ErrorKind::Unsupported, message)
}

fn unknown_scheme(scheme: &str, known: &[&str]) -> Error {
    let message = format!("unknown scheme `{scheme}` in URL; known: {}", known.join(", "));
    Error::new(ErrorKind::Invalid, message)
}
