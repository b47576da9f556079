//! The few connections of a client that hold no lock themselves.
//!
//! **One only listens** for pushed messages. A session of the server that listens is woken by every
//! notification in its database, on whichever channel, and reads no statement as long as further
//! ones come while it is busy with the last: a statement on it would wait until no client anywhere
//! hands a lock off. So statements have connections of their own. There is one, and others are
//! opened only when statements queue up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use tokio_postgres::Row;

use super::Connection;
use super::setup::SESSION_SETUP;
use super::statement::{Sql, SqlValue};
use crate::backend::{Claim, Grant, Mode, Owner};
use crate::backends::postgres::config::Config;
use crate::backends::postgres::lease::mixed_keys::MixedKeys;
use crate::backends::postgres::push::PushRouter;
use crate::error::Result;
use crate::support::reconnect::{Connector, Reconnect};
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// The connections of a client that hold no lock themselves, and what its modes share.
pub(crate) struct Pool {
    pub(crate) config: Arc<Config>,
    pub(crate) push: Arc<PushRouter>,
    /// The channel on which the server notifies this client.
    pub(crate) channel: String,
    /// Whether the tables have what other modes than exclusive need. Found out when the client
    /// starts (see `layout::schema`), and never true too early.
    pub(crate) has_modes: AtomicBool,
    /// The keys that were mixed when last seen.
    pub(crate) mixed: MixedKeys,
    /// Listens on the channel, and executes nothing. There is none behind a pooler.
    listener: Reconnect<ListenerConnector>,
    /// The first connection for statements.
    first: Reconnect<StatementConnector>,
    others: Mutex<Vec<Arc<Connection>>>,
    /// Held while one of `others` is opened.
    growing: tokio::sync::Mutex<()>,
    /// A connection for requests that must not wait behind others, as long as one uses it.
    bypass: tokio::sync::Mutex<Weak<Connection>>,
}

/// Opens the connection that listens.
struct ListenerConnector {
    config: Arc<Config>,
    push: Arc<PushRouter>,
    setup: String,
}

impl Connector for ListenerConnector {
    type Connection = Connection;

    async fn connect(&self, _previous: Option<&Arc<Connection>>) -> Result<Connection> {
        Connection::open(&self.config, &self.push, &self.setup).await
    }

    fn is_alive(&self, connection: &Connection) -> bool {
        !connection.is_closed()
    }

    fn connected(&self, _previous: Option<&Arc<Connection>>) {
        // What was pushed before this connection listened is lost.
        self.push.recheck_all();
    }
}

/// Opens the first connection for statements.
struct StatementConnector {
    config: Arc<Config>,
    push: Arc<PushRouter>,
}

impl Connector for StatementConnector {
    type Connection = Connection;

    async fn connect(&self, _previous: Option<&Arc<Connection>>) -> Result<Connection> {
        Connection::open(&self.config, &self.push, SESSION_SETUP).await
    }

    fn is_alive(&self, connection: &Connection) -> bool {
        !connection.is_closed()
    }
}

impl Pool {
    pub(crate) fn new(config: Config) -> Arc<Pool> {
        let config = Arc::new(config);
        let push = Arc::<PushRouter>::default();
        // Random, and after the replacements fit for an identifier.
        let name = Owner::random().to_string().replace(['-', ':'], "_");
        let channel = format!("tenure_{name}");
        let listener = Reconnect::new(ListenerConnector {
            config: config.clone(),
            push: push.clone(),
            setup: format!("{SESSION_SETUP}LISTEN {channel}; "),
        });
        let first =
            Reconnect::new(StatementConnector { config: config.clone(), push: push.clone() });
        Arc::new(Pool {
            config,
            push,
            channel,
            has_modes: AtomicBool::new(false),
            mixed: MixedKeys::default(),
            listener,
            first,
            others: Mutex::default(),
            growing: tokio::sync::Mutex::default(),
            bypass: tokio::sync::Mutex::default(),
        })
    }

    pub(crate) fn has_modes(&self) -> bool {
        self.has_modes.load(Ordering::Relaxed)
    }

    /// A grant of `mode=lease` to this claim. An exclusive one owns all tokens up to the next draw.
    pub(crate) fn grant(&self, claim: &Claim, token: FencingToken) -> Grant {
        if claim.mode == Mode::Exclusive && self.has_modes() {
            return Grant::with_range(token, claim.ttl);
        }
        Grant::new(token, claim.ttl)
    }

    /// Executes a statement on the least busy connection.
    pub(crate) async fn query(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: Vec<SqlValue>,
    ) -> Result<Vec<Row>> {
        self.connection().await?.query(sql, values).await
    }

    /// Executes an idempotent statement that must not wait behind others: if there is no response
    /// within `limit`, it is also sent over the bypass connection, and the first success counts.
    /// That connection is closed when no request uses it any more.
    pub(crate) async fn query_with_bypass(
        self: &Arc<Self>,
        sql: &'static Sql,
        values: impl Fn() -> Vec<SqlValue> + Send + Sync,
        limit: Duration,
    ) -> Result<Vec<Row>> {
        let mut pooled = Box::pin(self.query(sql, values()));
        if let Ok(response) = tokio::time::timeout(limit, &mut pooled).await {
            return response;
        }
        let bypass = async { self.bypass().await?.query(sql, values()).await };
        let both = [pooled.boxed(), bypass.boxed()];
        futures_util::future::select_ok(both).await.map(|(rows, _)| rows)
    }

    async fn bypass(self: &Arc<Self>) -> Result<Arc<Connection>> {
        let mut bypass = self.bypass.lock().await;
        if let Some(connection) = bypass.upgrade().filter(|connection| !connection.is_closed()) {
            return Ok(connection);
        }
        let connection = Arc::new(self.open_dedicated().await?);
        *bypass = Arc::downgrade(&connection);
        Ok(connection)
    }

    /// Returns when the client listens for pushed messages, or at once behind a pooler.
    pub(crate) async fn listen(&self) -> Result<()> {
        if self.is_listening() {
            return Ok(());
        }
        // After an outage both are missing: they are opened side by side.
        let (listening, _) = tokio::join!(self.listener.get(), self.first.get());
        listening.map(drop)
    }

    fn is_listening(&self) -> bool {
        self.config.pooled || self.listener.alive().is_some()
    }

    /// The least busy connection for statements.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>> {
        if !self.is_listening() {
            // A holder hears of its eviction by a message; this statement does not need one.
            let pool = self.clone();
            drop(tokio::spawn(async move { drop(pool.listen().await) }));
        }
        let Some(first) = self.first.alive() else { return self.first.get().await };
        let connection = self.least_busy(first);
        if self.should_grow(&connection) {
            // Later statements may use the new one; this statement does not wait for it.
            drop(tokio::spawn(self.clone().grow()));
        }
        Ok(connection)
    }

    fn least_busy(&self, first: Arc<Connection>) -> Arc<Connection> {
        let mut others = self.others.lock();
        others.retain(|connection| !connection.is_closed());
        let all = others.iter().chain([&first]);
        all.min_by_key(|connection| connection.in_flight()).unwrap_or(&first).clone()
    }

    /// Whether another connection may be opened, because even the least busy one is busy.
    fn should_grow(&self, least_busy: &Connection) -> bool {
        least_busy.in_flight() > 0 && self.others.lock().len() + 1 < self.config.connections
    }

    async fn grow(self: Arc<Self>) {
        let _growing = self.growing.lock().await;
        // Another task may have opened one while this one waited for its turn.
        let Some(first) = self.first.alive() else { return };
        if self.should_grow(&self.least_busy(first))
            && let Ok(connection) = self.open_dedicated().await
        {
            self.others.lock().push(Arc::new(connection));
        }
    }

    /// Uses two open connections: sets them up, one to listen, the other for statements.
    pub(crate) async fn adopt(&self, [one, two]: [Arc<Connection>; 2]) -> Result<()> {
        one.batch(self.listener.connector().setup.clone()).await?;
        two.batch(SESSION_SETUP.to_owned()).await?;
        self.listener.set(one);
        self.first.set(two);
        Ok(())
    }

    /// Opens a connection on which nothing is set yet.
    pub(crate) async fn open_without_setup(&self) -> Result<Connection> {
        Connection::open(&self.config, &self.push, "").await
    }

    /// Opens a connection that is set up and does not listen.
    pub(crate) async fn open_dedicated(&self) -> Result<Connection> {
        Connection::open(&self.config, &self.push, SESSION_SETUP).await
    }
}
