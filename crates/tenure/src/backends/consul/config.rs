//! From a URL to [`Config`]: the agents, the ACL token and the bounds of sessions.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::support::credentials::UserLogin;
use crate::support::tls::Tls;
use crate::support::url::Url;

const DEFAULT_PORT: u16 = 8500;
const DEFAULT_TLS_PORT: u16 = 8501;
/// The longest lock-delay that Consul accepts.
const LOCK_DELAY_MAX: Duration = Duration::from_secs(60);

/// What a `consul://` URL says.
pub(super) struct Config {
    /// `host:port` of every agent, in the order in which they are tried.
    pub(super) hosts: Vec<String>,
    pub(super) tls: Option<Tls>,
    /// The ACL token is its password, or the user where there is none.
    pub(super) login: UserLogin,
    pub(super) datacenter: Option<String>,
    pub(super) namespace: Option<String>,
    /// The node of the catalog that sessions belong to; `None` for the agent's own.
    pub(super) node: Option<String>,
    pub(super) lock_delay: Duration,
    /// The shortest session that the servers allow; `None` if the URL does not say.
    pub(super) min_ttl: Option<Duration>,
}

impl Config {
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let tls = match url.scheme() {
            "consuls" => Some(Tls::take(&mut url)?),
            _ => None,
        };
        if !matches!(url.path(), "" | "/") {
            let message = "a consul URL has no path; put `?prefix=app/` before the keys instead";
            return Err(Error::invalid(message));
        }
        let port = if tls.is_some() { DEFAULT_TLS_PORT } else { DEFAULT_PORT };
        let hosts = url.hosts(port)?.into_iter();
        let config = Config {
            hosts: hosts.map(|(host, port)| address(host, port)).collect(),
            tls,
            login: url.login(),
            datacenter: url.take("dc"),
            namespace: url.take("namespace"),
            node: url.take("node"),
            lock_delay: url.take_duration("lock_delay")?.unwrap_or_default(),
            min_ttl: url.take_duration("min_ttl")?,
        };
        url.finish()?;
        if config.lock_delay > LOCK_DELAY_MAX {
            return Err(Error::invalid("option `lock_delay`: Consul allows at most 60s"));
        }
        if config.min_ttl.is_some_and(|ttl| ttl.is_zero()) {
            return Err(Error::invalid("option `min_ttl`: a session lasts longer than 0s"));
        }
        Ok(config)
    }
}

/// `host:port`, with brackets around an IPv6 address.
fn address(host: String, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::from_url(Url::parse(url)?)
    }

    #[test]
    fn a_url_names_agents_token_and_bounds() {
        let url = "consul://:s3cret@a,[::1]:81?dc=d&namespace=n&lock_delay=5s&min_ttl=1s&node=x";
        let config = parse(url).unwrap();
        assert_eq!(config.hosts, ["a:8500", "[::1]:81"]);
        assert_eq!(config.login.password.as_deref(), Some("s3cret"));
        assert_eq!(config.datacenter.as_deref(), Some("d"));
        assert_eq!(config.namespace.as_deref(), Some("n"));
        assert_eq!(config.node.as_deref(), Some("x"));
        assert_eq!(config.lock_delay, Duration::from_secs(5));
        assert_eq!(config.min_ttl, Some(Duration::from_secs(1)));
    }

    #[test]
    fn a_wrong_url_is_refused_with_the_reason() {
        for (url, part) in [
            ("consul://a/path", "has no path"),
            ("consul://a?lock_delay=2m", "at most 60s"),
            ("consul://a?min_ttl=0s", "min_ttl"),
            ("consul://a?ttl_min=1s", "known: dc, lock_delay, min_ttl, namespace, node"),
        ] {
            let error = parse(url).err().unwrap().to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
