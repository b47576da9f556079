//! One connection: opened by ourselves, driven by a task, with a deadline on every statement.
//!
//! A statement runs in a task of its own. Whoever asked may go away; the statement does not, and a
//! connection that does not answer is found out even if nobody waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, SimpleQueryMessage, Statement};

use super::bells::Bells;
use super::encrypt::Encrypt;
use super::fault;
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// A statement and the types of its parameters.
pub(super) struct Sql {
    pub(super) text: &'static str,
    pub(super) types: &'static [Type],
}

/// A parameter that can travel to the task of its statement.
pub(super) type Value = Box<dyn ToSql + Sync + Send>;

/// Makes the parameters of a statement.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$(Box::new($value) as super::link::Value),*] };
}
pub(super) use values;

/// One open connection.
pub(super) struct Link {
    client: Client,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    pooled: bool,
    /// How many statements are not answered yet.
    busy: AtomicUsize,
    closed: AtomicBool,
    driver: AbortHandle,
    /// Ends when the connection does.
    ended: watch::Receiver<()>,
    /// The server's process.
    pub(super) pid: i32,
    pub(super) version: i32,
}

impl Link {
    /// Connects to the first host that takes writes. `setup` is run before anything else.
    pub(super) async fn open(settings: &Settings, bells: &Arc<Bells>, setup: &str) -> Result<Link> {
        let mut last = None;
        for (host, port) in &settings.hosts {
            let opening = Link::open_at(settings, bells, setup, host, *port);
            let opened = match tokio::time::timeout(settings.connect_timeout, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(silent(host, *port, settings.connect_timeout)),
            };
            match opened {
                Ok(link) => return Ok(link),
                // Another host will not know us better.
                Err(error) if error.kind() == ErrorKind::Denied => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "the URL names no host")))
    }

    async fn open_at(
        settings: &Settings,
        bells: &Arc<Bells>,
        setup: &str,
        host: &str,
        port: u16,
    ) -> Result<Link> {
        let mut config = Config::new();
        config.user(&settings.user).dbname(&settings.database).application_name("tenure");
        if let Some(password) = &settings.password {
            config.password(password);
        }
        let (ending, ended) = watch::channel(());
        let refused = |error| fault::from_connect(settings, host, port, error);
        let (client, driver) = if host.starts_with('/') {
            let path = format!("{host}/.s.PGSQL.{port}");
            let stream = UnixStream::connect(path).await;
            let stream = stream.map_err(|error| fault::from_io(host, port, error))?;
            let (client, connection) = config.connect_raw(stream, NoTls).await.map_err(refused)?;
            (client, drive(connection, bells.clone(), ending))
        } else {
            let stream = TcpStream::connect((host, port)).await;
            let stream = stream.map_err(|error| fault::from_io(host, port, error))?;
            tune(&stream);
            match &settings.tls {
                None => {
                    let opened = config.connect_raw(stream, NoTls).await.map_err(refused)?;
                    (opened.0, drive(opened.1, bells.clone(), ending))
                }
                Some(tls) => {
                    let way = Encrypt { tls, host };
                    let opened = config.ssl_mode(SslMode::Require).connect_raw(stream, way);
                    let opened = opened.await.map_err(refused)?;
                    (opened.0, drive(opened.1, bells.clone(), ending))
                }
            }
        };
        let mut link = Link {
            client,
            prepared: Mutex::default(),
            pooled: settings.pooled,
            busy: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            driver,
            ended,
            pid: 0,
            version: 0,
        };
        link.introduce(setup, host, port).await?;
        Ok(link)
    }

    /// Sets the session up and asks who it is. A standby is refused: it can grant nothing.
    async fn introduce(&mut self, setup: &str, host: &str, port: u16) -> Result<()> {
        let setup = if self.pooled { "" } else { setup };
        let asked = self.client.simple_query(&format!("{setup}{WHO}")).await;
        let messages = asked.map_err(fault::from_server)?;
        let last = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = last.ok_or_else(|| fault::odd("who we are"))?;
        let number = |column| row.get(column).and_then(|text| text.parse().ok());
        self.pid = number(0).ok_or_else(|| fault::odd("its process"))?;
        self.version = number(1).ok_or_else(|| fault::odd("its version"))?;
        let reads_only = row.get(2) == Some("on");
        if reads_only {
            let message = format!("{host}:{port} is a standby or read-only; name the primary");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Runs a statement and gives its rows.
    pub(super) async fn ask(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<Value>,
    ) -> Result<Vec<Row>> {
        let link = self.clone();
        self.run(async move { link.repeat(sql, &values, REPEATS).await }).await
    }

    /// The same for what must not be repeated.
    pub(super) async fn ask_once(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<Value>,
    ) -> Result<Vec<Row>> {
        let link = self.clone();
        self.run(async move { link.repeat(sql, &values, 0).await }).await
    }

    /// Runs text without parameters, several statements if need be, in one message. Gives the first
    /// value of the first row.
    pub(super) async fn batch(self: &Arc<Self>, text: String) -> Result<Option<String>> {
        let link = self.clone();
        let call = async move {
            let messages = link.client.simple_query(&text).await?;
            Ok(messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            }))
        };
        self.run(call).await
    }

    /// Runs a call in a task of its own.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = oneshot::channel();
        let link = self.clone();
        link.busy.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let answer = link.within_limit(call).await;
            link.busy.fetch_sub(1, Ordering::Relaxed);
            // Whoever asked may have gone away.
            let _unwanted = sender.send(answer);
        });
        receiver.await.unwrap_or_else(|_| Err(fault::closed()))
    }

    /// Ends what has a limit: a connection that is silent for so long is given up.
    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(ANSWER, call).await {
            Ok(answer) => answer.map_err(fault::from_server),
            Err(_) => {
                self.close();
                let message = format!("no answer from PostgreSQL within {ANSWER:?}");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Repeats what lost a race against another transaction: every statement may be repeated.
    async fn repeat(
        &self,
        sql: &'static Sql,
        values: &[Value],
        mut left: u32,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        loop {
            match self.query(sql, values).await {
                Err(error) if fault::lost_a_race(&error) && left > 0 => left -= 1,
                answer => return answer,
            }
        }
    }

    async fn query(
        &self,
        sql: &'static Sql,
        values: &[Value],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let values = values.iter().map(|value| &**value as &(dyn ToSql + Sync));
        if self.pooled {
            let typed: Vec<_> = values.zip(sql.types.iter().cloned()).collect();
            return self.client.query_typed(sql.text, &typed).await;
        }
        let known = self.prepared().get(sql.text).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = self.client.prepare_typed(sql.text, sql.types).await?;
                self.prepared().insert(sql.text, statement.clone());
                statement
            }
        };
        let values: Vec<_> = values.collect();
        self.client.query(&statement, &values).await
    }

    /// Ends the connection now, whatever is under way on it.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.driver.abort();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.client.is_closed()
    }

    /// Returns when the connection has ended.
    pub(super) async fn until_closed(&self) {
        let mut ended = self.ended.clone();
        // Nothing is ever sent: an error says that the driver is gone.
        while ended.changed().await.is_ok() {}
    }

    pub(super) fn busy(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    fn prepared(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
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

fn silent(host: &str, port: u16, limit: Duration) -> Error {
    let message = format!("PostgreSQL at {host}:{port} does not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, message)
}

const WHO: &str = "SELECT pg_backend_pid(), current_setting('server_version_num'), \
    current_setting('transaction_read_only')";

/// How long a statement may go unanswered before its connection is given up.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a statement that lost a race is repeated.
const REPEATS: u32 = 20;
