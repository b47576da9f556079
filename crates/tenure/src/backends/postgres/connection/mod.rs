//! Connections to the server.
//!
//! - here: [`Connection`], one connection with a limit on every statement
//! - `dial`: TCP or Unix socket, TLS, login
//! - `drive`: who writes statements and reads responses
//! - `encrypt`: the TLS handshake
//! - `pool`: the few connections of a client that hold no lock themselves
//! - `pooler`: finds out whether a transaction pooler is in front of the server
//! - `setup`: the settings of a session or transaction that locks depend on
//! - `statement`: a statement and its parameters
//!
//! A statement is executed by the future of its caller. A caller that is dropped while it goes on
//! leaves it to a task of its own: dropping a future must not leave half a transaction on a
//! connection that others use, and a connection that does not respond has to be detected also when
//! no caller waits for it.

pub(crate) mod dial;
pub(crate) mod drive;
pub(crate) mod encrypt;
pub(crate) mod pool;
pub(crate) mod pooler;
pub(crate) mod setup;
pub(crate) mod statement;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dial::{Dialed, Endpoint};
use drive::Driven;
use futures_util::future::join3;
use setup::TRANSACTION_SETUP;
use statement::{Sql, SqlValue};
use tokio::sync::{oneshot, watch};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};

use super::config::Config;
use super::error;
use super::layout::schema::Schema;
use super::push::PushRouter;
use crate::error::{Error, ErrorKind, Result};
use crate::support::sync::Mutex;

/// How long a statement may go without a response before its connection is closed.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a statement that lost a race against another transaction is repeated.
const MAX_REPEATS: u32 = 20;
/// Reads which server process this is, its version, and whether it accepts writes.
const IDENTIFY: &str = "SELECT pg_backend_pid(), current_setting('server_version_num'), \
    current_setting('transaction_read_only') = 'on', pg_is_in_recovery()";

/// One open connection.
pub(crate) struct Connection {
    client: Client,
    endpoint: Endpoint,
    schema: Schema,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    pooled: bool,
    /// Held behind a pooler while the messages of one transaction are sent.
    transaction: tokio::sync::Mutex<()>,
    /// How many statements have no response yet.
    in_flight: AtomicUsize,
    closed: AtomicBool,
    driven: Arc<Driven>,
    /// Its sender is dropped when the connection ends.
    ended: watch::Receiver<()>,
    /// The id of the server process.
    pub(crate) pid: i32,
    pub(crate) version: i32,
}

impl Connection {
    /// Connects to the first host that accepts writes. `setup` is executed before anything else.
    pub(crate) async fn open(
        config: &Config,
        push: &Arc<PushRouter>,
        setup: &str,
    ) -> Result<Connection> {
        let mut last = None;
        for endpoint in Endpoint::all(config) {
            let server = format!("PostgreSQL at {}:{}", endpoint.host, endpoint.port);
            let opening = Connection::open_at(config, push, setup, endpoint);
            let opened = match tokio::time::timeout(config.connect_timeout, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(Error::timed_out(server, config.connect_timeout)),
            };
            match opened {
                Ok(connection) => return Ok(connection),
                // The credentials are the same for every host: further hosts would refuse too.
                Err(error) if error.kind() == ErrorKind::Denied => return Err(error),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::new(ErrorKind::Invalid, "the URL names no host")))
    }

    async fn open_at(
        config: &Config,
        push: &Arc<PushRouter>,
        setup: &str,
        endpoint: Endpoint,
    ) -> Result<Connection> {
        let Dialed { client, driven, ended } = endpoint.dial(config, push).await?;
        let mut connection = Connection {
            client,
            endpoint,
            schema: config.schema.clone(),
            prepared: Mutex::default(),
            pooled: config.pooled,
            transaction: tokio::sync::Mutex::default(),
            in_flight: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            driven: Arc::new(driven),
            ended,
            pid: 0,
            version: 0,
        };
        connection.identify(if config.pooled { "" } else { setup }).await?;
        Ok(connection)
    }

    /// Sets the session up and reads the server's identity, in one message. A standby is refused,
    /// because it cannot grant a lock.
    async fn identify(&mut self, setup: &str) -> Result<()> {
        let response = self.client.simple_query(&format!("{setup}{IDENTIFY}")).await;
        let messages = response.map_err(error::from_server)?;
        let last = messages.iter().rev().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = last.ok_or_else(|| error::unexpected("no row for the session's identity"))?;
        let number = |column| row.get(column).and_then(|text| text.parse().ok());
        self.pid = number(0).ok_or_else(|| error::unexpected("no id of the server process"))?;
        self.version = number(1).ok_or_else(|| error::unexpected("no number of its version"))?;
        // A role may have `default_transaction_read_only`, which the setup overrides: without a
        // setup only a server in recovery is refused.
        let has_defaults = setup.is_empty() && !self.pooled;
        if row.get(if has_defaults { 3 } else { 2 }) == Some("t") {
            let Endpoint { host, port, .. } = &self.endpoint;
            let message = format!("{host}:{port} is a standby or read-only; name the primary");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        Ok(())
    }

    /// Executes a statement and returns its rows. Repeats it if it lost a race against another
    /// transaction.
    pub(crate) async fn query(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<SqlValue>,
    ) -> Result<Vec<Row>> {
        let connection = self.clone();
        self.run(async move { connection.repeat(sql, &values, MAX_REPEATS).await }).await
    }

    /// Executes a statement that must not be repeated, because a repetition changes its effect.
    pub(crate) async fn query_once(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<SqlValue>,
    ) -> Result<Vec<Row>> {
        let connection = self.clone();
        self.run(async move { connection.repeat(sql, &values, 0).await }).await
    }

    /// Executes text without parameters, which may be several statements, in one message. Returns
    /// the first value of the first row. `@.` in the text stands for the schema.
    pub(crate) async fn batch(self: &Arc<Self>, text: String) -> Result<Option<String>> {
        let connection = self.clone();
        let call = async move {
            let _transaction = connection.lock_transaction_if_pooled().await;
            let text = connection.schema.qualify(&text);
            let messages = connection.client.simple_query(&text).await?;
            Ok(messages.iter().find_map(|message| match message {
                SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
                _ => None,
            }))
        };
        self.run(call).await
    }

    /// Runs a call to its end, also if this future is dropped.
    async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = Result<T, tokio_postgres::Error>> + Send + 'static,
    ) -> Result<T> {
        let connection = self.clone();
        let is_alone = connection.in_flight.fetch_add(1, Ordering::Relaxed) == 0;
        let call = async move {
            let response = connection.within_limit(call).await;
            connection.in_flight.fetch_sub(1, Ordering::Relaxed);
            response
        };
        if !self.pooled {
            return self.driven.in_place(is_alone, call).await;
        }
        let (sender, receiver) = oneshot::channel();
        self.driven.spawn(async move {
            // The caller may have been dropped.
            let _ignored = sender.send(call.await);
        });
        receiver.await.unwrap_or_else(|_| Err(error::closed()))
    }

    /// Bounds a call. A connection that does not respond in time is closed. So is one to a server
    /// that has become read-only: the next request then connects to the host that accepts writes.
    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(RESPONSE_TIMEOUT, call).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => {
                if error::is_read_only(&error) {
                    self.close();
                }
                Err(error::from_server(error))
            }
            Err(_) => {
                self.cancel_and_close().await;
                Err(Error::timed_out("PostgreSQL", RESPONSE_TIMEOUT))
            }
        }
    }

    /// Cancels the current statement and closes the connection. Without the cancel request, the
    /// server process would go on waiting for a lock, and each repeated request would add one more.
    async fn cancel_and_close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.endpoint.cancel(self.client.cancel_token()).await;
        self.close();
    }

    /// Executes a statement, and repeats it up to `left` times if it was rolled back because of
    /// another transaction: then nothing of it has happened.
    async fn repeat(
        &self,
        sql: &'static Sql,
        values: &[SqlValue],
        mut left: u32,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        loop {
            match self.execute(sql, values).await {
                Err(error) if error::lost_a_race(&error) && left > 0 => left -= 1,
                response => return response,
            }
        }
    }

    async fn execute(
        &self,
        sql: &'static Sql,
        values: &[SqlValue],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let values = values.iter().map(|value| &**value as &(dyn ToSql + Sync));
        if self.pooled {
            let typed: Vec<_> = values.zip(sql.types.iter().cloned()).collect();
            return self.execute_pooled(&self.schema.qualify(sql.text), &typed).await;
        }
        let known = self.prepared.lock().get(sql.text).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let text = self.schema.qualify(sql.text);
                let statement = self.client.prepare_typed(&text, sql.types).await?;
                self.prepared.lock().insert(sql.text, statement.clone());
                statement
            }
        };
        let values: Vec<_> = values.collect();
        self.client.query(&statement, &values).await
    }

    /// Executes a statement behind a pooler, which gives each transaction another session. So the
    /// settings have to be part of the transaction. Its three messages are sent at once and cost
    /// one round trip: joined futures send theirs in order when they are first polled. If the
    /// statement fails, the COMMIT is a rollback.
    async fn execute_pooled(
        &self,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let _transaction = self.transaction.lock().await;
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {TRANSACTION_SETUP}");
        let (begun, rows, committed) = join3(
            self.client.batch_execute(&begin),
            self.client.query_typed(text, typed),
            self.client.batch_execute("COMMIT"),
        )
        .await;
        begun?;
        let rows = rows?;
        committed?;
        Ok(rows)
    }

    /// Without a pooler, messages of several tasks may interleave: each is a transaction of its
    /// own.
    async fn lock_transaction_if_pooled(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.pooled { Some(self.transaction.lock().await) } else { None }
    }

    /// Ends the connection now, also if statements have no response yet.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.driven.close();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) || self.client.is_closed()
    }

    /// Returns when the connection has ended.
    pub(crate) async fn until_closed(&self) {
        let mut ended = self.ended.clone();
        // Nothing is ever sent: an error means that the driver, which has the sender, has ended.
        while ended.changed().await.is_ok() {}
    }

    /// How many statements have no response yet.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}
