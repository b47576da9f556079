//! What the client library's errors mean for the caller.

use redis::RedisError;

use crate::error::{Error, ErrorKind};

/// Translates an error. `at` names the server, and the key that the request was about.
pub(super) fn from_redis(error: RedisError, at: &str) -> Error {
    let code = error.code().unwrap_or_default().to_owned();
    let text = error.to_string();
    let (kind, message) = match code.as_str() {
        "NOAUTH" | "NOPERM" | "WRONGPASS" => (ErrorKind::Denied, format!("{at} denies access")),
        "WRONGTYPE" => {
            let message = "the key holds something else than a lock of this layout";
            let advice = "choose another key, or `layout=plain` or `layout=redisson` to match";
            (ErrorKind::Invalid, format!("{at}: {message}; {advice}"))
        }
        "NOTALOCK" => {
            let message = "the key holds a hash that is not a lock; choose another key";
            (ErrorKind::Invalid, format!("{at}: {message}"))
        }
        "OOM" => (ErrorKind::Unavailable, format!("{at} is out of memory and grants no locks")),
        "TRYAGAIN" => {
            let message =
                "the slot is on its way to another node, and a lock in it can be acquired";
            (ErrorKind::Unavailable, format!("{at}: {message} or released when it has arrived"))
        }
        "ERR" if text.contains("unknown command") => {
            (ErrorKind::Unsupported, format!("{at} does not know a command that tenure needs"))
        }
        "ERR" if text.contains("invalid password") => {
            (ErrorKind::Denied, format!("{at} denies access"))
        }
        "ERR" if !text.contains("max number of clients") => {
            (ErrorKind::Internal, format!("{at} responded with an error"))
        }
        _ if error.kind() == redis::ErrorKind::AuthenticationFailed => {
            (ErrorKind::Denied, format!("{at} denies access"))
        }
        _ if text.contains("cargo feature `tls`") => {
            let message = "an encrypted connection needs the cargo feature `tls` of tenure";
            return Error::new(ErrorKind::Unsupported, message);
        }
        _ if error.is_connection_refusal() => {
            (ErrorKind::Unavailable, format!("cannot reach {at}"))
        }
        "" => (ErrorKind::Unavailable, format!("no response from {at}")),
        // It may at another time: loading, read-only, no master, out of its cluster, busy.
        _ => (ErrorKind::Unavailable, format!("{at} cannot serve this now")),
    };
    Error::new(kind, format!("{message}: {text}")).with_source(error)
}
