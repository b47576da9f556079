//! Dials one host: TCP or Unix socket, TLS, login.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio_postgres::config::SslMode;
use tokio_postgres::{CancelToken, Client, NoTls};

use super::drive::Driven;
use super::encrypt::TlsHandshake;
use crate::backends::postgres::config::Config;
use crate::backends::postgres::error;
use crate::backends::postgres::push::PushRouter;
use crate::error::{Error, Result};
use crate::support::socket::Socket;
use crate::support::tls::Tls;

/// How long a cancel request may take before the connection is closed anyway.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(1);

/// One host of the URL, and whether the connection to it is encrypted.
#[derive(Clone)]
pub(crate) struct Endpoint {
    pub(crate) host: String,
    pub(crate) port: u16,
    tls: Option<Tls>,
}

/// An open connection that is driven.
pub(crate) struct Dialed {
    pub(crate) client: Client,
    pub(crate) driven: Driven,
    /// Its sender is dropped when the connection ends.
    pub(crate) ended: watch::Receiver<()>,
}

impl Endpoint {
    /// The hosts that the URL names, in its order.
    pub(crate) fn all(config: &Config) -> impl Iterator<Item = Endpoint> {
        let endpoint = |(host, port): &(String, u16)| Endpoint {
            host: host.clone(),
            port: *port,
            tls: config.tls.clone(),
        };
        config.hosts.iter().map(endpoint)
    }

    pub(crate) async fn dial(&self, config: &Config, push: &Arc<PushRouter>) -> Result<Dialed> {
        let login = login(config).await?;
        let (ending, ended) = watch::channel(());
        let refused = |error| error::from_connect(config, &self.host, self.port, error);
        let socket = self.connect().await.map_err(|error| self.unreached(error))?;
        let handle = Arc::downgrade(&socket.handle());
        let push = push.clone();
        let (client, driven) = match self.tls.as_ref().filter(|_| self.unix_socket().is_none()) {
            None => {
                let connected = login.connect_raw(socket, NoTls).await.map_err(refused)?;
                (connected.0, Driven::start(connected.1, handle, push, ending))
            }
            Some(tls) => {
                let handshake = TlsHandshake { tls, host: &self.host };
                let mut login = login;
                let connected = login.ssl_mode(SslMode::Require).connect_raw(socket, handshake);
                let connected = connected.await.map_err(refused)?;
                (connected.0, Driven::start(connected.1, handle, push, ending))
            }
        };
        Ok(Dialed { client, driven, ended })
    }

    /// Tells the server to end a statement whose response is no longer awaited. A server process
    /// that waits for a lock does not notice that its client has closed the connection.
    pub(crate) async fn cancel(&self, token: CancelToken) {
        let cancelling = async {
            let socket = self.connect().await.ok()?;
            match self.tls.as_ref().filter(|_| self.unix_socket().is_none()) {
                None => token.cancel_query_raw(socket, NoTls).await.ok(),
                Some(tls) => {
                    let handshake = TlsHandshake { tls, host: &self.host };
                    token.cancel_query_raw(socket, handshake).await.ok()
                }
            }
        };
        // If the server cannot be reached, its own `statement_timeout` ends the statement.
        drop(tokio::time::timeout(CANCEL_TIMEOUT, cancelling).await);
    }

    async fn connect(&self) -> std::io::Result<Socket> {
        if let Some(path) = self.unix_socket() {
            return Socket::unix(UnixStream::connect(path).await?);
        }
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        set_keepalive(&stream);
        Socket::tcp(stream)
    }

    /// The path of the Unix socket, if the host is a folder.
    fn unix_socket(&self) -> Option<String> {
        let Endpoint { host, port, .. } = self;
        host.starts_with('/').then(|| format!("{host}/.s.PGSQL.{port}"))
    }

    fn unreached(&self, error: std::io::Error) -> Error {
        error::from_io(&self.host, self.port, error)
    }
}

/// What the server is told when a connection begins.
async fn login(config: &Config) -> Result<tokio_postgres::Config> {
    let current = config.login.current().await?;
    let mut login = tokio_postgres::Config::new();
    login.user(current.user.as_deref().unwrap_or(&config.user)).dbname(&config.database);
    login.application_name(&config.application_name);
    if let Some(password) = current.password {
        login.password(password);
    }
    if let Some(options) = &config.options {
        login.options(options);
    }
    Ok(login)
}

/// Makes the kernel detect an unreachable peer within about half a minute, also when nothing is
/// sent.
fn set_keepalive(stream: &TcpStream) {
    use rustix::net::sockopt;
    // Where the system does not support an option, the limits of statements remain.
    let _unsupported = stream.set_nodelay(true);
    let _unsupported = sockopt::set_socket_keepalive(stream, true);
    let _unsupported = sockopt::set_tcp_keepidle(stream, Duration::from_secs(15));
    let _unsupported = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _unsupported = sockopt::set_tcp_keepcnt(stream, 3);
}
