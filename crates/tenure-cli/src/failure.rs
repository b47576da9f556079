//! Errors of the program: an exit code, a message that names the thing, and one line of advice. All
//! errors of the library and the system become a [`Failure`] here.

use std::borrow::Cow;
use std::error::Error as _;
use std::io;

use tenure::{Error, ErrorKind};

use crate::exit;
use crate::output::{self, Harmless};

/// Why the program cannot do what it was told to do.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
    /// What to try next; empty where the message says it.
    pub(crate) advice: Cow<'static, str>,
}

impl Failure {
    pub(crate) fn new(
        code: u8,
        message: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Failure {
        Failure { code, message: message.into(), advice: advice.into() }
    }

    /// The server accepted the connection or the request, and did not respond within `--wait`.
    pub(crate) fn no_response() -> Failure {
        let message = "no response from the server for as long as --wait allows";
        Failure::new(exit::UNAVAILABLE, message, advice(ErrorKind::Unavailable))
    }

    /// A system call of the program itself failed; `what` completes "cannot …".
    pub(crate) fn system(what: &str, error: impl Into<io::Error>) -> Failure {
        let advice = "try again; if it stays, check the limits of this account (ulimit -a)";
        Failure::new(exit::INTERNAL, format!("cannot {what}: {}", error.into()), advice)
    }

    /// Writes it to stderr and returns the exit code.
    pub(crate) fn tell(&self) -> u8 {
        if self.message.is_empty() {
            return self.code;
        }
        output::say(&Harmless(&self.message));
        if !self.advice.is_empty() {
            output::advise(&Harmless(&self.advice));
        }
        self.code
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(exit::of(error.kind()), describe(&error), advice(error.kind()))
    }
}

/// An error and its causes in one line.
pub(crate) fn describe(error: &Error) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let text = source.to_string();
        if !is_repeated(&message, &text) {
            message.push_str(": ");
            message.push_str(&text);
        }
        cause = source.source();
    }
    message
}

/// Whether a message contains its cause already, or what follows the prefixes that client libraries
/// put before the words of the server.
fn is_repeated(message: &str, cause: &str) -> bool {
    let words = cause.rsplit(": ").next().unwrap_or(cause);
    message.contains(cause) || (words.contains(' ') && message.contains(words))
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        let advice = "check where the output goes, for example that the disk has space";
        Failure::new(exit::INTERNAL, format!("cannot write the output: {error}"), advice)
    }
}

fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Busy => "wait longer with --wait, or see the holder with `tenure show KEY`",
        // Never advise another store: a lock there excludes no client of this one.
        ErrorKind::Denied => "check user and password, and what they may do; or a file's rights",
        ErrorKind::Invalid => "see `tenure help`; the URL comes from --url, TENURE_URL or a file",
        ErrorKind::Lost => "see who holds it now with `tenure show KEY`",
        ErrorKind::Unavailable => "check the URL and the server or store, then try again",
        ErrorKind::Unsupported => "use a server that can do that; see `tenure help`",
        _ => "try again; if it stays, please report it with this message",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(message: &str, cause: &str) -> String {
        let cause = io::Error::other(cause.to_owned());
        describe(&Error::new(ErrorKind::Denied, message).with_source(cause))
    }

    #[test]
    fn the_words_of_the_server_are_not_repeated() {
        let denied = "PostgreSQL says: permission denied for table tenure_lease";
        let cause = "db error: ERROR: permission denied for table tenure_lease";
        assert_eq!(described(denied, cause), denied);
        assert_eq!(described("cannot reach x: refused", "refused"), "cannot reach x: refused");
    }

    #[test]
    fn a_cause_that_says_more_is_kept() {
        assert_eq!(described("cannot reach x", "refused"), "cannot reach x: refused");
        let cause = "db error: ERROR: relation does not exist";
        assert_eq!(described("no tables: x", cause), format!("no tables: x: {cause}"));
        assert_eq!(described("no EOF here", "unexpected: EOF"), "no EOF here: unexpected: EOF");
    }
}
