//! The servers. A new one is a file or folder here, one row in the table below, its feature in
//! `Cargo.toml`, a fixture in `tenure-conformance` and a page in `docs/backends`.

use std::sync::Arc;

use crate::backend::Backend;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// Declares each module under its feature and makes `open`, which finds the backend of a URL.
macro_rules! backends {
    ($($module:ident $type:ident $feature:literal [$($scheme:literal),+];)+) => {
        $(
            #[cfg(feature = $feature)]
            pub mod $module;
            #[cfg(feature = $feature)]
            #[doc(inline)]
            pub use $module::$type;
        )+

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
    // module  type    feature   URL schemes
    consul     Consul  "consul"  ["consul", "consuls"];
    memory     Memory  "memory"  ["memory"];
    sqlite     Sqlite  "sqlite"  ["sqlite"];
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
