//! Errors: a server is not available on this machine, or an operation on one failed. Test suites
//! ignore a case for the first and fail for the second.

use std::fmt;

/// The result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why there is no server, or why an operation on it failed.
///
/// `Display` reads like `could not get redis: the mirror is not reachable`.
#[derive(Clone, Debug)]
pub struct Error {
    missing: bool,
    doing: String,
    reason: String,
}

impl Error {
    /// The server is not available on this machine.
    pub(crate) fn missing(server: &str, reason: impl fmt::Display) -> Self {
        Self { missing: true, doing: format!("get {server}"), reason: reason.to_string() }
    }

    /// An operation failed; `doing` completes "could not …".
    pub(crate) fn failed(doing: impl fmt::Display, reason: impl fmt::Display) -> Self {
        Self { missing: false, doing: doing.to_string(), reason: reason.to_string() }
    }

    /// Whether the server is not available on this machine: no binary, no network, no compiler. A
    /// suite shows the case as ignored, unless [`require`](crate::require) is true for it.
    pub fn is_missing(&self) -> bool {
        self.missing
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not {}: {}", self.doing, self.reason)
    }
}

impl std::error::Error for Error {}
