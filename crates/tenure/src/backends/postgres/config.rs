//! What the URL says: hosts, login, the mode of locks, and limits.

use std::fmt;
use std::time::Duration;

use super::layout::schema::Schema;
use super::libpq;
use crate::error::{Error, ErrorKind, Result};
use crate::support::credentials::UserLogin;
use crate::support::tls::Tls;
use crate::support::url::Url;

/// Two connections can commit side by side; more help only where a commit takes long.
const DEFAULT_CONNECTIONS: usize = 2;
const DEFAULT_ROWS: usize = 20;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_SWEEP: Duration = Duration::from_secs(60);

/// Everything that connections and modes need to know.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) tls: Option<Tls>,
    pub(super) user: String,
    pub(super) login: UserLogin,
    pub(super) database: String,
    /// What the server shows as the name of a connection.
    pub(super) application_name: String,
    /// Settings of the session, as `psql` takes them in `PGOPTIONS`.
    pub(super) options: Option<String>,
    /// The schema that has the tables.
    pub(super) schema: Schema,
    pub(super) mode: LockMode,
    /// The limit of connections for statements, besides the one that listens and those that hold
    /// locks.
    pub(super) connections: usize,
    /// The limit of row locks that are held at once.
    pub(super) rows: usize,
    /// A transaction pooler is in front: no prepared statements, no session settings, no LISTEN.
    pub(super) pooled: bool,
    pub(super) connect_timeout: Duration,
    /// The pause between two sweeps for expired rows.
    pub(super) sweep: Duration,
}

/// What a lock is at the server: the option `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// A row with an end of time.
    Lease,
    /// An advisory lock of a session.
    Session,
    /// A row lock of an open transaction.
    Row,
}

impl LockMode {
    /// The value of the option, which is also the column `mode` of the registry.
    pub(super) fn name(self) -> &'static str {
        match self {
            LockMode::Lease => "lease",
            LockMode::Session => "session",
            LockMode::Row => "row",
        }
    }
}

impl Config {
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let mode = match url.take_word("mode", &["lease", "session", "row"])? {
            Some("session") => LockMode::Session,
            Some("row") => LockMode::Row,
            _ => LockMode::Lease,
        };
        let schema = Schema::from_url(&mut url)?;
        let connections = url.take_number("connections", 1..=1000)?;
        let rows = url.take_number("rows", 1..=1000)?;
        let pooled = url.take_word("pooler", &["no", "yes"])? == Some("yes");
        if pooled && mode != LockMode::Lease {
            return Err(pooler_in_front(mode));
        }
        let connect_timeout = libpq::connect_timeout(&mut url)?;
        let sweep = url.take_duration("sweep")?;
        let tls = Tls::take_sslmode(&mut url)?;
        let hosts = libpq::hosts(&mut url)?;
        libpq::check_session_attrs(&mut url)?;
        let application_name = url.take("application_name").unwrap_or_else(|| "tenure".to_owned());
        let options = url.take("options");
        libpq::refuse_others(&mut url)?;
        let user = url.user().unwrap_or("postgres").to_owned();
        let database = match url.path().trim_start_matches('/') {
            "" => user.clone(),
            name => name.to_owned(),
        };
        let login = url.login();
        url.finish()?;
        Ok(Config {
            hosts,
            tls,
            user,
            login,
            database,
            application_name,
            options,
            schema,
            mode,
            connections: connections.unwrap_or(DEFAULT_CONNECTIONS),
            rows: rows.unwrap_or(DEFAULT_ROWS),
            pooled,
            connect_timeout: connect_timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT),
            sweep: sweep.unwrap_or(DEFAULT_SWEEP),
        })
    }
}

/// Shows no secret.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |(host, port): &(String, u16)| format!("{host}:{port}");
        let hosts: Vec<_> = self.hosts.iter().map(address).collect();
        let mode = self.mode.name();
        write!(f, "postgres://{}/{}?mode={mode}", hosts.join(","), self.database)
    }
}

/// The mode does not work behind the transaction pooler that is in front, or only with
/// `pooler=yes`.
pub(super) fn pooler_in_front(mode: LockMode) -> Error {
    let message = match mode {
        LockMode::Lease => "a transaction pooler is in front of PostgreSQL; say `pooler=yes`, or \
                            connect past it"
            .to_owned(),
        LockMode::Session | LockMode::Row => format!(
            "`mode={}` needs the same server session all the time, and a transaction pooler is in \
             front; connect past it, or use `mode=lease`",
            mode.name()
        ),
    };
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config> {
        Config::from_url(Url::parse(url)?)
    }

    #[test]
    fn a_url_sets_every_field() {
        let url = "postgresql://me:s%40cret@one,two:5433/app?mode=row&connections=3&rows=7";
        let config = config(url).unwrap();
        assert_eq!(config.hosts, [("one".into(), 5432), ("two".into(), 5433)]);
        assert_eq!((config.user.as_str(), config.database.as_str()), ("me", "app"));
        assert_eq!(config.login.password.as_deref(), Some("s@cret"));
        assert_eq!((config.mode, config.connections, config.rows), (LockMode::Row, 3, 7));
        let shown = format!("{config:?}");
        assert!(!shown.contains("cret"), "{shown}");
    }

    #[test]
    fn a_url_without_options_has_defaults() {
        let config = config("postgres://").unwrap();
        assert_eq!(config.hosts, [("127.0.0.1".into(), 5432)]);
        assert_eq!((config.user.as_str(), config.database.as_str()), ("postgres", "postgres"));
        assert_eq!(config.mode, LockMode::Lease);
    }

    #[test]
    fn the_url_of_an_application_is_understood() {
        let url = "postgres:///app?host=/run/postgresql&application_name=shop&connect_timeout=10\
                   &options=-c%20lock_timeout%3D5s&target_session_attrs=read-write";
        let config = config(url).unwrap();
        assert_eq!(config.hosts, [("/run/postgresql".into(), 5432)]);
        assert_eq!(config.application_name, "shop");
        assert_eq!(config.options.as_deref(), Some("-c lock_timeout=5s"));
        assert_eq!(config.connect_timeout, Duration::from_secs(10));
    }

    #[test]
    fn a_wrong_option_is_refused_with_advice() {
        for (url, part) in [
            ("postgres://?mode=magic", "lease, session, row"),
            ("postgres://?connections=0", "from 1 to 1000"),
            ("postgres://?sslmode=prefer", "say `require`"),
            ("postgres://?sslmode=on", "verify-full"),
            ("postgres://?ca=/etc/ca.pem", "`ca` needs an encrypted connection"),
            ("postgres://?sslmode=disable&sslrootcert=/ca.pem", "sslmode=require"),
            ("postgres://?target_session_attrs=standby", "cannot grant locks"),
            ("postgres://h/db?host=/run/postgresql", "given twice"),
            ("postgres://?gssencmode=disable", "leave it out"),
            ("postgres://?channel_binding=prefer", "leave it out"),
            ("postgres://?connect_timeout=soon", "`connect_timeout`"),
            ("postgres://?mode=session&pooler=yes", "mode=lease"),
            ("postgres://?pol=1", "known: application_name, connect_timeout"),
        ] {
            let error = config(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
