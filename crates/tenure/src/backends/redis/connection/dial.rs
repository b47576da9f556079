//! Making a connection: find the server, connect, log in, check that it is the right one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::sentinel;
use super::wire::Wire;
use super::{Connection, Health, PushEvent, PushHandler, Uptime, without_error};
use crate::backends::redis::config::{Address, DatabaseLogin, TimeLimits};
use crate::backends::redis::error::from_redis;
use crate::backends::redis::layout::scripts::BatchScript;
use crate::error::{Error, ErrorKind, Result};
use crate::support::credentials::UserLogin;
use crate::support::reconnect::Connector;
use crate::support::socket::Socket;
use crate::support::tls::{Stream, Tls, encrypt};

/// An idle connection is probed this often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A connection whose peer acknowledges nothing for this long is over.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS: u32 = 10_000;

/// How to reach one server.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) target: DialTarget,
    pub(crate) login: DatabaseLogin,
    pub(crate) limits: TimeLimits,
    pub(crate) tls: Option<Tls>,
    /// Whether to read how long the server has been up.
    pub(crate) reads_uptime: bool,
    /// The script for many claims at once, if the server may run it.
    pub(crate) batch: Option<Arc<BatchScript>>,
    pub(crate) on_push: PushHandler,
}

/// Which server to connect to.
#[derive(Clone, Debug)]
pub(crate) enum DialTarget {
    /// The one at this address.
    Address(Address),
    /// The master that the sentinels name.
    Master { sentinels: Vec<Address>, name: String, login: DatabaseLogin },
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            DialTarget::Address(address) => write!(f, "{address}"),
            DialTarget::Master { name, .. } => write!(f, "master {name}"),
        }
    }
}

impl Connector for Dialer {
    type Connection = Connection;

    /// Waiters retry again and again, each at its own time: a server that refuses at once is not
    /// dialed for each of them.
    const PAUSE: Duration = Duration::from_millis(20);

    async fn connect(&self, _previous: Option<&Arc<Connection>>) -> Result<Connection> {
        let limit = match self.target {
            DialTarget::Address(_) => self.limits.connect,
            // The sentinels have one together, and the master has its own.
            DialTarget::Master { .. } => self.limits.connect.saturating_mul(4),
        };
        tokio::time::timeout(limit, self.dial()).await.unwrap_or_else(|_| {
            let mut message = format!("no connection to redis at {self:?} within {limit:?}");
            if self.tls.is_some() {
                // A server without TLS waits for the rest of what it takes for a request.
                message += " by TLS; is it a server without TLS, for `redis:` and not `rediss:`?";
            }
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    fn is_alive(&self, connection: &Connection) -> bool {
        connection.is_alive()
    }

    fn connected(&self, previous: Option<&Arc<Connection>>) {
        if let Some(previous) = previous {
            previous.health.close();
            (self.on_push)(PushEvent::Missed);
        }
    }
}

impl Dialer {
    async fn dial(&self) -> Result<Connection> {
        let database = self.login.database;
        let login = &DatabaseLogin { login: self.login.login.current().await?, database };
        match &self.target {
            DialTarget::Address(address) => {
                let mut connection = self.open(address, login, true).await?;
                if self.reads_uptime {
                    connection.uptime = Some(uptime(&connection).await?);
                }
                Ok(connection)
            }
            DialTarget::Master { sentinels, name, login: sentinel_login } => {
                let master = sentinel::find_master(self, sentinels, name, sentinel_login).await?;
                let connection = self.open(&master, login, true).await?;
                sentinel::check_role(&connection, name, &master).await?;
                Ok(connection)
            }
        }
    }

    /// Connects to this address and logs in. Without `pushes`, the connection only carries
    /// requests.
    pub(crate) async fn open(
        &self,
        address: &Address,
        login: &DatabaseLogin,
        pushes: bool,
    ) -> Result<Connection> {
        match self.try_open(address, login, pushes).await {
            // An old server, or a proxy in between: without pushes, waiters poll.
            Err(error) if pushes && knows_no_resp3(&error) => {
                self.try_open(address, login, false).await
            }
            other => other,
        }
        .map_err(|error| from_redis(error, &format!("redis at {address}")))
    }

    async fn try_open(
        &self,
        address: &Address,
        login: &DatabaseLogin,
        pushes: bool,
    ) -> Result<Connection, RedisError> {
        let socket = self.connect_socket(address).await?;
        let handle = socket.handle();
        let stream: Box<dyn Stream> = match (&self.tls, address) {
            (Some(tls), Address::Tcp(host, _)) => encrypt(tls, host, socket, None).await?,
            (Some(_), Address::Unix(_)) | (None, _) => Box::new(socket),
        };
        let health = Arc::new(Health { pushes, ..Health::default() });
        let on_event = {
            let health = health.clone();
            let on_push = self.on_push.clone();
            Box::new(move |event| health.on_event(event, &on_push))
        };
        let wire = Wire::start(stream, handle, on_event, self.batch.clone());
        handshake(&wire, login, pushes).await?;
        Ok(Connection::new(wire, health, self.limits.response))
    }

    async fn connect_socket(&self, address: &Address) -> std::io::Result<Socket> {
        let tcp = match address {
            Address::Unix(path) => return Socket::unix(UnixStream::connect(path).await?),
            Address::Tcp(host, port) => TcpStream::connect((host.as_str(), *port)).await?,
        };
        tcp.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&tcp, true)?;
        #[cfg(target_os = "linux")]
        {
            sockopt::set_tcp_keepidle(&tcp, KEEP_ALIVE)?;
            sockopt::set_tcp_keepintvl(&tcp, KEEP_ALIVE / 3)?;
            sockopt::set_tcp_user_timeout(&tcp, UNACKNOWLEDGED_MS)?;
        }
        Socket::tcp(tcp)
    }
}

/// Logs in, chooses protocol and database, and says which library this is.
async fn handshake(wire: &Wire, login: &DatabaseLogin, pushes: bool) -> Result<(), RedisError> {
    let UserLogin { user, password, .. } = &login.login;
    let user = user.as_deref();
    let mut commands = Vec::new();
    match (password, pushes) {
        (password, true) => {
            let mut hello = redis::cmd("HELLO");
            hello.arg(3);
            if let Some(password) = password {
                hello.arg("AUTH").arg(user.unwrap_or("default")).arg(password);
            }
            commands.push(hello);
        }
        (Some(password), false) => {
            commands.push(redis::cmd("AUTH").arg(user).arg(password).to_owned());
        }
        (None, false) => {}
    }
    if login.database != 0 {
        commands.push(redis::cmd("SELECT").arg(login.database).to_owned());
    }
    let required = commands.len();
    commands.push(redis::cmd("CLIENT").arg("SETNAME").arg("tenure").to_owned());
    for (what, name) in [("LIB-NAME", "tenure"), ("LIB-VER", env!("CARGO_PKG_VERSION"))] {
        commands.push(redis::cmd("CLIENT").arg("SETINFO").arg(what).arg(name).to_owned());
    }
    let responses = wire.request_all(commands.iter().map(Cmd::get_packed_command)).await?;
    // A server before 7.2 does not know the last ones, and a user may have no right to them; that
    // does not matter.
    for response in responses.into_iter().take(required) {
        without_error(response)?;
    }
    Ok(())
}

fn knows_no_resp3(error: &RedisError) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    error.code() == Some("NOPROTO") || (text.contains("unknown command") && text.contains("hello"))
}

/// How long the server has been up. It counts whole seconds of its wall clock, so it may be wrong
/// by one.
async fn uptime(connection: &Connection) -> Result<Uptime> {
    let response = connection.execute(redis::cmd("INFO").arg("server")).await;
    let response = response.map_err(|error| from_redis(error, "redis"))?;
    let text: String = match response {
        Value::VerbatimString { text, .. } => text,
        other => redis::from_redis_value(other).unwrap_or_default(),
    };
    let seconds = text.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    let seconds: u64 = seconds.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Ok(Uptime { was: Duration::from_secs(seconds.saturating_sub(1)), at: Instant::now() })
}
