//! Encrypted connections, for every backend: rustls with ring, the system's root certificates or
//! those of a given file, and a client certificate if the server wants one. The server always has
//! to prove its name: an encrypted connection to an unknown server protects nothing.

#[cfg(any(feature = "consul", feature = "etcd"))]
mod dial;
#[cfg(any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis"))]
mod encrypt;
#[cfg(all(
    feature = "tls",
    any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis")
))]
mod files;
#[cfg(all(
    feature = "tls",
    any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis")
))]
mod verifier;

use crate::error::{Error, ErrorKind, Result};
use crate::support::url::Url;

#[cfg(any(feature = "consul", feature = "etcd"))]
pub(crate) use dial::Dial;
#[cfg(any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis"))]
pub(crate) use encrypt::{Stream, encrypt};

/// The PEM files that the URL names.
#[derive(Clone, Debug, Default)]
#[allow(dead_code, reason = "read only by backends that encrypt, which may be left out")]
pub(crate) struct Tls {
    /// The root certificates to trust, instead of the system's.
    pub(crate) ca: Option<String>,
    /// The client's certificate and its key.
    pub(crate) identity: Option<(String, String)>,
    #[cfg(all(
        feature = "tls",
        any(feature = "consul", feature = "etcd", feature = "postgres", feature = "redis")
    ))]
    kept: files::Kept,
}

impl Tls {
    /// Takes the options `ca`, `cert` and `key`.
    pub(crate) fn take(options: &mut Url) -> Result<Tls> {
        if !cfg!(feature = "tls") {
            let message = "an encrypted connection needs the cargo feature `tls` of tenure";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let ca = options.take("ca");
        Tls::with(ca, options.take("cert"), options.take("key"))
    }

    #[allow(clippy::needless_update, reason = "there is more in it where a backend encrypts")]
    fn with(ca: Option<String>, cert: Option<String>, key: Option<String>) -> Result<Tls> {
        let identity = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => Some((cert, key)),
            _ => {
                let message = "options `cert` and `key` have to be given together";
                return Err(Error::new(ErrorKind::Invalid, message));
            }
        };
        Ok(Tls { ca, identity, ..Tls::default() })
    }

    /// Takes the option `sslmode`, and the files if it means encryption. Every value but
    /// `disable` proves the server's name: a URL never gets less than it says.
    #[cfg(any(feature = "mysql", feature = "postgres"))]
    pub(crate) fn take_sslmode(options: &mut Url) -> Result<Option<Tls>> {
        // Other clients have longer names for the files.
        let file = |options: &mut Url, name, long_name| {
            let given = options.take(name);
            options.take(long_name).or(given)
        };
        let known = ["disable", "require", "verify-ca", "verify-full", "prefer", "allow"];
        match options.take_word("sslmode", &known)? {
            Some("prefer" | "allow") => Err(Error::invalid(
                "option `sslmode`: `prefer` and `allow` go on without encryption, and without a \
                 word, where the server has none; say `require`, or `disable`",
            )),
            None | Some("disable") => {
                let names = ["ca", "cert", "key", "sslrootcert", "sslcert", "sslkey"];
                match names.into_iter().find(|name| options.has(name)) {
                    Some(name) => Err(Error::invalid(format!(
                        "option `{name}` needs an encrypted connection: say `sslmode=require` too"
                    ))),
                    None => Ok(None),
                }
            }
            Some(_) if !cfg!(feature = "tls") => Tls::take(options).map(Some),
            Some(_) => {
                let ca = file(options, "ca", "sslrootcert");
                let cert = file(options, "cert", "sslcert");
                Tls::with(ca, cert, file(options, "key", "sslkey")).map(Some)
            }
        }
    }
}
