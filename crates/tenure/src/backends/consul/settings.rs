//! What the URL says: where the agents are, with which rights, and which bounds hold there.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;
use crate::tls::Tls;

/// The URL, taken apart.
pub(super) struct Settings {
    /// `host:port` of every agent, in the order in which they are tried.
    pub(super) hosts: Vec<String>,
    pub(super) tls: Option<Tls>,
    pub(super) token: Option<String>,
    pub(super) datacenter: Option<String>,
    pub(super) namespace: Option<String>,
    /// The node of the catalog that sessions belong to, if not the agent's own.
    pub(super) node: Option<String>,
    pub(super) lock_delay: Duration,
    /// The shortest session that the servers allow, if the URL says so.
    pub(super) min_ttl: Option<Duration>,
}

impl Settings {
    pub(super) fn read(mut options: Options) -> Result<Settings> {
        let tls = match options.scheme() {
            "consuls" => Some(Tls::take(&mut options)?),
            _ => None,
        };
        if !matches!(options.path(), "" | "/") {
            let message = "a consul URL has no path; put `?prefix=app/` before the keys instead";
            return Err(invalid(message));
        }
        let port = if tls.is_some() { DEFAULT_TLS_PORT } else { DEFAULT_PORT };
        let hosts = options.hosts(port)?.into_iter();
        let settings = Settings {
            hosts: hosts.map(|(host, port)| address(host, port)).collect(),
            tls,
            token: options.password().or(options.user()).map(str::to_owned),
            datacenter: options.take("dc"),
            namespace: options.take("namespace"),
            node: options.take("node"),
            lock_delay: options.take_duration("lock_delay")?.unwrap_or_default(),
            min_ttl: options.take_duration("min_ttl")?,
        };
        options.finish()?;
        if settings.lock_delay > LOCK_DELAY_MAX {
            return Err(invalid("option `lock_delay`: Consul allows at most 60s"));
        }
        if settings.min_ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(invalid("option `min_ttl`: a session lasts longer than 0s"));
        }
        Ok(settings)
    }
}

/// As it stands in a URL: an address of IPv6 needs its brackets.
fn address(host: String, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

const DEFAULT_PORT: u16 = 8500;
const DEFAULT_TLS_PORT: u16 = 8501;
/// What Consul allows.
const LOCK_DELAY_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Settings> {
        Settings::read(Options::parse(url)?)
    }

    #[test]
    fn a_url_names_agents_rights_and_bounds() {
        let url = "consul://:s3cret@a,[::1]:81?dc=d&namespace=n&lock_delay=5s&min_ttl=1s&node=x";
        let settings = read(url).unwrap();
        assert_eq!(settings.hosts, ["a:8500", "[::1]:81"]);
        assert_eq!(settings.token.as_deref(), Some("s3cret"));
        assert_eq!(settings.datacenter.as_deref(), Some("d"));
        assert_eq!(settings.namespace.as_deref(), Some("n"));
        assert_eq!(settings.node.as_deref(), Some("x"));
        assert_eq!(settings.lock_delay, Duration::from_secs(5));
        assert_eq!(settings.min_ttl, Some(Duration::from_secs(1)));
    }

    #[test]
    fn what_cannot_work_is_refused_with_the_reason() {
        for (url, part) in [
            ("consul://a/path", "has no path"),
            ("consul://a?lock_delay=2m", "at most 60s"),
            ("consul://a?min_ttl=0s", "min_ttl"),
            ("consul://a?ttl_min=1s", "known: dc, lock_delay, min_ttl, namespace, node"),
        ] {
            let error = read(url).err().unwrap().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
