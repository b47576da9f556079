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
    address: String,
    longest: Duration,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl Wire {
    /// The Redis at `host:port`.
    pub(crate) fn new(address: &str, longest: Duration) -> Wire {
        Wire { address: address.to_owned(), longest, open: Mutex::new(None) }
    }

    /// Sends a command and waits for its answer.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T> {
        let mut connection = self.connection().await?;
        let answer = command.query_async(&mut connection).await;
        if let Err(error) = &answer
            && error.is_unrecoverable_error()
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
        let client = self.client()?;
        let mut heard = client.get_async_pubsub().await.map_err(|error| from_redis(&error))?;
        heard.subscribe(channel).await.map_err(|error| from_redis(&error))?;
        Ok(heard)
    }

    async fn connection(&self) -> Result<MultiplexedConnection> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.longest))
            .set_response_timeout(Some(self.longest));
        let dialled = self.client()?.get_multiplexed_async_connection_with_config(&config).await;
        Ok(open.insert(dialled.map_err(|error| from_redis(&error))?).clone())
    }

    fn client(&self) -> Result<Client> {
        Client::open(format!("redis://{}", self.address)).map_err(|error| from_redis(&error))
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "redis at {}", self.address)
    }
}

fn from_redis(error: &RedisError) -> Error {
    Error::new(ErrorKind::Unavailable, error.to_string())
}
