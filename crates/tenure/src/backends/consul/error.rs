//! From failed requests and the status codes of Consul to [`Error`], by what the caller can do.

use std::error::Error as StdError;

use super::connection::http::HttpResponse;
use crate::error::{Error, ErrorKind};

/// How much of an error text of the server is shown.
const SHOWN_CHARS: usize = 200;

/// No connection to the agent could be opened, so that the request was not sent.
pub(crate) fn unreachable(host: &str, error: &(dyn StdError + 'static)) -> Error {
    let message = format!("cannot reach consul at {host}: {}", root_cause(error));
    Error::new(ErrorKind::Unavailable, message)
}

/// The connection broke before the response was complete: the request may have been carried out.
pub(crate) fn broken(host: &str, error: &(dyn StdError + 'static)) -> Error {
    let message = format!("the connection to consul at {host} broke: {}", root_cause(error));
    Error::new(ErrorKind::Unavailable, message)
}

/// What listens at the address does not respond as Consul does: most likely the URL is wrong.
pub(crate) fn unexpected(what: &str) -> Error {
    let advice = "is it Consul that listens there?";
    Error::new(ErrorKind::Invalid, format!("unexpected response from consul: {what}; {advice}"))
}

/// A response lacks an entry that the request wanted. The request may have been carried out.
pub(crate) fn incomplete() -> Error {
    let message = "unexpected response from consul: a part of it is missing";
    Error::new(ErrorKind::Unavailable, message)
}

/// The ACL token does not allow the request.
pub(crate) fn denied(text: &str) -> Error {
    let message = format!("consul: {text}; the token needs key and session rights to write");
    Error::new(ErrorKind::Denied, message)
}

/// The error that a status other than the expected one stands for.
pub(crate) fn from_response(response: &HttpResponse) -> Error {
    let text = String::from_utf8_lossy(&response.body);
    let text: String = text.trim().chars().take(SHOWN_CHARS).collect();
    match response.status {
        401 | 403 => denied(&text),
        _ if text.contains("ermission denied") || text.contains("ACL not found") => denied(&text),
        _ if text.contains("Session TTL") => {
            let advice = "choose a longer ttl, or set `session_ttl_min` on the servers";
            Error::new(ErrorKind::Invalid, format!("consul: {text}; {advice}"))
        }
        // While a leader is elected, Consul responds with 500: the outcome of the request is
        // unknown.
        429 | 500.. => {
            let status = response.status;
            let message = format!("consul cannot respond now: {text} (status {status})");
            Error::new(ErrorKind::Unavailable, message)
        }
        status => unexpected(&format!("status {status}: {text}")),
    }
}

/// The innermost cause is the most specific one, such as "connection refused".
fn root_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost
}
