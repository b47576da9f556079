//! What the errors of the servers mean: for the next attempt, and for the caller.

use std::error::Error as Cause;
use std::fmt;
use std::io;

use super::connection::{Code, Status};
use crate::error::{Error, ErrorKind};

/// What to do after a failed attempt.
#[derive(Clone, Copy)]
pub(super) enum RetryAction {
    SameMember,
    NextMember,
    /// The error is the response: a retry would get the same.
    Fail,
    LogIn,
}

pub(super) fn retry_action(status: &Status) -> RetryAction {
    let says = |part: &str| status.message.contains(part);
    match status.code {
        // Whatever the text of the system's error is.
        _ if status.is_unreachable() => RetryAction::NextMember,
        Code::Unauthenticated => RetryAction::LogIn,
        // Authentication was switched on, or rights were changed, since the last login.
        Code::InvalidArgument if says("user name is empty") || says("auth store is old") => {
            RetryAction::LogIn
        }
        // The member is healthy; the cluster was electing a leader.
        Code::Unavailable if says("leader changed") || says("timed out") => RetryAction::SameMember,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => RetryAction::NextMember,
        Code::ResourceExhausted if says("too many requests") => RetryAction::SameMember,
        // The connection broke in the middle of a response.
        Code::Unknown | Code::Internal if !says("etcdserver") => RetryAction::NextMember,
        _ => RetryAction::Fail,
    }
}

/// Whether the server says that it does not have the lease.
pub(super) fn lease_not_found(error: &Error) -> bool {
    error.to_string().contains("requested lease not found")
}

/// Whether the login is good, but has no right to this key.
pub(super) fn permission_is_denied(error: &Error) -> bool {
    error.to_string().contains("permission denied")
}

pub(super) fn unavailable(message: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("etcd: {message}"))
}

/// A part of a response is missing or is not what it should be. Another member may respond
/// properly, so that this is worth another attempt.
pub(super) fn unexpected(what: impl fmt::Display) -> Error {
    let message = format!("unexpected response from etcd: {what}");
    Error::new(ErrorKind::Unavailable, message)
}

/// Whether nothing listens at the endpoint: then the request was not sent.
pub(super) fn is_refused(status: &Status) -> bool {
    let refused = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    causes(status).any(|cause| cause.downcast_ref::<io::Error>().is_some_and(refused))
}

/// Which endpoint cannot be reached and why, if that is what the status is about.
pub(super) fn unreachable(host: &str, status: &Status) -> Option<Error> {
    let cause = causes(status).find(|cause| cause.is::<io::Error>())?;
    Some(Error::new(ErrorKind::Unavailable, format!("cannot reach etcd at {host}: {cause}")))
}

fn causes(status: &Status) -> impl Iterator<Item = &(dyn Cause + 'static)> {
    std::iter::successors(Cause::source(status), |cause| (*cause).source())
}

/// An error with its causes, in one line.
pub(super) fn with_causes(error: &dyn Cause) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Turns an error of the gRPC client into an error of this crate.
pub(super) fn from_status(status: Status) -> Error {
    let message = status.message;
    let (kind, advice) = match status.code {
        Code::PermissionDenied | Code::Unauthenticated => {
            (ErrorKind::Denied, "; grant the user's role this key range, for reading and writing")
        }
        Code::InvalidArgument if message.contains("user name is empty") => {
            (ErrorKind::Denied, "; put a user and a password into the URL")
        }
        Code::InvalidArgument if message.contains("authentication failed") => {
            (ErrorKind::Denied, "; check user and password")
        }
        Code::ResourceExhausted if message.contains("space exceeded") => {
            (ErrorKind::Unavailable, "; compact and defragment etcd, then disarm the alarm")
        }
        Code::Unimplemented => (ErrorKind::Unsupported, "; etcd 3.4 or later is needed"),
        Code::InvalidArgument | Code::OutOfRange => (ErrorKind::Internal, ""),
        _ => (ErrorKind::Unavailable, ""),
    };
    Error::new(kind, format!("etcd: {message}{advice}"))
}
