//! What the server or the way to it can answer instead, said so that a person knows what to try.

use mysql_async::{DriverError, Error as Mysql, IoError, Opts, ServerError};

use crate::error::{Error, ErrorKind};

/// No answer in time: nothing is known.
pub(super) fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "mysql did not answer in time")
}

/// The link's task is gone, with its runtime.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the connection to mysql was closed with its client")
}

/// A row that does not look as we wrote it.
pub(super) fn strange(what: &str) -> Error {
    Error::new(ErrorKind::Internal, format!("mysql answered {what}, which tenure did not write"))
}

/// Whether the statement was rolled back because of others, so that it is to be repeated at once:
/// lock wait timeout, deadlock, and MariaDB's "record has changed since last read".
pub(super) fn is_clash(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code: 1205 | 1213 | 1020, .. }))
}

/// Whether a statement waited for a row until its time was over.
pub(super) fn is_lock_wait(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code: 1205, .. }))
}

/// Whether another connection ended the statement by `KILL QUERY`.
pub(super) fn is_interrupted(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code: 1317, .. }))
}

/// Whether the connection is of no use any more: the way to the server is broken, the server is
/// about to close it (shutdown, killed, connection killed by an administrator), or it takes no
/// writes. After a failover only a new connection, which looks the name up again, leads to the
/// primary.
pub(super) fn is_fatal(error: &Mysql) -> bool {
    match error {
        Mysql::Server(ServerError { code, .. }) => {
            matches!(code, 1053 | 1152 | 1184 | 1927 | 4031) || takes_no_writes(*code)
        }
        _ => true,
    }
}

/// Whether the server has said that it takes no writes.
pub(super) fn is_demotion(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code, .. }) if takes_no_writes(*code))
}

/// Read-only (the server, its transactions, its tables), or not ready as a member of its cluster
/// (Galera, offline mode, group replication).
fn takes_no_writes(code: u16) -> bool {
    matches!(code, 1290 | 1792 | 1836 | 1047 | 3032 | 3100)
}

/// The server that the URL led to is not the primary.
pub(super) fn read_only() -> Error {
    let message = "mysql is read-only, as a replica or a former primary is; the URL has to lead to \
                   the primary";
    Error::new(ErrorKind::Unavailable, message)
}

/// Another transaction has locked the row of a claim, so that it could not be renewed.
pub(super) fn row_is_locked() -> Error {
    let message = "another transaction has locked the row of this key in mysql";
    Error::new(ErrorKind::Unavailable, message)
}

/// The server could not be reached, or did not let us in.
pub(super) fn at(opts: &Opts, error: Mysql) -> Error {
    match error {
        Mysql::Io(IoError::Io(cause)) => {
            let (host, port) = (opts.ip_or_hostname(), opts.tcp_port());
            let message = format!("cannot reach mysql at {host}:{port}");
            Error::new(ErrorKind::Unavailable, message).with_source(cause)
        }
        error => from_mysql(error),
    }
}

/// Any error of the client library.
pub(super) fn from_mysql(error: Mysql) -> Error {
    let (kind, message) = match &error {
        Mysql::Server(server) => from_server(server),
        Mysql::Driver(DriverError::UnknownAuthPlugin { name }) => {
            let message = format!("the user logs in by `{name}`, which tenure does not know");
            (ErrorKind::Unsupported, message)
        }
        Mysql::Url(_) => (ErrorKind::Invalid, "the mysql URL cannot be used".to_owned()),
        Mysql::Driver(_) | Mysql::Io(_) | Mysql::Other(_) => {
            (ErrorKind::Unavailable, "the connection to mysql is broken".to_owned())
        }
    };
    Error::new(kind, message).with_source(error)
}

fn from_server(error: &ServerError) -> (ErrorKind, String) {
    let said = &error.message;
    match error.code {
        1044 | 1142 | 1143 | 1227 => (
            ErrorKind::Denied,
            format!("mysql refuses: {said}; grant SELECT, INSERT, UPDATE and DELETE on `tenure_*`"),
        ),
        1045 | 1698 | 3118 | 1820 | 1862 => {
            (ErrorKind::Denied, format!("mysql refuses the login: {said}"))
        }
        1049 => (ErrorKind::Invalid, format!("{said}; create it, or name another in the URL")),
        1040 | 1203 | 1226 => {
            (ErrorKind::Unavailable, format!("mysql has no connection left: {said}"))
        }
        1146 => {
            (ErrorKind::Invalid, format!("{said}; make it with what `tenure schema mysql` prints"))
        }
        code if takes_no_writes(code) => (
            ErrorKind::Unavailable,
            format!("mysql takes no writes ({said}); name the primary in the URL"),
        ),
        1665 => (ErrorKind::Unsupported, format!("{said}; set binlog_format to ROW or MIXED")),
        // Clash, shutdown, interruption, kill: nothing was done, or nothing is known.
        1020 | 1053 | 1152 | 1184 | 1205 | 1213 | 1317 | 1927 | 1969 | 3024 | 4031 => {
            (ErrorKind::Unavailable, format!("mysql did not carry it out: {said}"))
        }
        code => (ErrorKind::Internal, format!("mysql error {code}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_has_the_kind_that_says_what_to_do() {
        for (code, kind, part) in [
            (1045, ErrorKind::Denied, "login"),
            (1142, ErrorKind::Denied, "grant SELECT"),
            (1049, ErrorKind::Invalid, "create it"),
            (1146, ErrorKind::Invalid, "tenure schema mysql"),
            (1040, ErrorKind::Unavailable, "no connection left"),
            (1213, ErrorKind::Unavailable, "did not carry it out"),
            (1836, ErrorKind::Unavailable, "primary"),
            (1047, ErrorKind::Unavailable, "primary"),
            (1064, ErrorKind::Internal, "1064"),
        ] {
            let (message, state) = ("x".to_owned(), "HY000".to_owned());
            let error = from_mysql(Mysql::Server(ServerError { code, message, state }));
            assert_eq!(error.kind(), kind, "{code}: {error}");
            assert!(error.to_string().contains(part), "{code}: {error}");
        }
    }
}
