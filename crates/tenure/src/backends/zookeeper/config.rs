//! From a URL to [`Config`]: `zk://h1,h2,h3/chroot?session=15s&layout=queue`.

use std::time::Duration;

use zookeeper_client::Acls;

use super::layout::NodeTree;
use crate::error::{Error, Result};
use crate::support::url::Url;

/// Long enough to outlast the election of a leader, and within the default bounds of a server.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Where locks are if the URL does not say.
const DEFAULT_PATH: &str = "/tenure";
const DEFAULT_PORT: u16 = 2181;

/// What a `zk://` URL says.
#[derive(Clone)]
pub(super) struct Config {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) tree: NodeTree,
    pub(super) layout: Layout,
    /// The session timeout that is requested; the server may have bounds.
    pub(super) timeout: Duration,
    /// `user:password` for the scheme `digest`.
    pub(super) login: Option<String>,
    /// Whether only this login may change the nodes that it creates.
    creator_only: bool,
}

/// The two ways to store a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Curator's: a container, and in it one ephemeral sequential node per claim.
    Queue,
    /// One ephemeral node per lock.
    Ephemeral,
}

impl Config {
    pub(super) fn from_url(mut url: Url) -> Result<Config> {
        let layout = match url.take_word("layout", &["queue", "ephemeral"])? {
            Some("ephemeral") => Layout::Ephemeral,
            _ => Layout::Queue,
        };
        let timeout = url.take_duration("session")?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout < TIMEOUT_MIN || timeout > TIMEOUT_MAX {
            return Err(Error::invalid("option `session`: choose between 100ms and 24h"));
        }
        let login = match (url.user(), url.password()) {
            (Some(user), Some(password)) => Some(format!("{user}:{password}")),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "a login needs a user and a password: `zk://me:secret@host`",
                ));
            }
        };
        let creator_only = match url.take_word("acl", &["creator", "world"])? {
            Some("creator") if login.is_none() => {
                return Err(Error::invalid("`acl=creator` needs a login: `zk://me:secret@host`"));
            }
            Some(who) => who == "creator",
            None => login.is_some(),
        };
        let tree = NodeTree::below(match url.path() {
            "" => DEFAULT_PATH,
            path => path,
        });
        let hosts = url.hosts(DEFAULT_PORT)?;
        url.finish()?;
        check_path(tree.root())?;
        Ok(Config { hosts, tree, layout, timeout, login, creator_only })
    }

    /// The access rights of the nodes that are created.
    pub(super) fn acls(&self) -> Acls<'static> {
        if self.creator_only { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// All hosts in one text, as messages show them and the client library reads them.
    pub(super) fn host_list(&self) -> String {
        self.addresses().join(",")
    }

    /// `host:port` of each server, with brackets around an IPv6 address.
    pub(super) fn addresses(&self) -> Vec<String> {
        let address = |(host, port): &(String, u16)| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        self.hosts.iter().map(address).collect()
    }
}

/// Refuses a chroot that cannot be a path.
fn check_path(path: &str) -> Result<()> {
    let empty = |element: &str| matches!(element, "" | "." | "..");
    if path != "/" && (!path.starts_with('/') || path[1..].split('/').any(empty)) {
        let shown = path.escape_debug();
        return Err(Error::invalid(format!(
            "`{shown}` is not a chroot; write it as in `zk://host/locks`"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Config> {
        Config::from_url(Url::parse(url)?)
    }

    #[test]
    fn a_url_names_hosts_chroot_layout_and_session() {
        let config = parse("zk://a,b:1,[::1]:2/x/y/?layout=ephemeral&session=4s").unwrap();
        assert_eq!(config.host_list(), "a:2181,b:1,[::1]:2");
        assert_eq!(config.tree.root(), "/x/y");
        assert_eq!(config.layout, Layout::Ephemeral);
        assert_eq!(config.timeout, Duration::from_secs(4));
        assert_eq!(parse("zk://a").unwrap().tree.root(), "/tenure");
        assert_eq!(parse("zk://a/").unwrap().tree.root(), "/");
        assert!(parse("zk://me:secret@a").unwrap().creator_only);
        assert!(!parse("zk://me:secret@a?acl=world").unwrap().creator_only);
    }

    #[test]
    fn a_wrong_url_is_refused_with_the_reason() {
        for (url, part) in [
            ("zk://a?layout=flat", "it can be: queue, ephemeral"),
            ("zk://a?session=1ms", "between 100ms"),
            ("zk://me@a", "a user and a password"),
            ("zk://a?acl=creator", "needs a login"),
            ("zk://a//b", "not a chroot"),
            ("zk://a/b/../c", "not a chroot"),
            ("zk://a?pool=3", "known: acl, layout, session"),
        ] {
            let error = parse(url).err().expect(url).to_string();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
