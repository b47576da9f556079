//! What can go wrong with the server, said so that a person knows what to try.

use tokio_postgres::error::SqlState;

use super::settings::Settings;
use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// A statement lost a race against another transaction and may be repeated at once.
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

/// What the server said, where an error of ours has it as its cause.
fn code(error: &Error) -> Option<&SqlState> {
    let source = std::error::Error::source(error)?;
    source.downcast_ref::<tokio_postgres::Error>()?.code()
}

/// The server takes no writes: it was demoted, or is being moved.
pub(super) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

pub(super) fn from_io(host: &str, port: u16, error: std::io::Error) -> Error {
    let message = format!("cannot reach PostgreSQL at {host}:{port}");
    Error::new(ErrorKind::Unavailable, message).with_source(error)
}

/// The server, or the way to it, refused the connection.
pub(super) fn from_connect(
    settings: &Settings,
    host: &str,
    port: u16,
    error: tokio_postgres::Error,
) -> Error {
    let (user, database) = (&settings.user, &settings.database);
    let (kind, message) = match error.code() {
        Some(code)
            if *code == SqlState::INVALID_PASSWORD
                || *code == SqlState::INVALID_AUTHORIZATION_SPECIFICATION =>
        {
            let message = format!(
                "PostgreSQL at {host}:{port} does not let in `{user}`; look at user and password"
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

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Unavailable, "the connection to PostgreSQL is gone")
}

/// An eviction that the server did not carry out.
pub(super) fn stubborn(key: &Key) -> Error {
    let message = format!(
        "the session that holds `{key}` does not end; end it with pg_terminate_backend as a \
         superuser"
    );
    Error::new(ErrorKind::Denied, message)
}

/// An answer that does not look as our own statement makes it.
pub(super) fn odd(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("PostgreSQL gave an odd answer about {what}"))
}

/// Any other error of the server or the client library.
pub(super) fn from_server(error: tokio_postgres::Error) -> Error {
    let Some(code) = error.code().cloned() else {
        let message = format!("the connection to PostgreSQL failed: {error}");
        return Error::new(ErrorKind::Unavailable, message).with_source(error);
    };
    let said = error.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    let kind = match code.code() {
        "42501" => ErrorKind::Denied,
        "42P01" | "42703" | "3F000" => {
            let message = format!(
                "{said}: the tables of tenure are missing or not ours; `tenure schema postgres` \
                 prints them"
            );
            return Error::new(ErrorKind::Invalid, message).with_source(error);
        }
        "26000" | "42P05" => {
            let message = "a transaction pooler seems to be in front of PostgreSQL; connect past \
                           it, or say `pooler=yes`";
            return Error::new(ErrorKind::Unsupported, message).with_source(error);
        }
        // Bad data, and what the server does not know: ours to mend.
        code if code.starts_with("22") || code.starts_with("42") || code.starts_with("0A") => {
            ErrorKind::Internal
        }
        // Out of resources, shutting down, cancelled, read-only for now: nothing is known.
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("PostgreSQL says: {said}")).with_source(error)
}
