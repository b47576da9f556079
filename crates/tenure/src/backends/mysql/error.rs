//! Errors of the client library and of the server, turned into [`Error`]s that say what to try.

use mysql_async::{DriverError, Error as Mysql, IoError, Opts, ServerError};

use crate::error::{Error, ErrorKind};

/// The task of the connection has ended, with its runtime.
pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the connection to mysql was closed with its client")
}

/// Whether the server rolled the statement back because of other transactions, so that it can be
/// repeated at once: lock wait timeout, deadlock, and MariaDB's "record has changed since last
/// read".
pub(super) fn is_conflict(error: &Mysql) -> bool {
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

/// Whether a client could not be woken by `KILL QUERY`: it has no wake connection, or connects as
/// another user.
pub(super) fn is_failed_wake(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code: 1094 | 1095, .. }))
}

/// Whether the connection cannot be used any more: the network connection is broken, the server is
/// about to close it (shutdown, killed, connection killed by an administrator), or it refuses
/// writes. After a failover only a new connection, which resolves the host name again, reaches the
/// primary.
pub(super) fn breaks_connection(error: &Mysql) -> bool {
    match error {
        Mysql::Server(ServerError { code, .. }) => {
            matches!(code, 1053 | 1152 | 1184 | 1927 | 4031) || refuses_writes(*code)
        }
        _ => true,
    }
}

/// Whether the server says that it refuses writes.
pub(super) fn is_demotion(error: &Mysql) -> bool {
    matches!(error, Mysql::Server(ServerError { code, .. }) if refuses_writes(*code))
}

/// Read-only (the server, its transactions, its tables), or not ready as a member of its cluster
/// (Galera, offline mode, group replication).
fn refuses_writes(code: u16) -> bool {
    matches!(code, 1290 | 1792 | 1836 | 1047 | 3032 | 3100)
}

/// The server that the URL names is not the primary.
pub(super) fn read_only() -> Error {
    let message = "mysql is read-only, as a replica or a former primary is; the URL has to lead to \
                   the primary";
    Error::new(ErrorKind::Unavailable, message)
}

/// Two statements of one connection reached the server over two.
pub(super) fn shared_by_proxy() -> Error {
    let message = "a proxy in front of mysql shares connections among its clients, so that a \
                   client cannot keep the locks of a connection; use `?mode=lease`, or connect \
                   directly";
    Error::new(ErrorKind::Unsupported, message)
}

/// Another transaction has locked the row of a claim, so that it could not be renewed.
pub(super) fn row_is_locked() -> Error {
    let message = "another transaction has locked the row of this key in mysql";
    Error::new(ErrorKind::Unavailable, message)
}

/// A connection could not be opened: the server was not reached, or it refused the login.
pub(super) fn from_connect(opts: &Opts, error: Mysql) -> Error {
    match error {
        Mysql::Io(IoError::Io(cause)) => {
            let host = opts.ip_or_hostname();
            let message = format!("cannot reach mysql at {host}:{}", opts.tcp_port());
            Error::new(ErrorKind::Unavailable, message).with_source(cause)
        }
        error => from_mysql(error),
    }
}

/// The error for a connection that broke while it executed a request. Whatever the reason, the
/// outcome is unknown, which is what `Unavailable` means.
pub(super) fn unknown_outcome(error: Mysql) -> Error {
    let error = from_mysql(error);
    if error.kind() == ErrorKind::Unavailable {
        return error;
    }
    Error::new(ErrorKind::Unavailable, error.to_string()).with_source(error)
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
        code if refuses_writes(code) => (
            ErrorKind::Unavailable,
            format!("mysql refuses writes ({said}); name the primary in the URL"),
        ),
        1665 => (ErrorKind::Unsupported, format!("{said}; set binlog_format to ROW or MIXED")),
        // Conflict, shutdown, interruption, kill: it was not executed, or the outcome is unknown.
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
    fn a_server_error_gets_the_kind_that_says_what_to_do() {
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
