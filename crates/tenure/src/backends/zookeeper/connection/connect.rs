//! Opens, resumes and closes sessions by the client library.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use zookeeper_client::{Client, Connector, Error as ClientError};

use super::super::config::Config;
use super::super::error;
use crate::error::{Error, ErrorKind, Result};

/// How long opening a session may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The pause before all servers are tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How long a server may take to accept a TCP connection.
const ACCEPT_LIMIT: Duration = Duration::from_secs(1);

/// Opens a session with this timeout, or with the nearest one that the server allows.
pub(crate) async fn connect(config: &Config, timeout: Duration) -> Result<Client> {
    let hosts = config.host_list();
    let limit = timeout.min(CONNECT_LIMIT);
    let timed_out = || Error::timed_out(format_args!("zookeeper at {hosts}"), limit);
    let connecting = async {
        loop {
            match detached_connector(config, timeout).with_fail_eagerly().connect(&hosts).await {
                // No server opens a session now. That may be an election, unless none listens.
                Err(ClientError::NoHosts) => check_a_server_listens(config).await?,
                Err(ClientError::Timeout) => return Err(timed_out()),
                Err(error) => return Err(error::from_client(error)),
                Ok(client) => return Ok(client),
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    let connected = tokio::time::timeout(limit, connecting).await;
    connected.unwrap_or_else(|_elapsed| Err(timed_out()))
}

/// Continues the session of another connection, at one of these servers.
pub(crate) async fn resume(config: &Config, from: &Client, hosts: &str) -> Result<Client> {
    let connector = connector(config, from.session_timeout()).with_detached();
    let connecting = connector.with_session(from.session().clone()).connect(hosts);
    connecting.await.map_err(error::from_client)
}

/// Ends the session of a connection that does not end it when it is dropped.
pub(crate) async fn close(config: &Config, client: &Client) {
    if can_move(config) {
        let connector = connector(config, client.session_timeout());
        let hosts = config.host_list();
        let attached = connector.with_session(client.session().clone()).connect(&hosts);
        // This connection is attached: dropping it ends the session.
        let _dropped = tokio::time::timeout(CONNECT_LIMIT, attached).await;
    }
}

/// Whether this server opens sessions, for which it needs the majority.
pub(crate) async fn opens_sessions(config: &Config, host: &str) -> bool {
    let connector = connector(config, config.timeout).with_fail_eagerly();
    connector.connect(host).await.is_ok()
}

/// Whether the URL names another server to move to.
pub(crate) fn can_move(config: &Config) -> bool {
    config.hosts.len() > 1
}

/// A session that may move must not be ended by the connection that it leaves.
fn detached_connector(config: &Config, timeout: Duration) -> Connector {
    let connector = connector(config, timeout);
    if can_move(config) { connector.with_detached() } else { connector }
}

fn connector(config: &Config, timeout: Duration) -> Connector {
    let connector = Client::connector().with_session_timeout(timeout);
    match &config.login {
        Some(login) => connector.with_auth("digest", login.as_bytes()),
        None => connector,
    }
}

/// Fails with the reasons if every server refuses connections.
async fn check_a_server_listens(config: &Config) -> Result<()> {
    let hosts = config.hosts.clone();
    let probe = move || hosts.iter().map(refusal).collect::<Option<Vec<_>>>();
    match tokio::task::spawn_blocking(probe).await {
        Ok(Some(refusals)) => {
            let message = format!("cannot reach zookeeper at {}", refusals.join(", "));
            Err(Error::new(ErrorKind::Unavailable, message))
        }
        Ok(None) | Err(_) => Ok(()),
    }
}

/// Why the host refuses connections; `None` if it may accept them. Blocks the thread.
fn refusal((host, port): &(String, u16)) -> Option<String> {
    let addresses = match (host.as_str(), *port).to_socket_addrs() {
        Ok(addresses) => addresses.collect::<Vec<_>>(),
        Err(error) => return Some(format!("{host}:{port}: {error}")),
    };
    let mut last = None;
    for address in addresses {
        let error = TcpStream::connect_timeout(&address, ACCEPT_LIMIT).err()?;
        let refused = error.kind() == std::io::ErrorKind::ConnectionRefused;
        last = Some(format!("{host}:{port}: {error}")).filter(|_| refused);
        last.as_ref()?;
    }
    last
}
