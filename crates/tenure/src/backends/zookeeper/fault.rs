//! What can go wrong, by what the caller should do about it.

use std::time::Duration;

use zookeeper_client::Error as Client;

use crate::error::{Error, ErrorKind};

/// The server did not answer within our own deadline.
pub(super) fn silent(hosts: &str, limit: Duration) -> Error {
    let message = format!("no answer from zookeeper at {hosts} within {} ms", limit.as_millis());
    Error::new(ErrorKind::Unavailable, message)
}

/// The server that was asked has been left for another.
pub(super) fn moved() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "zookeeper did not answer, and its server was left for another",
    )
}

/// A node that must not be there, or not so.
pub(super) fn odd(node: &str, what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the node `{}` {what}", node.escape_debug()))
}

/// Any error of the client. Whatever does not say no for certain is doubt.
pub(super) fn from_client(error: Client) -> Error {
    let (kind, message) = match &error {
        Client::NoAuth => (
            ErrorKind::Denied,
            "zookeeper refuses: the login has no right to this node; look at its ACL".to_owned(),
        ),
        Client::AuthFailed => (ErrorKind::Denied, "zookeeper refuses the login".to_owned()),
        Client::QuotaExceeded => {
            (ErrorKind::Denied, "the quota of the chroot is used up; raise it".to_owned())
        }
        Client::NoChildrenForEphemerals => (
            ErrorKind::Invalid,
            "the key is held with `layout=ephemeral`; use one layout for a chroot".to_owned(),
        ),
        Client::InvalidAcl | Client::BadArguments(_) => {
            (ErrorKind::Invalid, format!("zookeeper refuses the request: {error}"))
        }
        Client::Unimplemented => (
            ErrorKind::Unsupported,
            "the server lacks container nodes; use ZooKeeper 3.5.3 or newer".to_owned(),
        ),
        Client::NoHosts => (ErrorKind::Unavailable, "no zookeeper can be reached".to_owned()),
        Client::UnmarshalError { .. } | Client::MarshallingError | Client::NoWatcher => {
            (ErrorKind::Internal, format!("zookeeper is not understood: {error}"))
        }
        _ => (ErrorKind::Unavailable, format!("zookeeper did not answer: {error}")),
    };
    Error::new(kind, message).with_source(error)
}
