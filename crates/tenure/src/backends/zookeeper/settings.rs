//! The URL: `zk://h1,h2,h3/chroot?session=15s&layout=queue`.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_client::{Acls, Client, Connector};

use super::fault;
use super::names::Tree;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Options;

/// What a URL says.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) hosts: Vec<(String, u16)>,
    pub(super) tree: Tree,
    pub(super) layout: Layout,
    /// The timeout that is asked for; the server may have bounds.
    pub(super) timeout: Duration,
    /// `user:password` for the scheme `digest`.
    login: Option<String>,
    /// Whether nodes may be changed only by our own login.
    private: bool,
}

/// How a lock looks in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Curator's: a container, and in it one ephemeral sequential node per claim.
    Queue,
    /// One ephemeral node.
    Ephemeral,
}

impl Settings {
    pub(super) fn take(mut options: Options) -> Result<Settings> {
        let layout = match options.take_word("layout", &["queue", "ephemeral"])? {
            Some("ephemeral") => Layout::Ephemeral,
            _ => Layout::Queue,
        };
        let timeout = options.take_duration("session")?.unwrap_or(DEFAULT_TIMEOUT);
        if timeout < Duration::from_millis(100) || timeout > Duration::from_secs(24 * 60 * 60) {
            return Err(invalid("option `session`: choose between 100ms and 24h"));
        }
        let login = match (options.user(), options.password()) {
            (Some(user), Some(password)) => Some(format!("{user}:{password}")),
            (None, None) => None,
            _ => return Err(invalid("a login needs a user and a password: `zk://me:secret@host`")),
        };
        let private = match options.take_word("acl", &["creator", "world"])? {
            Some("creator") if login.is_none() => {
                return Err(invalid("`acl=creator` needs a login: `zk://me:secret@host`"));
            }
            Some(word) => word == "creator",
            None => login.is_some(),
        };
        let tree = Tree::below(match options.path() {
            "" => DEFAULT_PATH,
            path => path,
        });
        let hosts = options.hosts(2181)?;
        options.finish()?;
        check_path(tree.root())?;
        Ok(Settings { hosts, tree, layout, timeout, login, private })
    }

    /// The rights on the nodes that we make.
    pub(super) fn acls(&self) -> Acls<'static> {
        if self.private { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// The hosts, for people and for the library.
    pub(super) fn shown(&self) -> String {
        self.addresses().join(",")
    }

    /// Each host with its port.
    pub(super) fn addresses(&self) -> Vec<String> {
        let address = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        self.hosts.iter().map(address).collect()
    }

    /// Opens a session with this timeout, or one within the server's bounds.
    pub(super) async fn connect(&self, timeout: Duration) -> Result<Client> {
        let hosts = self.shown();
        let limit = timeout.min(CONNECT_LIMIT);
        let connecting = async {
            loop {
                match self.detached(timeout).with_fail_eagerly().connect(&hosts).await {
                    // None opens a session now. That may be an election, unless nothing listens.
                    Err(zookeeper_client::Error::NoHosts) => self.someone_listens().await?,
                    Err(zookeeper_client::Error::Timeout) => {
                        return Err(fault::silent(&hosts, limit));
                    }
                    Err(error) => return Err(fault::from_client(error)),
                    Ok(client) => return Ok(client),
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        let connected = tokio::time::timeout(limit, connecting).await;
        connected.unwrap_or_else(|_| Err(fault::silent(&hosts, limit)))
    }

    /// Fails if every server refuses the connection, with the reason.
    async fn someone_listens(&self) -> Result<()> {
        let hosts = self.hosts.clone();
        let look = move || hosts.iter().map(refusal).collect::<Option<Vec<_>>>();
        match tokio::task::spawn_blocking(look).await {
            Ok(Some(refusals)) => {
                let message = format!("cannot reach zookeeper at {}", refusals.join(", "));
                Err(Error::new(ErrorKind::Unavailable, message))
            }
            Ok(None) | Err(_) => Ok(()),
        }
    }

    /// A session that may move is not ended by the connection that it leaves.
    fn detached(&self, timeout: Duration) -> Connector {
        let connector = self.connector(timeout);
        if self.can_move() { connector.with_detached() } else { connector }
    }

    /// Whether there is another server to go to.
    pub(super) fn can_move(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Goes on in the session of another connection, at one of these servers.
    pub(super) async fn take_over(&self, from: &Client, hosts: &str) -> Result<Client> {
        let connector = self.connector(from.session_timeout()).with_detached();
        let connecting = connector.with_session(from.session().clone()).connect(hosts);
        connecting.await.map_err(fault::from_client)
    }

    /// Ends the session of a connection that does not do so by itself.
    pub(super) async fn close(&self, client: &Client) {
        if self.can_move() {
            let connector = self.connector(client.session_timeout());
            let hosts = self.shown();
            let last = connector.with_session(client.session().clone()).connect(&hosts);
            // Dropped when it is there, which ends the session.
            let _ended = tokio::time::timeout(CONNECT_LIMIT, last).await;
        }
    }

    /// Whether this server opens sessions, for which it needs the majority.
    pub(super) async fn serves(&self, host: &str) -> bool {
        let connector = self.connector(self.timeout).with_fail_eagerly();
        connector.connect(host).await.is_ok()
    }

    fn connector(&self, timeout: Duration) -> Connector {
        let connector = Client::connector().with_session_timeout(timeout);
        match &self.login {
            Some(login) => connector.with_auth("digest", login.as_bytes()),
            None => connector,
        }
    }
}

/// Why nothing listens at this host, if so. Blocks.
fn refusal((host, port): &(String, u16)) -> Option<String> {
    let addresses = match (host.as_str(), *port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<_>>(),
        Err(error) => return Some(format!("{host}:{port}: {error}")),
    };
    let mut last = None;
    for address in addresses {
        let error = TcpStream::connect_timeout(&address, LISTENS).err()?;
        let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
        last = Some(format!("{host}:{port}: {error}")).filter(|_| refused);
        last.as_ref()?;
    }
    last
}

/// Refuses a chroot that cannot be a path.
fn check_path(path: &str) -> Result<()> {
    let empty = |element: &str| matches!(element, "" | "." | "..");
    if path != "/" && (!path.starts_with('/') || path[1..].split('/').any(empty)) {
        let shown = path.escape_debug();
        return Err(invalid(format!(
            "`{shown}` is not a chroot; write it as in `zk://host/locks`"
        )));
    }
    Ok(())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, message)
}

/// Long enough to bear the election of a leader, and within the bounds of a server as it comes.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(15);
/// Where locks are if the URL does not say.
const DEFAULT_PATH: &str = "/tenure";
/// How long a server may take to accept a connection.
const LISTENS: Duration = Duration::from_secs(1);
/// The pause before all servers are tried again.
const AGAIN: Duration = Duration::from_millis(100);
/// How long opening a session may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Settings> {
        Settings::take(Options::parse(url)?)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let settings = parse("zk://a,b:1,[::1]:2/x/y/?layout=ephemeral&session=4s").unwrap();
        assert_eq!(settings.shown(), "a:2181,b:1,[::1]:2");
        assert_eq!(settings.tree.root(), "/x/y");
        assert_eq!(settings.layout, Layout::Ephemeral);
        assert_eq!(settings.timeout, Duration::from_secs(4));
        assert_eq!(parse("zk://a").unwrap().tree.root(), "/tenure");
        assert_eq!(parse("zk://a/").unwrap().tree.root(), "/");
        assert!(parse("zk://me:secret@a").unwrap().private);
        assert!(!parse("zk://me:secret@a?acl=world").unwrap().private);
    }

    #[test]
    fn a_wrong_url_says_what_is_wrong() {
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
