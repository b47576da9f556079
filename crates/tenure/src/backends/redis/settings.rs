//! What the URL says.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::tls::Tls;

/// How to reach the servers and how to lock on them.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) place: Place,
    pub(super) login: Login,
    pub(super) layout: Layout,
    pub(super) order: Turn,
    /// How many replicas must have a grant before it counts.
    pub(super) replicas: u32,
    /// For how long a token is remembered after the last lease.
    pub(super) memory: Duration,
    pub(super) limits: Limits,
    pub(super) tls: Option<Tls>,
}

/// Where the servers are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Cluster(Vec<Address>),
    One(Address),
    Sentinel { sentinels: Vec<Address>, master: String, login: Login },
}

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Address {
    Tcp(String, u16),
    Unix(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Address::Tcp(host, port) => write!(f, "{host}:{port}"),
            Address::Unix(path) => f.write_str(path),
        }
    }
}

/// How to log in. `Debug` does not show the password.
#[derive(Clone, Default)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("database", &self.database).finish_non_exhaustive()
    }
}

/// How a held lock is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The string that the Redlock libraries write.
    Plain,
    /// The hash of Redisson's `RLock`.
    Redisson,
}

/// Who is next when a lock becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Barging,
    Fifo,
}

/// How long to wait for a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) connect: Duration,
    pub(super) response: Duration,
}

impl Settings {
    /// Takes from the URL what the Redis backend understands, and refuses the rest.
    pub(super) fn of(mut options: Options) -> Result<Settings> {
        let scheme = options.scheme().to_owned();
        let mut login = Login {
            user: options.user().map(str::to_owned),
            password: options.password().map(str::to_owned),
            database: 0,
        };
        let place = match scheme.split_once('+').map(|(_, kind)| kind) {
            Some("cluster") => Place::Cluster(addresses(&options)?),
            Some("sentinel") => sentinel(&mut options, &mut login)?,
            Some(_unix) => {
                login.database = database(options.take("db"))?;
                Place::One(Address::Unix(options.path().to_owned()))
            }
            None => {
                let path = options.path().trim_start_matches('/').to_owned();
                login.database = database(Some(path).filter(|path| !path.is_empty()))?;
                Place::One(only(addresses(&options)?)?)
            }
        };
        let layout = match options.take_word("layout", &["redisson", "plain"])? {
            Some("plain") => Layout::Plain,
            _ => Layout::Redisson,
        };
        let order = match options.take_word("order", &["fifo", "barging"])? {
            Some("barging") => Turn::Barging,
            _ => Turn::Fifo,
        };
        let replicas = match options.take("replicas") {
            Some(text) => number("replicas", &text)?,
            None => 0,
        };
        let (memory, limits) = (memory(&mut options)?, Limits::take(&mut options)?);
        let tls = tls(&mut options, scheme == "rediss")?;
        options.finish()?;
        Ok(Settings { place, login, layout, order, replicas, memory, limits, tls })
    }
}

impl Limits {
    pub(super) fn take(options: &mut Options) -> Result<Limits> {
        Ok(Limits { connect: connect(options)?, response: response(options, RESPONSE)? })
    }
}

pub(super) fn connect(options: &mut Options) -> Result<Duration> {
    duration(options, "connect", CONNECT, HOUR)
}

/// How long to wait for an answer; this long unless the URL says otherwise.
pub(in crate::backends) fn response(options: &mut Options, usual: Duration) -> Result<Duration> {
    duration(options, "response", usual, HOUR)
}

/// For how long a token is remembered.
pub(super) fn memory(options: &mut Options) -> Result<Duration> {
    duration(options, "memory", MEMORY, HOUR * 24 * 31)
}

/// A span of time above nothing, and one that can be counted with.
pub(in crate::backends) fn duration(
    options: &mut Options,
    name: &'static str,
    usual: Duration,
    longest: Duration,
) -> Result<Duration> {
    let span = options.take_duration(name)?.unwrap_or(usual);
    if span.is_zero() || span > longest {
        let hours = longest.as_secs() / 3600;
        return Err(invalid(format!("`{name}` has to be above 0 and at most {hours} h")));
    }
    Ok(span)
}

/// The scheme or the option `tls` asks for it.
pub(super) fn tls(options: &mut Options, by_scheme: bool) -> Result<Option<Tls>> {
    if !by_scheme && options.take_word("tls", &["on", "off"])? != Some("on") {
        return Ok(None);
    }
    Tls::take(options).map(Some)
}

fn sentinel(options: &mut Options, login: &mut Login) -> Result<Place> {
    let master = options.path().trim_matches('/').to_owned();
    if master.is_empty() {
        let advice = "write it as redis+sentinel://h1,h2,h3/master-name";
        return Err(invalid(format!("the URL does not name the master; {advice}")));
    }
    login.database = database(options.take("db"))?;
    let login = Login {
        user: options.take("sentinel_user"),
        password: options.take("sentinel_password"),
        database: 0,
    };
    Ok(Place::Sentinel { sentinels: sentinels(options)?, master, login })
}

pub(super) fn addresses(options: &Options) -> Result<Vec<Address>> {
    let hosts = options.hosts(6379)?;
    Ok(hosts.into_iter().map(|(host, port)| Address::Tcp(host, port)).collect())
}

fn sentinels(options: &Options) -> Result<Vec<Address>> {
    let hosts = options.hosts(26379)?;
    Ok(hosts.into_iter().map(|(host, port)| Address::Tcp(host, port)).collect())
}

fn only(mut addresses: Vec<Address>) -> Result<Address> {
    match (addresses.pop(), addresses.is_empty()) {
        (Some(address), true) => Ok(address),
        _ => Err(invalid(
            "redis:// is one server; for several use redis+sentinel://, redis+cluster:// or \
             redlock://",
        )),
    }
}

fn database(text: Option<String>) -> Result<i64> {
    text.map_or(Ok(0), |text| number("db", &text))
}

pub(super) fn number<T: std::str::FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| {
        invalid(format!("`{name}` is `{}`; it has to be a number", text.escape_debug()))
    })
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// When a token is forgotten, the server's clock has long passed it.
const MEMORY: Duration = HOUR;
/// Longer than anybody waits; and far from where durations overflow.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// A server that does not accept within a second is as good as down.
const CONNECT: Duration = Duration::from_secs(1);
/// Longer than a fork or a slow script takes; after this the connection is replaced.
pub(super) const RESPONSE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> Result<Settings> {
        Settings::of(Options::parse(url)?)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let one =
            settings("redis://me:hunter2@h:7/3?layout=plain&order=barging&replicas=2").unwrap();
        assert!(matches!(&one.place, Place::One(Address::Tcp(host, 7)) if host == "h"));
        assert_eq!((one.login.user.as_deref(), one.login.database), (Some("me"), 3));
        assert_eq!((one.layout, one.order), (Layout::Plain, Turn::Barging));
        assert_eq!((one.replicas, one.tls.is_some()), (2, false));
        assert!(!format!("{one:?}").contains("hunter2"), "{one:?}");
        let many = settings("redis+sentinel://a,b:1/main?db=2&sentinel_password=x&tls=on").unwrap();
        let Place::Sentinel { sentinels, master, .. } = &many.place else { panic!("{many:?}") };
        assert_eq!((sentinels.len(), master.as_str()), (2, "main"));
        assert_eq!(sentinels[0], Address::Tcp("a".into(), 26379));
        assert!(many.tls.is_some() && many.login.database == 2);
        let unix = settings("redis+unix:///run/redis.sock?db=1").unwrap();
        assert!(
            matches!(&unix.place, Place::One(Address::Unix(path)) if path == "/run/redis.sock")
        );
    }

    #[test]
    fn a_wrong_url_is_refused_with_advice() {
        for (url, part) in [
            ("redis://a,b", "redis+sentinel://"),
            ("redis://h/main", "has to be a number"),
            ("redis+sentinel://h", "master-name"),
            ("redis://h?layout=hash", "it can be: redisson, plain"),
            ("redis://h?ca=x", "unknown option `ca`"),
            ("redis://h?replicas=few", "has to be a number"),
            ("redis://h?response=60000000000000d", "365 days at most"),
            ("redis://h?response=2h", "`response` has to be"),
            ("redis+sentinel://h/m?connect=61m", "at most 1 h"),
            ("redis://h?connect=0s", "above 0"),
            ("redis://h?memory=32d", "at most 744 h"),
        ] {
            let error = settings(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }
}
