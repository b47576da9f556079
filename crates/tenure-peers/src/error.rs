//! Why a program cannot be had.

use std::fmt;

/// Why a program cannot be had, in one line.
#[derive(Debug)]
pub struct Error {
    missing: bool,
    reason: String,
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn missing(reason: String) -> Error {
        Error { missing: true, reason }
    }

    pub(crate) fn failed(reason: String) -> Error {
        Error { missing: false, reason }
    }

    /// Whether a tool or a registry cannot be had here, so that it says nothing about the program.
    pub fn is_missing(&self) -> bool {
        self.missing
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Error {
        Error::failed(error.to_string())
    }
}
