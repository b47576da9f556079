//! The URL: where the server is, which of the three modes to use, and how waiters are woken.

use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};

use crate::error::{Error, Result};
use crate::support::credentials::UserLogin;
use crate::support::tls::Tls;
use crate::support::url::Url;

/// Two let one acquire pass while another waits for a row; more bring little on one primary. One
/// more connection is for renewals and polls.
const LEASE_CONNECTIONS: usize = 2;
/// A transaction each: the most row locks that a client holds at once.
const ROW_CONNECTIONS: usize = 16;
/// How often old rows are swept.
const SWEEP: Duration = Duration::from_secs(60);
/// Set here, because reading it from the server would cost a round trip at each connect. The
/// packets of tenure are far smaller.
const MAX_PACKET: usize = 16 << 20;
/// The client library uses it for its pools only, which tenure does not use.
const WAIT_TIMEOUT: usize = 28800;

/// What the URL says.
#[derive(Clone)]
pub(super) struct Config {
    /// How to reach the server; contains the password.
    pub(super) opts: Opts,
    pub(super) login: UserLogin,
    /// Host, port and database, for `Debug` output.
    pub(super) shown: String,
    pub(super) mode: LockMode,
    /// Whether waiters are woken by `KILL QUERY`; else they only poll.
    pub(super) wake_connection: bool,
    /// How many connections may carry requests, or row locks.
    pub(super) connections: usize,
    /// How often this client sweeps old rows; `None` for never.
    pub(super) sweep: Option<Duration>,
}

/// What holds the lock at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// A row with an expiry.
    Lease,
    /// A named lock of the connection.
    Session,
    /// A row lock of an open transaction.
    Row,
}

impl Config {
    pub(super) fn parse(mut url: Url) -> Result<Config> {
        let mode = match url.take_word("mode", &["lease", "session", "row"])? {
            Some("session") => LockMode::Session,
            Some("row") => LockMode::Row,
            _ => LockMode::Lease,
        };
        let wake_connection = url.take_word("wake", &["bell", "poll"])? != Some("poll");
        let default = if mode == LockMode::Row { ROW_CONNECTIONS } else { LEASE_CONNECTIONS };
        let connections = url.take_number("connections", 1..=1000)?.unwrap_or(default);
        let sweep = url.take_duration("sweep")?.unwrap_or(SWEEP);
        let sweep = Some(sweep).filter(|every| !every.is_zero());
        let (host, port) = one_host(&url)?;
        let database = database(url.path())?.to_owned();
        let opts = OptsBuilder::default()
            .ip_or_hostname(host.clone())
            .tcp_port(port)
            .user(url.user())
            .pass(url.password())
            .db_name(Some(&database))
            // A local socket would bypass the proxy or firewall that the URL names.
            .prefer_socket(false)
            .max_allowed_packet(Some(MAX_PACKET))
            .wait_timeout(Some(WAIT_TIMEOUT))
            .stmt_cache_size(0)
            .tcp_keepalive(Some(Duration::from_secs(15)));
        let opts = match Tls::take_sslmode(&mut url)? {
            Some(tls) => encrypted(opts, tls)?,
            None => opts,
        };
        let shown = format!("{host}:{port}/{database}");
        let login = url.login();
        url.finish()?;
        Ok(Config { opts: opts.into(), login, shown, mode, wake_connection, connections, sweep })
    }
}

#[cfg(feature = "mysql-tls")]
fn encrypted(opts: OptsBuilder, tls: Tls) -> Result<OptsBuilder> {
    use std::path::PathBuf;

    use mysql_async::{ClientIdentity, SslOpts};
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    // The client library uses the provider of the process, and panics where none is installed.
    if CryptoProvider::get_default().is_none() {
        let _installed_by_another_thread = ring::default_provider().install_default();
    }
    let ssl = SslOpts::default().with_disable_built_in_roots(true);
    let ssl = match tls.ca {
        Some(path) => ssl.with_root_certs(vec![PathBuf::from(path).into()]),
        None => {
            let found = rustls_native_certs::load_native_certs().certs;
            ssl.with_root_certs(found.into_iter().map(|root| root.to_vec().into()).collect())
        }
    };
    let identity = tls.identity.map(|(cert, key)| {
        ClientIdentity::new(PathBuf::from(cert).into(), PathBuf::from(key).into())
    });
    let ssl = ssl.with_client_identity(identity);
    Ok(opts.ssl_opts(ssl))
}

#[cfg(not(feature = "mysql-tls"))]
fn encrypted(_: OptsBuilder, _: Tls) -> Result<OptsBuilder> {
    let message = "an encrypted connection needs the cargo feature `mysql-tls` of tenure";
    Err(Error::new(crate::error::ErrorKind::Unsupported, message))
}

fn one_host(url: &Url) -> Result<(String, u16)> {
    let mut hosts = url.hosts(3306)?;
    match (hosts.pop(), hosts.len()) {
        (Some(host), 0) => Ok(host),
        _ => Err(Error::invalid("a mysql URL names one host; locks live on one primary")),
    }
}

fn database(path: &str) -> Result<&str> {
    match path.trim_start_matches('/') {
        "" => Err(Error::invalid("the mysql URL names no database; write mysql://host/DATABASE")),
        name if name.contains('/') => {
            let shown = name.escape_debug();
            Err(Error::invalid(format!("`{shown}` in the mysql URL is not the name of a database")))
        }
        name => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config> {
        Config::parse(Url::parse(url)?)
    }

    #[test]
    fn a_url_sets_server_and_mode() {
        assert_eq!(config("mysql://h/a").unwrap().mode, LockMode::Lease);
        let config = config("mysql://me:p%40ss@db:3307/app?mode=row&wake=poll").unwrap();
        assert_eq!(config.shown, "db:3307/app");
        assert_eq!((config.mode, config.wake_connection), (LockMode::Row, false));
        assert_eq!(config.connections, ROW_CONNECTIONS);
        assert_eq!(config.opts.pass(), Some("p@ss"));
    }

    #[test]
    fn a_wrong_url_is_refused_with_the_reason() {
        for (url, part) in [
            ("mysql://h", "names no database"),
            ("mysql://h/a/b", "not the name of a database"),
            ("mysql://h,i/a", "one host"),
            ("mysql://h/a?connections=0", "from 1 to 1000"),
            ("mysql://h/a?mode=advisory", "lease, session, row"),
            ("mysql://h/a?pool=3", "unknown option `pool`"),
        ] {
            let error = config(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
