//! What the URL says: which servers, and how to lock on them.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::support::credentials::UserLogin;
use crate::support::tls::Tls;
use crate::support::url::Url;

/// When a token is forgotten, the server's clock has long passed it.
const MEMORY: Duration = HOUR;
/// Longer than any caller waits; and far from where durations overflow.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// A server that does not accept within a second is as good as down.
const CONNECT: Duration = Duration::from_secs(1);
/// Longer than a fork or a slow script takes; after this the connection is replaced.
pub(super) const RESPONSE: Duration = Duration::from_secs(2);

/// How to reach the servers and how to lock on them.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) topology: Topology,
    pub(super) login: DatabaseLogin,
    pub(super) layout: Layout,
    pub(super) order: QueueOrder,
    /// How many replicas must have a grant before it counts.
    pub(super) replicas: u32,
    /// For how long a token is remembered after the last lease.
    pub(super) memory: Duration,
    pub(super) limits: TimeLimits,
    pub(super) tls: Option<Tls>,
}

/// Which servers there are.
#[derive(Clone, Debug)]
pub(super) enum Topology {
    Cluster(Vec<Address>),
    Single(Address),
    Sentinel { sentinels: Vec<Address>, master: String, login: DatabaseLogin },
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

/// How to log in, and to which database. `Debug` does not show the password.
#[derive(Clone, Debug, Default)]
pub(super) struct DatabaseLogin {
    pub(super) login: UserLogin,
    pub(super) database: i64,
}

/// How a held lock is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// The string that the Redlock libraries write.
    Plain,
    /// The hash of Redisson's `RLock`.
    Redisson,
}

/// Which waiter is next when a lock becomes free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueOrder {
    Barging,
    Fifo,
}

/// How long a server may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeLimits {
    pub(super) connect: Duration,
    pub(super) response: Duration,
}

impl Config {
    /// Reads what the Redis backend understands, and refuses the rest.
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let scheme = url.scheme().to_owned();
        let mut login = DatabaseLogin { login: url.login(), database: 0 };
        let topology = match scheme.split_once('+').map(|(_, kind)| kind) {
            Some("cluster") => Topology::Cluster(addresses(&url)?),
            Some("sentinel") => sentinel(&mut url, &mut login)?,
            Some(_unix) => {
                login.database = database(url.take("db"))?;
                Topology::Single(Address::Unix(url.path().to_owned()))
            }
            None => {
                let path = url.path().trim_start_matches('/').to_owned();
                login.database = database(Some(path).filter(|path| !path.is_empty()))?;
                Topology::Single(only(addresses(&url)?)?)
            }
        };
        let layout = match url.take_word("layout", &["redisson", "plain"])? {
            Some("plain") => Layout::Plain,
            _ => Layout::Redisson,
        };
        let order = match url.take_word("order", &["fifo", "barging"])? {
            Some("barging") => QueueOrder::Barging,
            _ => QueueOrder::Fifo,
        };
        let replicas = match url.take("replicas") {
            Some(text) => number("replicas", &text)?,
            None => 0,
        };
        let memory = memory(&mut url)?;
        let limits = TimeLimits::from_url(&mut url)?;
        let tls = tls(&mut url, scheme == "rediss")?;
        url.finish()?;
        Ok(Config { topology, login, layout, order, replicas, memory, limits, tls })
    }
}

impl TimeLimits {
    fn from_url(url: &mut Url) -> Result<TimeLimits> {
        Ok(TimeLimits { connect: connect(url)?, response: response(url, RESPONSE)? })
    }
}

pub(super) fn connect(url: &mut Url) -> Result<Duration> {
    duration(url, "connect", CONNECT, HOUR)
}

/// How long a response may take; this long unless the URL says otherwise.
pub(in crate::backends) fn response(url: &mut Url, usual: Duration) -> Result<Duration> {
    duration(url, "response", usual, HOUR)
}

/// For how long a token is remembered.
pub(super) fn memory(url: &mut Url) -> Result<Duration> {
    duration(url, "memory", MEMORY, HOUR * 24 * 31)
}

/// A span of time above zero, and one that can be counted with.
pub(in crate::backends) fn duration(
    url: &mut Url,
    name: &'static str,
    usual: Duration,
    longest: Duration,
) -> Result<Duration> {
    let span = url.take_duration(name)?.unwrap_or(usual);
    if span.is_zero() || span > longest {
        let hours = longest.as_secs() / 3600;
        return Err(Error::invalid(format!("`{name}` has to be above 0 and at most {hours} h")));
    }
    Ok(span)
}

/// Whether to encrypt: the scheme or the option `tls` says so.
pub(super) fn tls(url: &mut Url, by_scheme: bool) -> Result<Option<Tls>> {
    if !by_scheme && url.take_word("tls", &["on", "off"])? != Some("on") {
        return Ok(None);
    }
    Tls::take(url).map(Some)
}

fn sentinel(url: &mut Url, login: &mut DatabaseLogin) -> Result<Topology> {
    let master = url.path().trim_matches('/').to_owned();
    if master.is_empty() {
        let advice = "write it as redis+sentinel://h1,h2,h3/master-name";
        return Err(Error::invalid(format!("the URL does not name the master; {advice}")));
    }
    login.database = database(url.take("db"))?;
    let login = UserLogin {
        user: url.take("sentinel_user"),
        password: url.take("sentinel_password"),
        source: None,
    };
    let login = DatabaseLogin { login, database: 0 };
    Ok(Topology::Sentinel { sentinels: sentinels(url)?, master, login })
}

pub(super) fn addresses(url: &Url) -> Result<Vec<Address>> {
    let hosts = url.hosts(6379)?;
    Ok(hosts.into_iter().map(|(host, port)| Address::Tcp(host, port)).collect())
}

fn sentinels(url: &Url) -> Result<Vec<Address>> {
    let hosts = url.hosts(26379)?;
    Ok(hosts.into_iter().map(|(host, port)| Address::Tcp(host, port)).collect())
}

fn only(mut addresses: Vec<Address>) -> Result<Address> {
    match (addresses.pop(), addresses.is_empty()) {
        (Some(address), true) => Ok(address),
        _ => Err(Error::invalid(
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
        Error::invalid(format!("`{name}` is `{}`; it has to be a number", text.escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> Result<Config> {
        Config::from_url(Url::parse(url)?)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let one = config("redis://me:hunter2@h:7/3?layout=plain&order=barging&replicas=2").unwrap();
        assert!(matches!(&one.topology, Topology::Single(Address::Tcp(host, 7)) if host == "h"));
        assert_eq!((one.login.login.user.as_deref(), one.login.database), (Some("me"), 3));
        assert_eq!((one.layout, one.order), (Layout::Plain, QueueOrder::Barging));
        assert_eq!((one.replicas, one.tls.is_some()), (2, false));
        assert!(!format!("{one:?}").contains("hunter2"), "{one:?}");
        let many = config("redis+sentinel://a,b:1/main?db=2&sentinel_password=x&tls=on").unwrap();
        let Topology::Sentinel { sentinels, master, .. } = &many.topology else {
            panic!("{many:?}")
        };
        assert_eq!((sentinels.len(), master.as_str()), (2, "main"));
        assert_eq!(sentinels[0], Address::Tcp("a".into(), 26379));
        assert!(many.tls.is_some() && many.login.database == 2);
        let unix = config("redis+unix:///run/redis.sock?db=1").unwrap();
        let Topology::Single(Address::Unix(path)) = &unix.topology else { panic!("{unix:?}") };
        assert_eq!(path, "/run/redis.sock");
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
            let error = config(url).unwrap_err();
            assert!(error.to_string().contains(part), "{url}: {error}");
        }
    }
}
