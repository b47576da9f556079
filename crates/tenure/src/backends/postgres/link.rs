//! One connection: opened by ourselves, driven by a task, with a deadline on every statement.
//!
//! A statement runs in a task of its own. Whoever asked may go away; the statement does not, and a
//! connection that does not answer is found out even if nobody waits for it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join3;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, SimpleQueryMessage, Statement};

use super::bells::Bells;
use super::connect::{Opened, Way};
use super::fault;
use super::schema::Schema;
use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};

/// A statement and the types of its parameters; `@.` in its text stands for the schema.
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
    way: Way,
    schema: Schema,
    prepared: Mutex<HashMap<&'static str, Statement>>,
    pooled: bool,
    /// Held behind a pooler while the messages of one transaction are under way.
    alone: tokio::sync::Mutex<()>,
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
        for way in Way::all(settings) {
            let (host, port) = (way.host.clone(), way.port);
            let opening = Link::open_at(settings, bells, setup, way);
            let opened = match tokio::time::timeout(settings.connect_timeout, opening).await {
                Ok(opened) => opened,
                Err(_) => Err(silent(&host, port, settings.connect_timeout)),
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
        way: Way,
    ) -> Result<Link> {
        let Opened { client, driver, ended } = way.open(settings, bells).await?;
        let mut link = Link {
            client,
            way,
            schema: settings.schema.clone(),
            prepared: Mutex::default(),
            pooled: settings.pooled,
            alone: tokio::sync::Mutex::default(),
            busy: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            driver,
            ended,
            pid: 0,
            version: 0,
        };
        link.introduce(if settings.pooled { "" } else { setup }).await?;
        Ok(link)
    }

    /// Sets the session up and asks who it is. A standby is refused: it can grant nothing.
    async fn introduce(&mut self, setup: &str) -> Result<()> {
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
        // What a role has as its default, the setup overrides.
        let bare = setup.is_empty() && !self.pooled;
        if row.get(if bare { 3 } else { 2 }) == Some("t") {
            let (host, port) = (&self.way.host, self.way.port);
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
    /// value of the first row. `@.` in it stands for the schema.
    pub(super) async fn batch(self: &Arc<Self>, text: String) -> Result<Option<String>> {
        let link = self.clone();
        let call = async move {
            let _alone = link.alone_if_pooled().await;
            let messages = link.client.simple_query(&link.schema.qualify(&text)).await?;
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

    /// Ends what has a limit: a connection that is silent for so long is given up. So is one to a
    /// server that takes no writes any more: the next request looks for the one that does.
    async fn within_limit<T>(
        &self,
        call: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T> {
        match tokio::time::timeout(ANSWER, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                if fault::is_read_only(&error) {
                    self.close();
                }
                Err(fault::from_server(error))
            }
            Err(_) => {
                self.give_up().await;
                let message = format!("no answer from PostgreSQL within {ANSWER:?}");
                Err(Error::new(ErrorKind::Unavailable, message))
            }
        }
    }

    /// Cancels what is under way, and closes the connection: the server must not go on waiting for
    /// a lock on behalf of nobody, with one more process for each repeated request.
    async fn give_up(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.way.cancel(self.client.cancel_token()).await;
        self.close();
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
            return self.transaction(&self.schema.qualify(sql.text), &typed).await;
        }
        let known = self.prepared().get(sql.text).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let text = self.schema.qualify(sql.text);
                let statement = self.client.prepare_typed(&text, sql.types).await?;
                self.prepared().insert(sql.text, statement.clone());
                statement
            }
        };
        let values: Vec<_> = values.collect();
        self.client.query(&statement, &values).await
    }

    /// Behind a pooler a session is somebody else's a moment later, so that every statement brings
    /// its settings along, in a transaction of its own. Its three messages are sent at once and
    /// cost one trip: joined futures send theirs in order when they are first polled. If the
    /// statement fails, the commit is a rollback.
    async fn transaction(
        &self,
        text: &str,
        typed: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let _alone = self.alone.lock().await;
        let begin = format!("BEGIN ISOLATION LEVEL READ COMMITTED; {LOCAL}");
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

    /// Without a pooler, messages of several tasks may mix: each is a transaction of its own.
    async fn alone_if_pooled(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.pooled { Some(self.alone.lock().await) } else { None }
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

fn silent(host: &str, port: u16, limit: Duration) -> Error {
    let message = format!("PostgreSQL at {host}:{port} does not answer within {limit:?}");
    Error::new(ErrorKind::Unavailable, message)
}

const WHO: &str = "SELECT pg_backend_pid(), current_setting('server_version_num'), \
    current_setting('transaction_read_only') = 'on', pg_is_in_recovery()";

/// Waits for commits where others do not: leases must not be rolled back by a crash, nor forgotten
/// by a standby that was to have them. What waits for more than that is left as it is.
macro_rules! wait_for_commits {
    ($local:literal) => {
        concat!(
            "SELECT set_config('synchronous_commit', 'on', ",
            $local,
            ") WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write'); "
        )
    };
}

/// Makes a session independent of what an administrator set for others.
pub(super) const SETUP: &str = concat!(
    "SET default_transaction_isolation = 'read committed'; \
     SET default_transaction_read_only = off; SET statement_timeout = '10s'; \
     SET lock_timeout = '4s'; SET idle_in_transaction_session_timeout = '60s'; \
     SELECT set_config('idle_session_timeout', '0', false) \
     WHERE current_setting('server_version_num')::int >= 140000; ",
    wait_for_commits!("false")
);

/// The same for one transaction.
pub(super) const LOCAL: &str = concat!(
    "SET LOCAL statement_timeout = '10s'; SET LOCAL lock_timeout = '4s'; ",
    wait_for_commits!("true")
);

/// How long a statement may go unanswered before its connection is given up.
const ANSWER: Duration = Duration::from_secs(5);
/// How often a statement that lost a race is repeated.
const REPEATS: u32 = 20;
