//! A connection to one Redis as simple programs use it: opened when it is needed, opened again
//! after an error, with a limit for each response.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError};
use tenure::{Error, ErrorKind, Result};
use tokio::sync::Mutex;

/// A connection to one Redis.
pub(crate) struct RedisConnection {
    address: Address,
    response_limit: Duration,
    open: Mutex<Option<MultiplexedConnection>>,
}

enum Address {
    /// `host:port`, or `:password@host:port`.
    Fixed(String),
    /// The master of that name, which any of these sentinels can locate.
    Sentinel { master: String, sentinels: Vec<String>, login: String },
}

impl RedisConnection {
    /// A connection to the Redis at `host:port`, or at `:password@host:port`.
    pub(crate) fn new(address: &str, response_limit: Duration) -> RedisConnection {
        let address = Address::Fixed(address.to_owned());
        RedisConnection { address, response_limit, open: Mutex::new(None) }
    }

    /// A connection to the master that sentinels name; none if the URL does not name sentinels.
    pub(crate) fn via_sentinels(url: &str, response_limit: Duration) -> Option<RedisConnection> {
        let (sentinels, master) = url.strip_prefix("redis+sentinel://")?.split_once('/')?;
        // The sentinels and the master have the same password.
        let (login, sentinels) = match sentinels.split_once('@') {
            Some((login, sentinels)) => (format!("{login}@"), sentinels),
            None => (String::new(), sentinels),
        };
        let master = master.split('?').next().unwrap_or(master).to_owned();
        let sentinels = sentinels.split(',').map(|at| format!("{login}{at}")).collect();
        let address = Address::Sentinel { master, sentinels, login };
        Some(RedisConnection { address, response_limit, open: Mutex::new(None) })
    }

    /// Sends a command and waits for its response.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let mut connection = self.connection().await?;
        let response = command.query_async(&mut connection).await;
        // A replica that was the master before: the sentinels name the new one.
        if let Err(error) = &response
            && (error.is_unrecoverable_error() || error.code() == Some("READONLY"))
        {
            *self.open.lock().await = None;
        }
        response.map_err(|error| from_redis(&error))
    }

    /// Executes a Lua script.
    pub(crate) async fn script<T: FromRedisValue>(
        &self,
        code: &str,
        keys: &[&str],
        arguments: &[String],
    ) -> Result<T> {
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(keys.len()).arg(keys).arg(arguments);
        self.query(&command).await
    }

    /// Subscribes to a channel, on a connection of its own.
    pub(crate) async fn subscribe(&self, channel: &str) -> Result<redis::aio::PubSub> {
        let client = self.client().await?;
        let mut subscription =
            client.get_async_pubsub().await.map_err(|error| from_redis(&error))?;
        subscription.subscribe(channel).await.map_err(|error| from_redis(&error))?;
        Ok(subscription)
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let connection = self.connect(&self.client().await?).await?;
        Ok(open.insert(connection).clone())
    }

    async fn connect(&self, client: &Client) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.response_limit))
            .set_response_timeout(Some(self.response_limit));
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        connection.map_err(|error| from_redis(&error))
    }

    async fn client(&self) -> Result<Client> {
        let (master, sentinels, login) = match &self.address {
            Address::Fixed(address) => return client(address),
            Address::Sentinel { master, sentinels, login } => (master, sentinels, login),
        };
        let mut last = Error::new(ErrorKind::Unavailable, "no sentinel is configured");
        for sentinel in sentinels {
            match self.master_address(sentinel, master).await {
                Ok(address) => return client(&format!("{login}{address}")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The address of the master, as this sentinel names it.
    async fn master_address(&self, sentinel: &str, master: &str) -> Result<String> {
        let mut connection = self.connect(&client(sentinel)?).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
        let response = command.query_async(&mut connection).await;
        let (host, port): (String, u16) = response.map_err(|error| from_redis(&error))?;
        Ok(format!("{host}:{port}"))
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Fixed(address) => {
                let without_password = address.rsplit('@').next().unwrap_or_default();
                write!(f, "redis at {without_password}")
            }
            Address::Sentinel { master, .. } => write!(f, "the redis master {master}"),
        }
    }
}

fn client(address: &str) -> Result<Client> {
    Client::open(format!("redis://{address}")).map_err(|error| from_redis(&error))
}

fn from_redis(error: &RedisError) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
