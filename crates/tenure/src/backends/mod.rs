//! The servers. A new one is a file or folder here, two lines and a row below, its feature in
//! `Cargo.toml`, a fixture in `tenure-conformance` and a page in `docs/backends`.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

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
        /// Opens the backend that the URL's scheme names.
        pub(crate) async fn open(options: Options) -> Result<Arc<dyn Backend>> {
            match options.scheme() {
                $(
                    #[cfg(feature = $feature)]
                    $($scheme)|+ => Ok(Arc::new($module::open(options).await?)),
                    #[cfg(not(feature = $feature))]
                    $($scheme)|+ => Err(not_built(options.scheme(), $feature)),
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

#[allow(dead_code, reason = "used only where a backend is left out of the build")]
fn not_built(scheme: &str, feature: &str) -> Error {
    let message = format!("`{scheme}:` needs the cargo feature `{feature}` of tenure");
    Error::new(ErrorKind::Unsupported, message)
}

fn unknown_scheme(scheme: &str, known: &[&str]) -> Error {
    let message = format!("unknown scheme `{scheme}` in URL; known: {}", known.join(", "));
    Error::new(ErrorKind::Invalid, message)
}
