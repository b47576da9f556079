//! From the errors of the client library to [`Error`], by what the caller can do.

use zookeeper_client::Error as ClientError;

use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// The session left the server that got the request, before that responded.
pub(super) fn moved() -> Error {
    let message = "no response from zookeeper: the session has moved to another server";
    Error::new(ErrorKind::Unavailable, message)
}

/// A node exists that must not, or is not as it must be.
pub(super) fn bad_node(node: &str, what: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("the node `{}` {what}", node.escape_debug()))
}

/// The server deletes the empty container of a key again and again before a node is created in it.
pub(super) fn container_deleted() -> Error {
    let message = "zookeeper deletes the empty container of the key before it can be used";
    Error::new(ErrorKind::Unavailable, message)
}

/// Curator's semaphore and that of tenure have different nodes, and would not see each other.
pub(super) fn foreign_semaphore(key: &Key) -> Error {
    let message =
        format!("`{key}` is in use by Curator's semaphore; give the other a key of its own");
    Error::new(ErrorKind::Invalid, message)
}

/// New nodes of the key sort before older ones.
pub(super) fn sequence_overflow(key: &Key) -> Error {
    let message = format!(
        "the sequence numbers of `{key}` are used up after 2^31 claims; delete its node when no \
         claim is left"
    );
    Error::new(ErrorKind::Internal, message)
}

/// Any error of the client library. Every error that is not certainly a refusal leaves the outcome
/// of the request unknown.
pub(super) fn from_client(error: ClientError) -> Error {
    let (kind, message) = match &error {
        ClientError::NoAuth => (
            ErrorKind::Denied,
            "zookeeper refuses: the login has no right to this node; check its ACL".to_owned(),
        ),
        ClientError::AuthFailed => (ErrorKind::Denied, "zookeeper refuses the login".to_owned()),
        ClientError::QuotaExceeded => {
            (ErrorKind::Denied, "the quota of the chroot is used up; raise it".to_owned())
        }
        ClientError::NoChildrenForEphemerals => (
            ErrorKind::Invalid,
            "the key is held with `layout=ephemeral`; use one layout for a chroot".to_owned(),
        ),
        ClientError::InvalidAcl | ClientError::BadArguments(_) => {
            (ErrorKind::Invalid, format!("zookeeper refuses the request: {error}"))
        }
        ClientError::Unimplemented => (
            ErrorKind::Unsupported,
            "the server lacks container nodes; use ZooKeeper 3.5.3 or newer".to_owned(),
        ),
        ClientError::NoHosts => (ErrorKind::Unavailable, "no zookeeper can be reached".to_owned()),
        ClientError::UnmarshalError { .. }
        | ClientError::MarshallingError
        | ClientError::NoWatcher => {
            return Error::unexpected_response("zookeeper", &error).with_source(error);
        }
        _ => (ErrorKind::Unavailable, format!("the request to zookeeper failed: {error}")),
    };
    Error::new(kind, message).with_source(error)
}
