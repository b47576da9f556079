//! Making a connection: find the server, connect, log in, make sure that it is the right one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, RedisConnectionInfo, Value};
use rustix::net::sockopt;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;

use super::from_redis;
use super::post::Post;
use super::sentinel;
use super::settings::{Address, Limits, Login};
use super::wire::{Tap, Uptime, Wire};
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{Stream, Tls, encrypt};

/// How to reach one server.
#[derive(Clone)]
pub(super) struct Dialer {
    pub(super) target: Target,
    pub(super) login: Login,
    pub(super) limits: Limits,
    pub(super) tls: Option<Tls>,
    /// Ask how long the server has been up.
    pub(super) asks_uptime: bool,
}

/// Who the server is.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// The one at this address.
    At(Address),
    /// The master that the sentinels name.
    Master { sentinels: Vec<Address>, name: String, login: Login },
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::At(address) => write!(f, "{address}"),
            Target::Master { name, .. } => write!(f, "master {name}"),
        }
    }
}

impl Dialer {
    /// Connects, within the limit.
    pub(super) async fn dial(&self, post: &Arc<Post>) -> Result<Wire> {
        let limit = match self.target {
            Target::At(_) => self.limits.connect,
            // The sentinels have one together, and the master has its own.
            Target::Master { .. } => self.limits.connect.saturating_mul(4),
        };
        tokio::time::timeout(limit, self.dial_now(post)).await.unwrap_or_else(|_| {
            let message = format!("no connection to redis at {self:?} within {limit:?}");
            Err(Error::new(ErrorKind::Unavailable, message))
        })
    }

    async fn dial_now(&self, post: &Arc<Post>) -> Result<Wire> {
        match &self.target {
            Target::At(address) => {
                let mut wire = self.connect(address, &self.login, Some(post)).await?;
                if self.asks_uptime {
                    wire.uptime = Some(uptime(&wire).await?);
                }
                Ok(wire)
            }
            Target::Master { sentinels, name, login } => {
                let master = sentinel::find(self, sentinels, name, login).await?;
                let wire = self.connect(&master, &self.login, Some(post)).await?;
                sentinel::check_role(&wire, name, &master).await?;
                Ok(wire)
            }
        }
    }

    /// Connects to this address and logs in.
    pub(super) async fn connect(
        &self,
        address: &Address,
        login: &Login,
        post: Option<&Arc<Post>>,
    ) -> Result<Wire> {
        match self.try_connect(address, login, post).await {
            // An old server, or a proxy in between: without pushes, waiters poll.
            Err(error) if post.is_some() && knows_no_resp3(&error) => {
                self.try_connect(address, login, None).await
            }
            other => other,
        }
        .map_err(|error| from_redis(error, &format!("redis at {address}")))
    }

    async fn try_connect(
        &self,
        address: &Address,
        login: &Login,
        post: Option<&Arc<Post>>,
    ) -> Result<Wire, redis::RedisError> {
        let stream = self.stream(address).await?;
        let mut info = RedisConnectionInfo::default().set_db(login.database);
        if let Some(user) = &login.user {
            info = info.set_username(user);
        }
        if let Some(password) = &login.password {
            info = info.set_password(password);
        }
        let info = info.set_lib_name("tenure", env!("CARGO_PKG_VERSION"));
        // Our own limit is on every question, so that a caller's shorter one counts as well.
        let mut config = AsyncConnectionConfig::new()
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        let tap = Arc::new(Tap::new(post.is_some()));
        let mut protocol = ProtocolVersion::RESP2;
        if let Some(post) = post {
            protocol = ProtocolVersion::RESP3;
            let (post, tap) = (Arc::downgrade(post), tap.clone());
            config = config.set_push_sender(move |push: PushInfo| {
                if let Some(post) = post.upgrade() {
                    post.deliver(&push, &tap);
                }
                Ok::<(), redis::aio::SendError>(())
            });
        }
        let info = info.set_protocol(protocol);
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&info, stream, config).await?;
        let driver = tokio::spawn(driver).abort_handle();
        Ok(Wire::new(connection, driver, tap, self.limits.response))
    }

    async fn stream(&self, address: &Address) -> std::io::Result<Box<dyn Stream>> {
        let (host, tcp) = match address {
            Address::Unix(path) => return Ok(Box::new(UnixStream::connect(path).await?)),
            Address::Tcp(host, port) => (host, TcpStream::connect((host.as_str(), *port)).await?),
        };
        tcp.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&tcp, true)?;
        #[cfg(target_os = "linux")]
        {
            sockopt::set_tcp_keepidle(&tcp, KEEP_ALIVE)?;
            sockopt::set_tcp_keepintvl(&tcp, KEEP_ALIVE / 3)?;
            sockopt::set_tcp_user_timeout(&tcp, UNACKNOWLEDGED_MS)?;
        }
        match &self.tls {
            None => Ok(Box::new(tcp)),
            Some(tls) => encrypt(tls, host, tcp, None).await,
        }
    }
}

fn knows_no_resp3(error: &redis::RedisError) -> bool {
    let text = error.to_string().to_ascii_lowercase();
    error.kind() == redis::ErrorKind::RESP3NotSupported
        || error.code() == Some("NOPROTO")
        || (text.contains("unknown command") && text.contains("hello"))
}

/// How long the server has been up. It counts whole seconds of its wall clock, so it may be wrong
/// by one.
async fn uptime(wire: &Wire) -> Result<Uptime> {
    let answer = wire.ask(redis::cmd("INFO").arg("server")).await;
    let answer = answer.map_err(|error| from_redis(error, "redis"))?;
    let text: String = match answer {
        Value::VerbatimString { text, .. } => text,
        other => redis::from_redis_value(other).unwrap_or_default(),
    };
    let seconds = text.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
    let seconds: u64 = seconds.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    Ok(Uptime { was: Duration::from_secs(seconds.saturating_sub(1)), at: Instant::now() })
}

/// How many commands may wait to be written: the renewals of many locks come in bursts.
const PIPELINE: usize = 1024;
/// An idle connection is probed this often.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// A connection whose peer acknowledges nothing for this long is over.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED_MS: u32 = 10_000;
