//! How a gRPC request ended, if not with a response.

use std::error::Error as Cause;
use std::fmt;
use std::sync::Arc;

use hyper::HeaderMap;

use crate::support::percent;

/// The kinds of errors of gRPC that a reaction depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    PermissionDenied,
    ResourceExhausted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
    Other,
}

/// The error of a request: what the server said, or why it said nothing.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// Only if the server said nothing.
    source: Option<Arc<dyn Cause + Send + Sync>>,
}

impl Status {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into(), source: None }
    }

    /// There is no connection, or it broke.
    pub(crate) fn unreachable(
        message: impl Into<String>,
        source: impl Into<Arc<dyn Cause + Send + Sync>>,
    ) -> Status {
        let source = Some(source.into());
        Status { code: Code::Unavailable, message: message.into(), source }
    }

    /// Whether the server said nothing.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.source.is_some()
    }

    /// What the headers at the end of a response say. `None` if they say nothing of it.
    pub(crate) fn from_trailers(trailers: &HeaderMap) -> Option<Result<(), Status>> {
        let text = |name| trailers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
        let code = match &*text("grpc-status")? {
            "0" => return Some(Ok(())),
            "1" => Code::Cancelled,
            "2" => Code::Unknown,
            "3" => Code::InvalidArgument,
            "4" => Code::DeadlineExceeded,
            "7" => Code::PermissionDenied,
            "8" => Code::ResourceExhausted,
            "11" => Code::OutOfRange,
            "12" => Code::Unimplemented,
            "13" => Code::Internal,
            "14" => Code::Unavailable,
            "16" => Code::Unauthenticated,
            _ => Code::Other,
        };
        let message = text("grpc-message").unwrap_or_default();
        let message = percent::decode(&message).unwrap_or_else(|| message.into_owned());
        Some(Err(Status::new(code, message)))
    }

    /// What a response says that is not of gRPC: something between client and server made it.
    pub(crate) fn from_http(status: u16) -> Status {
        let code = match status {
            401 => Code::Unauthenticated,
            403 => Code::PermissionDenied,
            404 => Code::Unimplemented,
            429 | 502..=504 => Code::Unavailable,
            _ => Code::Unknown,
        };
        Status::new(code, format!("HTTP status {status}"))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Cause for Status {
    fn source(&self) -> Option<&(dyn Cause + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn Cause + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trailers_tell_code_and_message() {
        let mut trailers = HeaderMap::new();
        assert!(Status::from_trailers(&trailers).is_none());
        trailers.insert("grpc-status", "0".parse().unwrap());
        assert!(Status::from_trailers(&trailers).unwrap().is_ok());
        trailers.insert("grpc-status", "14".parse().unwrap());
        trailers.insert("grpc-message", "50%25 of it".parse().unwrap());
        let status = Status::from_trailers(&trailers).unwrap().unwrap_err();
        assert_eq!((status.code, &*status.message), (Code::Unavailable, "50% of it"));
        assert!(!status.is_unreachable());
    }
}
