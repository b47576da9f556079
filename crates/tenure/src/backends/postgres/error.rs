//! Errors of the server and of the client library as errors of tenure, with what to try.

use tokio_postgres::error::SqlState;

use super::config::Config;
use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// Whether a statement was rolled back because of another transaction, so that it may be repeated
/// at once.
pub(super) fn lost_a_race(error: &tokio_postgres::Error) -> bool {
    let code = error.code();
    code == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
        || code == Some(&SqlState::T_R_DEADLOCK_DETECTED)
}

/// Whether the server itself refused: an error response, and not silence or a broken connection.
pub(super) fn is_response(error: &Error) -> bool {
    code(error).is_some()
}

/// Whether a statement was refused because its transaction had been aborted before.
pub(super) fn is_aborted(error: &Error) -> bool {
    code(error) == Some(&SqlState::IN_FAILED_SQL_TRANSACTION)
}

/// Whether the table has no such column: an earlier version made it.
pub(super) fn is_missing_column(error: &Error) -> bool {
    code(error) == Some(&SqlState::UNDEFINED_COLUMN)
}

/// The code of the error response, if one is the cause of this error.
fn code(error: &Error) -> Option<&SqlState> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<tokio_postgres::Error>()?.code()
}

/// Whether the server accepts no writes: it was demoted, or is about to be moved.
pub(super) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// No connection to the host.
pub(super) fn from_io(host: &str, port: u16, error: std::io::Error) -> Error {
    let message = format!("cannot reach PostgreSQL at {host}:{port}");
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// The host was reached, and TLS or the login failed.
pub(super) fn from_connect(
    config: &Config,
    host: &str,
    port: u16,
    error: tokio_postgres::Error,
) -> Error {
    let Config { user, database, .. } = config;
    let (kind, message) = match error.code() {
        Some(code)
            if *code == SqlState::INVALID_PASSWORD
                || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            let message = format!(
                "PostgreSQL at {host}:{port} does not let in `{user}`; check user and password"
            );
            (ErrorKind::Denied, message)
        }
        Some(code) if *code == SqlState::INVALID_CATALOG_NAME => {
            (ErrorKind::Invalid, format!("there is no database `{database}` at {host}:{port}"))
        }
        Some(code) if *code == SqlState::TOO_MANY_CONNECTIONS => {
            let message = format!(
                "PostgreSQL at {host}:{port} has no connection left; raise max_connections"
            );
            (ErrorKind::Unavailable, message)
        }
        _ => {
            let message = format!("cannot connect to PostgreSQL at {host}:{port}: {error}");
            (ErrorKind::Unavailable, message)
        }
    };
    Error::new(kind, message).with_source(error)
}

/// The connection ended before the response came.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to PostgreSQL is closed")
}

/// An eviction that the server did not carry out.
pub(super) fn not_evicted(key: &Key) -> Error {
    let message = format!(
        "the session that holds `{key}` does not end; end it with pg_terminate_backend as a \
         superuser"
    );
    Error::new(ErrorKind::Denied, message)
}

/// A response that tenure's own statement cannot have.
pub(super) fn unexpected(what: &str) -> Error {
    Error::unexpected_response("PostgreSQL", what)
}

/// Any other error of the server or the client library.
pub(super) fn from_server(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code().cloned() else {
        let message = format!("the connection to PostgreSQL failed: {error}");
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    };
    let text = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let kind = match code.code() {
        "42501" => ErrorKind::Denied,
        "42P01" | "42703" | "3F000" => {
            let message = format!(
                "{text}: the tables of tenure are missing or were not made by it; \
                 `tenure schema postgres` prints them"
            );
            return Error::new(ErrorKind::Invalid, message).with_source(error);
        }
        "26000" | "42P05" => {
            let message = "a transaction pooler seems to be in front of PostgreSQL; connect past \
                           it, or say `pooler=yes`";
            return Error::new(ErrorKind::Unsupported, message).with_source(error);
        }
        // Bad data, bad syntax, unsupported features: a bug of tenure.
        code if code.starts_with("22") || code.starts_with("42") || code.starts_with("0A") => {
            ErrorKind::Internal
        }
        // Out of resources, shutting down, cancelled, read-only for now: the outcome is unknown.
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("PostgreSQL says: {text}")).with_source(error)
}
