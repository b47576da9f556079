//! A connection to one Redis as simple programs use it: dialled when needed, dialled again after an
//! error, and an answer that does not come is an error.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError};
use tenure::{Error, ErrorKind, Result};
use tokio::sync::Mutex;

/// One Redis.
pub(crate) struct Wire {
    place: Place,
    longest: Duration,
    open: Mutex<Option<MultiplexedConnection>>,
}

/// Where it is.
enum Place {
    At(String),
    /// The master of that name; any of these sentinels knows where it is.
    Master {
        name: String,
        sentinels: Vec<String>,
        login: String,
    },
}

impl Wire {
    /// The Redis at `host:port`, or at `:password@host:port`.
    pub(crate) fn new(address: &str, longest: Duration) -> Wire {
        Wire { place: Place::At(address.to_owned()), longest, open: Mutex::new(None) }
    }

    /// The master that sentinels name, of a URL that says so.
    pub(crate) fn watched(url: &str, longest: Duration) -> Option<Wire> {
        let (sentinels, name) = url.strip_prefix("redis+sentinel://")?.split_once('/')?;
        // One password for all, also for the master that they name.
        let (login, sentinels) = match sentinels.split_once('@') {
            Some((login, sentinels)) => (format!("{login}@"), sentinels),
            None => (String::new(), sentinels),
        };
        let name = name.split('?').next().unwrap_or(name);
        let sentinels = sentinels.split(',').map(|at| format!("{login}{at}")).collect();
        let place = Place::Master { name: name.to_owned(), sentinels, login };
        Some(Wire { place, longest, open: Mutex::new(None) })
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let mut connection = self.connection().await?;
        let answer = command.query_async(&mut connection).await;
        // One that is no master any more: the sentinels know who is.
        if let Err(error) = &answer
            && (error.is_unrecoverable_error() || error.code() == Some("READONLY"))
        {
            *self.open.lock().await = None;
        }
        answer.map_err(|error| from_redis(&error))
    }

    /// A script with one key.
    pub(crate) async fn script<T: FromRedisValue>(
        &self,
        code: &str,
        keys: &[&str],
        arguments: &[String],
    ) -> Result<T> {
        let mut command = redis::cmd("EVAL");
        command.arg(code).arg(keys.len()).arg(keys).arg(arguments);
        self.ask(&command).await
    }

    /// Listens on a channel; a connection of its own.
    pub(crate) async fn listen(&self, channel: &str) -> Result<redis::aio::PubSub> {
        let client = self.client().await?;
        let mut heard = client.get_async_pubsub().await.map_err(|error| from_redis(&error))?;
        heard.subscribe(channel).await.map_err(|error| from_redis(&error))?;
        Ok(heard)
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let dialled = self.dial(&self.client().await?).await?;
        Ok(open.insert(dialled).clone())
    }

    async fn dial(&self, client: &Client) -> Result<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.longest))
            .set_response_timeout(Some(self.longest));
        let dialled = client.get_multiplexed_async_connection_with_config(&config).await;
        dialled.map_err(|error| from_redis(&error))
    }

    async fn client(&self) -> Result<Client> {
        let (name, sentinels, login) = match &self.place {
            Place::At(address) => return client(address),
            Place::Master { name, sentinels, login } => (name, sentinels, login),
        };
        let mut last = Error::new(ErrorKind::Unavailable, "there is no sentinel");
        for sentinel in sentinels {
            match self.named(sentinel, name).await {
                Ok(address) => return client(&format!("{login}{address}")),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// The address of the master, as this sentinel has it.
    async fn named(&self, sentinel: &str, name: &str) -> Result<String> {
        let mut connection = self.dial(&client(sentinel)?).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer = question.query_async(&mut connection).await;
        let (host, port): (String, u16) = answer.map_err(|error| from_redis(&error))?;
        Ok(format!("{host}:{port}"))
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::At(address) => {
                let place = address.rsplit('@').next().unwrap_or_default();
                write!(f, "redis at {place}")
            }
            Place::Master { name, .. } => write!(f, "the redis master {name}"),
        }
    }
}

fn client(address: &str) -> Result<Client> {
    Client::open(format!("redis://{address}")).map_err(|error| from_redis(&error))
}

fn from_redis(error: &RedisError) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
