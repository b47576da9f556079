//! What the URL says: where the server is, who we are there, and which kind of lock is wanted.

use std::fmt;
use std::time::Duration;

use super::schema::Schema;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::tls::Tls;

/// Everything that a connection and a mode have to know.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) tls: Option<Tls>,
    pub(super) user: String,
    pub(super) password: Option<String>,
    pub(super) database: String,
    /// Where the tables are.
    pub(super) schema: Schema,
    pub(super) mode: Kind,
    /// How many connections there may be besides those that hold row locks.
    pub(super) connections: usize,
    /// How many row locks may be held at once.
    pub(super) rows: usize,
    /// A transaction pooler is in front: no prepared statements, no settings, no LISTEN.
    pub(super) pooled: bool,
    pub(super) connect_timeout: Duration,
    /// How often expired rows are looked for.
    pub(super) sweep: Duration,
}

/// What a lock is on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A row with an end of time.
    Lease,
    /// An advisory lock of a session.
    Session,
    /// A row lock of an open transaction.
    Row,
}

impl Kind {
    pub(super) fn word(self) -> &'static str {
        match self {
            Kind::Lease => "lease",
            Kind::Session => "session",
            Kind::Row => "row",
        }
    }
}

impl Settings {
    pub(super) fn take(mut options: Options) -> Result<Settings> {
        let mode = match options.take_word("mode", &["lease", "session", "row"])? {
            Some("session") => Kind::Session,
            Some("row") => Kind::Row,
            _ => Kind::Lease,
        };
        let schema = Schema::take(&mut options)?;
        let connections = number(&mut options, "connections", MOST_CONNECTIONS)?;
        let rows = number(&mut options, "rows", MOST_ROWS)?;
        let pooled = options.take_word("pooler", &["no", "yes"])? == Some("yes");
        if pooled && mode != Kind::Lease {
            return Err(pooler(mode));
        }
        let connect_timeout = options.take_duration("connect_timeout")?;
        let sweep = options.take_duration("sweep")?;
        let tls = Tls::take_sslmode(&mut options)?;
        let user = options.user().unwrap_or("postgres").to_owned();
        let database = match options.path().trim_start_matches('/') {
            "" => user.clone(),
            name => name.to_owned(),
        };
        let (hosts, password) = (options.hosts(5432)?, options.password().map(str::to_owned));
        options.finish()?;
        Ok(Settings {
            hosts,
            tls,
            user,
            password,
            database,
            schema,
            mode,
            connections,
            rows,
            pooled,
            connect_timeout: connect_timeout.unwrap_or(CONNECT),
            sweep: sweep.unwrap_or(SWEEP),
        })
    }
}

/// Shows no secret.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |(host, port): &(String, u16)| format!("{host}:{port}");
        let hosts: Vec<_> = self.hosts.iter().map(address).collect();
        let mode = self.mode.word();
        write!(f, "postgres://{}/{}?mode={mode}", hosts.join(","), self.database)
    }
}

/// What a session is told is lost behind a pooler that changes it; a lock that hangs on one too.
pub(super) fn pooler(mode: Kind) -> Error {
    let message = match mode {
        Kind::Lease => "a transaction pooler is in front of PostgreSQL; say `pooler=yes`, or \
                        connect past it"
            .to_owned(),
        Kind::Session | Kind::Row => format!(
            "`mode={}` needs the same server session all the time, and a transaction pooler is in \
             front; connect past it, or use `mode=lease`",
            mode.word()
        ),
    };
    Error::new(ErrorKind::Unsupported, message)
}

fn number(options: &mut Options, name: &'static str, default: usize) -> Result<usize> {
    let Some(text) = options.take(name) else { return Ok(default) };
    let number = text.parse().ok().filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| {
        let shown = text.escape_debug();
        let message = format!("option `{name}` is `{shown}`; it is a number from 1 to 1000");
        Error::new(ErrorKind::Invalid, message)
    })
}

/// Two can commit side by side; more help only where a commit takes long.
const MOST_CONNECTIONS: usize = 2;
const MOST_ROWS: usize = 20;
const CONNECT: Duration = Duration::from_secs(5);
const SWEEP: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<Settings> {
        Settings::take(Options::parse(url)?)
    }

    #[test]
    fn a_url_says_it_all() {
        let url = "postgresql://me:s%40cret@one,two:5433/app?mode=row&connections=3&rows=7";
        let settings = settings(url).unwrap();
        assert_eq!(settings.hosts, [("one".into(), 5432), ("two".into(), 5433)]);
        assert_eq!((settings.user.as_str(), settings.database.as_str()), ("me", "app"));
        assert_eq!(settings.password.as_deref(), Some("s@cret"));
        assert_eq!((settings.mode, settings.connections, settings.rows), (Kind::Row, 3, 7));
        let shown = format!("{settings:?}");
        assert!(!shown.contains("cret"), "{shown}");
    }

    #[test]
    fn what_is_not_said_has_a_default() {
        let settings = settings("postgres://").unwrap();
        assert_eq!(settings.hosts, [("127.0.0.1".into(), 5432)]);
        assert_eq!((settings.user.as_str(), settings.database.as_str()), ("postgres", "postgres"));
        assert_eq!(settings.mode, Kind::Lease);
    }

    #[test]
    fn what_cannot_be_is_refused_with_advice() {
        for (url, part) in [
            ("postgres://?mode=magic", "lease, session, row"),
            ("postgres://?connections=0", "from 1 to 1000"),
            ("postgres://?sslmode=prefer", "verify-full"),
            ("postgres://?mode=session&pooler=yes", "mode=lease"),
            ("postgres://?pol=1", "known: connect_timeout, connections"),
        ] {
            let error = settings(url).unwrap_err().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
