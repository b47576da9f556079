//! The URL: where the server is, which of the three ways to lock, and how waiters are woken.

use std::time::Duration;

use mysql_async::{Opts, OptsBuilder};

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::tls::Tls;

/// What the URL says.
#[derive(Clone)]
pub(super) struct Settings {
    /// How to reach the server; has the password in it.
    pub(super) opts: Opts,
    /// For people: host, port and database.
    pub(super) shown: String,
    pub(super) kind: Kind,
    pub(super) bell: bool,
    /// How many connections may carry requests, or row locks.
    pub(super) connections: usize,
    /// Whether old rows are swept by this client.
    pub(super) sweep: Option<Duration>,
}

/// What holds the lock at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A row with an expiry.
    Lease,
    /// A named lock of the connection.
    Session,
    /// A row lock of an open transaction.
    Row,
}

impl Settings {
    pub(super) fn take(mut options: Options) -> Result<Settings> {
        let kind = match options.take_word("mode", &["lease", "session", "row"])? {
            Some("session") => Kind::Session,
            Some("row") => Kind::Row,
            _ => Kind::Lease,
        };
        let bell = options.take_word("wake", &["bell", "poll"])? != Some("poll");
        let connections = match options.take("connections") {
            Some(text) => count(&text)?,
            None if kind == Kind::Row => ROW_CONNECTIONS,
            None => LEASE_CONNECTIONS,
        };
        let sweep = options.take_duration("sweep")?.unwrap_or(SWEEP);
        let sweep = Some(sweep).filter(|every| !every.is_zero());
        let (host, port) = one_host(&options)?;
        let database = database(options.path())?.to_owned();
        let opts = OptsBuilder::default()
            .ip_or_hostname(host.clone())
            .tcp_port(port)
            .user(options.user())
            .pass(options.password())
            .db_name(Some(&database))
            // A way to the server that was not named is a way around its proxy or firewall.
            .prefer_socket(false)
            .max_allowed_packet(Some(MAX_PACKET))
            .wait_timeout(Some(WAIT_TIMEOUT))
            .stmt_cache_size(0)
            .tcp_keepalive(Some(Duration::from_secs(15)));
        let opts = match Tls::take_sslmode(&mut options)? {
            Some(tls) => encrypted(opts, tls)?,
            None => opts,
        };
        let shown = format!("{host}:{port}/{database}");
        options.finish()?;
        Ok(Settings { opts: opts.into(), shown, kind, bell, connections, sweep })
    }
}

#[cfg(feature = "mysql-tls")]
fn encrypted(opts: OptsBuilder, tls: Tls) -> Result<OptsBuilder> {
    use std::path::PathBuf;

    use mysql_async::{ClientIdentity, SslOpts};
    use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
    // The client library takes the provider of the process, and panics where there is none to take.
    if CryptoProvider::get_default().is_none() {
        let _other = ring::default_provider().install_default();
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
    Err(Error::new(ErrorKind::Unsupported, message))
}

fn one_host(options: &Options) -> Result<(String, u16)> {
    let mut hosts = options.hosts(3306)?;
    match (hosts.pop(), hosts.len()) {
        (Some(host), 0) => Ok(host),
        _ => Err(invalid("a mysql URL names one host; locks live on one primary")),
    }
}

fn database(path: &str) -> Result<&str> {
    match path.trim_start_matches('/') {
        "" => Err(invalid("the mysql URL names no database; write mysql://host/DATABASE")),
        name if name.contains('/') => {
            let shown = name.escape_debug();
            Err(invalid(format!("`{shown}` in the mysql URL is not the name of a database")))
        }
        name => Ok(name),
    }
}

fn count(text: &str) -> Result<usize> {
    let good = text.parse().ok().filter(|count| (1..=1000).contains(count));
    good.ok_or_else(|| {
        let shown = text.escape_debug();
        invalid(format!("option `connections` is `{shown}`; it is a number from 1 to 1000"))
    })
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Two let a take pass while another waits for a row; more bring little on one primary. One more is
/// for renewals and looks.
const LEASE_CONNECTIONS: usize = 2;
/// A transaction each: the most row locks that a client holds at once.
const ROW_CONNECTIONS: usize = 16;
/// How often old rows are looked for.
const SWEEP: Duration = Duration::from_secs(60);
/// Not asked from the server, which would cost a trip at each connect. Ours are far smaller.
const MAX_PACKET: usize = 16 << 20;
/// The client library uses it for pools only, which we do not have.
const WAIT_TIMEOUT: usize = 28800;

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<Settings> {
        Settings::take(Options::parse(url)?)
    }

    #[test]
    fn a_url_says_where_and_how() {
        assert_eq!(settings("mysql://h/a").unwrap().kind, Kind::Lease);
        let settings = settings("mysql://me:p%40ss@db:3307/app?mode=row&wake=poll").unwrap();
        assert_eq!(settings.shown, "db:3307/app");
        assert_eq!((settings.kind, settings.bell), (Kind::Row, false));
        assert_eq!(settings.connections, ROW_CONNECTIONS);
        assert_eq!(settings.opts.pass(), Some("p@ss"));
    }

    #[test]
    fn a_wrong_url_says_what_is_wrong() {
        for (url, part) in [
            ("mysql://h", "names no database"),
            ("mysql://h/a/b", "not the name of a database"),
            ("mysql://h,i/a", "one host"),
            ("mysql://h/a?connections=0", "from 1 to 1000"),
            ("mysql://h/a?mode=advisory", "lease, session, row"),
            ("mysql://h/a?pool=3", "unknown option `pool`"),
        ] {
            let error = settings(url).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
