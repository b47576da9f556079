//! The way to a server: opening a connection, the task that drives it, and cancelling over another.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::{AsyncMessage, CancelToken, Client, Config, NoTls};

use super::bells::Bells;
use super::encrypt::Encrypt;
use super::fault;
use super::settings::Settings;
use crate::error::Result;
use crate::tls::Tls;

/// Where a connection leads, and how.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) host: String,
    pub(super) port: u16,
    tls: Option<Tls>,
}

/// An open connection that a task drives.
pub(super) struct Opened {
    pub(super) client: Client,
    pub(super) driver: AbortHandle,
    /// Ends when the connection does.
    pub(super) ended: watch::Receiver<()>,
}

impl Way {
    /// The ways to the hosts that the URL names, in its order.
    pub(super) fn all(settings: &Settings) -> impl Iterator<Item = Way> {
        let tls = &settings.tls;
        let way = |(host, port): &(String, u16)| (host.clone(), *port);
        settings.hosts.iter().map(way).map(|(host, port)| Way { host, port, tls: tls.clone() })
    }

    pub(super) async fn open(&self, settings: &Settings, bells: &Arc<Bells>) -> Result<Opened> {
        let mut config = Config::new();
        config.user(&settings.user).dbname(&settings.database).application_name("tenure");
        if let Some(password) = &settings.password {
            config.password(password);
        }
        let (ending, ended) = watch::channel(());
        let refused = |error| fault::from_connect(settings, &self.host, self.port, error);
        let (client, driver) = if let Some(path) = self.socket() {
            let stream = UnixStream::connect(path).await.map_err(|error| self.unreached(error))?;
            let opened = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            (opened.0, drive(opened.1, bells.clone(), ending))
        } else {
            let stream = self.dial().await.map_err(|error| self.unreached(error))?;
            match &self.tls {
                None => {
                    let opened = config.connect_raw(stream, NoTls).await.map_err(refused)?;
                    (opened.0, drive(opened.1, bells.clone(), ending))
                }
                Some(tls) => {
                    let way = Encrypt { tls, host: &self.host };
                    let opened = config.ssl_mode(SslMode::Require).connect_raw(stream, way);
                    let opened = opened.await.map_err(refused)?;
                    (opened.0, drive(opened.1, bells.clone(), ending))
                }
            }
        };
        Ok(Opened { client, driver, ended })
    }

    /// Tells the server to end a statement that nobody waits for any more. A server process that
    /// waits for a lock does not see that its client has closed the connection.
    pub(super) async fn cancel(&self, token: CancelToken) {
        let cancelling = async {
            if let Some(path) = self.socket() {
                let stream = UnixStream::connect(path).await.ok()?;
                return token.cancel_query_raw(stream, NoTls).await.ok();
            }
            let stream = self.dial().await.ok()?;
            match &self.tls {
                None => token.cancel_query_raw(stream, NoTls).await.ok(),
                Some(tls) => {
                    token.cancel_query_raw(stream, Encrypt { tls, host: &self.host }).await.ok()
                }
            }
        };
        // A server that cannot be reached ends the statement at its own time-out.
        drop(tokio::time::timeout(CANCEL, cancelling).await);
    }

    async fn dial(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        tune(&stream);
        Ok(stream)
    }

    /// The path of a Unix socket, if the host is a folder.
    fn socket(&self) -> Option<String> {
        let (host, port) = (&self.host, self.port);
        host.starts_with('/').then(|| format!("{host}/.s.PGSQL.{port}"))
    }

    fn unreached(&self, error: std::io::Error) -> crate::error::Error {
        fault::from_io(&self.host, self.port, error)
    }
}

/// Lets the connection work until it ends or is given up, and passes on what the server pushes.
fn drive<S, T>(
    mut connection: tokio_postgres::Connection<S, T>,
    bells: Arc<Bells>,
    ending: watch::Sender<()>,
) -> AbortHandle
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let task = async move {
        let _ending = Ending { bells: bells.clone(), _sender: ending };
        let poll = |context: &mut Context<'_>| connection.poll_message(context);
        let mut messages = futures_util::stream::poll_fn(poll);
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(notification) = message {
                bells.hear(notification.payload());
            }
        }
    };
    tokio::spawn(task).abort_handle()
}

/// Tells, when the driver ends in whatever way, that nothing can be heard any more.
struct Ending {
    bells: Arc<Bells>,
    /// Its end is the message.
    _sender: watch::Sender<()>,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.bells.deaf();
    }
}

/// Finds a dead peer within about half a minute, also when nothing is sent.
fn tune(stream: &TcpStream) {
    use rustix::net::sockopt;
    // A system that cannot do that still has our deadlines.
    let _unsupported = stream.set_nodelay(true);
    let _unsupported = sockopt::set_socket_keepalive(stream, true);
    let _unsupported = sockopt::set_tcp_keepidle(stream, Duration::from_secs(15));
    let _unsupported = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _unsupported = sockopt::set_tcp_keepcnt(stream, 3);
}

/// How long a request to cancel may take, before the connection is closed anyway.
const CANCEL: Duration = Duration::from_secs(1);
