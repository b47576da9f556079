//! What the errors of the servers mean: for the next request, and for the user.

use std::error::Error as Cause;
use std::fmt;
use std::io;

use tonic::{Code, Status};

use crate::error::{Error, ErrorKind};

/// What a failed request means for the next one.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    /// Ask the same member again.
    Again,
    /// Ask another member.
    Elsewhere,
    /// It is an answer.
    Final,
    /// Log in again.
    Login,
}

pub(super) fn meaning(status: &Status) -> Meaning {
    let says = |part: &str| status.message().contains(part);
    match status.code() {
        Code::Unauthenticated => Meaning::Login,
        // Authentication was switched on, or rights were changed, since we logged in.
        Code::InvalidArgument if says("user name is empty") || says("auth store is old") => {
            Meaning::Login
        }
        // The member is well; the cluster was changing its mind.
        Code::Unavailable if says("leader changed") || says("timed out") => Meaning::Again,
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => Meaning::Elsewhere,
        Code::ResourceExhausted if says("too many requests") => Meaning::Again,
        // The connection broke in the middle of an answer.
        Code::Unknown | Code::Internal if !says("etcdserver") => Meaning::Elsewhere,
        _ => Meaning::Final,
    }
}

/// Whether the server says that a lease is not there.
pub(super) fn lease_is_gone(error: &Error) -> bool {
    error.to_string().contains("requested lease not found")
}

/// Whether the server knows us, and says no.
pub(super) fn permission_is_denied(error: &Error) -> bool {
    error.to_string().contains("permission denied")
}

pub(super) fn unavailable(message: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("etcd: {message}"))
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
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The one place where the client's errors become ours.
pub(super) fn from_status(status: Status) -> Error {
    let message = match status.message() {
        "" => chain(&status),
        message => message.to_owned(),
    };
    let (kind, advice) = match status.code() {
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
