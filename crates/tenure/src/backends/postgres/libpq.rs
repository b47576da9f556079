//! Options of libpq, so that the URL of an application works for its locks too.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::support::url::Url;

const DEFAULT_PORT: u16 = 5432;
/// Options that other clients know and that change nothing about a lock, with what to do.
const OTHERS: [(&str, &str); 12] = [
    ("channel_binding", "leave it out"),
    ("client_encoding", "leave it out: it is always UTF-8"),
    ("fallback_application_name", "say `application_name`"),
    ("gssencmode", "leave it out"),
    ("keepalives", "leave it out: connections are kept alive"),
    ("keepalives_idle", "leave it out: connections are kept alive"),
    ("passfile", "say `password_file`, which has the password only"),
    ("pgbouncer", "say `pooler=yes`"),
    ("statement_cache_capacity", "leave it out; behind a transaction pooler say `pooler=yes`"),
    ("statement-cache-capacity", "leave it out; behind a transaction pooler say `pooler=yes`"),
    ("sslnegotiation", "leave it out"),
    ("tcp_user_timeout", "leave it out: a silent server is noticed by itself"),
];

/// The hosts before the path, or those of the option `host`, which may be the folder of a socket.
pub(super) fn hosts(url: &mut Url) -> Result<Vec<(String, u16)>> {
    let port = url.take_number("port", 1..=u16::MAX)?.unwrap_or(DEFAULT_PORT);
    let has_authority = url.authority().is_some_and(|hosts| !hosts.is_empty());
    match url.take("host") {
        Some(_) if has_authority => {
            Err(Error::invalid("the host is given twice: before the path, and as option `host`"))
        }
        Some(hosts) => {
            let host = |host: &str| (host.to_owned(), port);
            Ok(hosts.split(',').map(host).collect())
        }
        None => url.hosts(port),
    }
}

/// A duration as everywhere, or whole seconds as libpq has them.
pub(super) fn connect_timeout(url: &mut Url) -> Result<Option<Duration>> {
    let Some(text) = url.take("connect_timeout") else { return Ok(None) };
    match text.parse::<u32>() {
        // Libpq waits for ever then.
        Ok(0) => Ok(None),
        Ok(seconds) => Ok(Some(Duration::from_secs(seconds.into()))),
        Err(_) => {
            let named = |error| Error::invalid(format!("option `connect_timeout`: {error}"));
            crate::support::url::duration(&text).map(Some).map_err(named)
        }
    }
}

/// A server that refuses writes is left by itself, so that only the values that mean this are
/// understood.
pub(super) fn check_session_attrs(url: &mut Url) -> Result<()> {
    match url.take("target_session_attrs").as_deref() {
        None | Some("any" | "primary" | "read-write") => Ok(()),
        Some("prefer-standby" | "read-only" | "standby") => {
            let message = "a server that refuses writes cannot grant locks";
            Err(Error::invalid(format!("option `target_session_attrs`: {message}")))
        }
        Some(other) => Err(Error::invalid(format!(
            "option `target_session_attrs` is `{}`; it can be: any, primary, read-write",
            other.escape_debug()
        ))),
    }
}

/// Names what to do about an option that only other clients have.
pub(super) fn refuse_others(url: &mut Url) -> Result<()> {
    for (name, advice) in OTHERS {
        if url.has(name) {
            return Err(Error::invalid(format!("tenure has no option `{name}`: {advice}")));
        }
    }
    Ok(())
}
