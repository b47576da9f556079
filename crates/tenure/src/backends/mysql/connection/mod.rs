//! A connection to the server: one task owns it and executes requests in the order in which they
//! were sent.
//!
//! A request is one packet of statements. Once begun, it is completed even if its caller stops
//! waiting for the response, so that a release never overtakes the acquire that it cancels.
//!
//! Every connection has an id, a UUID that the client chose ([`ConnectionId`]). It stands in the
//! user variable `@tenure_home`, in the column `home` of the records that end with the connection,
//! and in the name of a named lock that the connection holds, `tenure:<id>`. While the server says
//! that this lock is used, the connection exists; `IS_USED_LOCK` also tells the number by which
//! `KILL` finds it.
//!
//! **The race that this prevents:** a request whose response did not arrive can still be executed
//! at the server, after the claim was released. So a connection with an unknown outcome is
//! abandoned, and the task's next connection kills it and waits until its named lock is free
//! before it executes anything else. For this reason tenure needs no tombstones on MySQL.
//!
//! **A connection that holds locks** frees them when it ends. The client knows at once that it has
//! abandoned one, and the holder has to be told before another client can be granted: so it is
//! closed a moment later ([`LOSS_NOTICE`]), and renewals that find it abandoned send nothing.

mod open;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Opts, Row};
use open::OpenConn;
pub(super) use open::{kill_lock_holder, open};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::error;
use crate::error::{Error, Result};
use crate::support::credentials::UserLogin;

/// How long a statement waits for a row, with some time for the network; see `open`.
const ROW_WAIT: Duration = Duration::from_millis(2300);
/// How often a packet is executed that the server rolls back because of other transactions.
const MAX_ATTEMPTS: u32 = 8;
/// A connection that was used so recently is not pinged before its next use: for a request that can
/// be repeated, and for one that cannot.
const FRESH: Duration = Duration::from_secs(20);
const FRESH_ONCE: Duration = Duration::from_secs(1);
/// Limit for a request whose response is not awaited.
const DETACHED_LIMIT: Duration = Duration::from_secs(2);
/// How long an abandoned connection that may hold locks is kept open: the holder has to learn of
/// the loss before the server frees them.
const LOSS_NOTICE: Duration = Duration::from_millis(250);
/// How long the orderly end of a connection may take.
pub(super) const DISCONNECT_LIMIT: Duration = Duration::from_secs(1);

/// A handle to a connection. When the last handle is dropped, the connection is closed.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    jobs: mpsc::UnboundedSender<Job>,
    /// The id of the open connection; `None` while there is none.
    current_id: watch::Receiver<Option<ConnectionId>>,
}

/// The id that the client gave to one connection. Not the server's number, `CONNECTION_ID()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConnectionId(Arc<str>);

impl ConnectionId {
    /// A new id with this prefix. Its length does not depend on the prefix.
    fn random(prefix: &str) -> ConnectionId {
        let random = Uuid::new_v4().simple().to_string();
        ConnectionId(format!("{prefix}{}", &random[prefix.len()..]).into())
    }

    /// The name of the lock that the connection holds while it exists.
    pub(super) fn lock_name(&self) -> String {
        format!("tenure:{self}")
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The server's response to one packet of statements.
#[derive(Debug, Default)]
pub(super) struct Response {
    /// The connection that executed it.
    pub(super) connection_id: ConnectionId,
    /// How many rows the first statement changed.
    pub(super) affected_rows: u64,
    /// The `LAST_INSERT_ID()` that the first statement set.
    pub(super) last_insert_id: Option<u64>,
    /// The rows of each statement that returns rows.
    pub(super) result_sets: Vec<Vec<Row>>,
    /// Ends when the other statements of the packet are done; see
    /// [`execute_first`](Connection::execute_first).
    pub(super) rest: Option<oneshot::Receiver<()>>,
}

impl Response {
    /// A column of the first row of the first result set; `None` also for NULL.
    pub(super) fn first<T: FromValue>(&self, column: &str) -> Option<T> {
        let row = self.result_sets.first()?.first()?;
        row.get_opt::<Option<T>, _>(column)?.ok()?
    }

    /// The only row of the last result set.
    pub(super) fn last_row(&self) -> Option<&Row> {
        self.result_sets.last()?.first()
    }
}

#[derive(Debug)]
struct Job {
    sql: String,
    limit: Duration,
    kind: PacketKind,
    /// `None` if no caller waits for the response, or it was sent.
    reply: Option<Reply>,
}

type Reply = oneshot::Sender<Result<Response>>;

/// How a packet is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PacketKind {
    /// Executed twice, it has the same response: it may be repeated over a new connection.
    Repeatable,
    /// Its second response would differ.
    Once,
    /// Like `Once`. The first statement, a transaction of its own, is the response.
    FirstResponds,
}

/// How connections are opened.
#[derive(Clone)]
pub(super) struct ConnectOptions {
    pub(super) opts: Opts,
    /// User and password, if the caller's code gives them for each connection.
    pub(super) login: UserLogin,
    /// Whether the connection itself holds locks: then a proxy that shares connections is refused.
    pub(super) holds_locks: bool,
    /// The prefix of the ids of these connections.
    pub(super) id_prefix: &'static str,
    /// Counts how often a connection of this client found that its server refuses writes. The other
    /// connections to that server are then dropped as well, before they read outdated rows.
    pub(super) demotions: Arc<watch::Sender<u64>>,
}

impl Connection {
    /// A connection that is opened when it is first needed.
    pub(super) fn start(options: ConnectOptions, runtime: &tokio::runtime::Handle) -> Connection {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let (id_sender, current_id) = watch::channel(None);
        let demotions = options.demotions.subscribe();
        let task =
            ConnectionTask { options, conn: None, abandoned: Vec::new(), id_sender, demotions };
        runtime.spawn(task.run(inbox));
        Connection { jobs, current_id }
    }

    /// Executes a packet of statements that is idempotent: executed twice, it must have the same
    /// response. It is repeated when the server rolled it back because of other transactions, and
    /// once over a new connection when the old one turns out to be broken.
    pub(super) async fn execute(&self, sql: String, limit: Duration) -> Result<Response> {
        self.send(sql, limit, PacketKind::Repeatable).await
    }

    /// Executes a packet of statements whose second response would differ. If the connection
    /// breaks, the outcome is unknown, and the error says so.
    pub(super) async fn execute_once(&self, sql: String, limit: Duration) -> Result<Response> {
        self.send(sql, limit, PacketKind::Once).await
    }

    /// Like [`execute_once`](Connection::execute_once), and returns when the first statement is
    /// done. The others may fail; [`Response::rest`] tells when they are done. If this process ends
    /// before that, MySQL does not execute them.
    pub(super) async fn execute_first(&self, sql: String, limit: Duration) -> Result<Response> {
        self.send(sql, limit, PacketKind::FirstResponds).await
    }

    async fn send(&self, sql: String, limit: Duration, kind: PacketKind) -> Result<Response> {
        let (reply, response) = oneshot::channel();
        let job = Job { sql, limit, kind, reply: Some(reply) };
        self.jobs.send(job).map_err(|_| error::closed())?;
        response.await.map_err(|_| error::closed())?
    }

    /// Queues a statement and does not wait for its response.
    pub(super) fn execute_detached(&self, sql: String) {
        let job = Job { sql, limit: DETACHED_LIMIT, kind: PacketKind::Once, reply: None };
        // Fails only if the task has ended with its runtime: then the connection is closed too.
        drop(self.jobs.send(job));
    }

    /// The id of the open connection, if there is one.
    pub(super) fn current_id(&self) -> Option<ConnectionId> {
        self.current_id.borrow().clone()
    }

    /// Returns when the connection with this id is known to be lost.
    pub(super) async fn until_lost(&self, id: &ConnectionId) {
        let mut current = self.current_id.clone();
        // An error means that the task has ended, which is a loss as well.
        drop(current.wait_for(|current| current.as_ref() != Some(id)).await);
    }
}

/// The task that owns the connection.
struct ConnectionTask {
    options: ConnectOptions,
    conn: Option<OpenConn>,
    /// Connections with an unknown outcome, which have to be killed before the next request.
    abandoned: Vec<ConnectionId>,
    id_sender: watch::Sender<Option<ConnectionId>>,
    demotions: watch::Receiver<u64>,
}

impl ConnectionTask {
    async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Job>) {
        loop {
            let mut job = tokio::select! {
                biased;
                Ok(()) = self.demotions.changed() => {
                    self.drop_if_demoted();
                    continue;
                }
                job = inbox.recv() => match job {
                    Some(job) => job,
                    None => break,
                },
            };
            // The caller stopped waiting before the request was sent: it sends another one, or
            // releases.
            if job.reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
                continue;
            }
            let response = match tokio::time::timeout(job.limit, self.process(&mut job)).await {
                Ok(response) => response,
                Err(_elapsed) => {
                    self.abandon();
                    Err(Error::timed_out("mysql", job.limit))
                }
            };
            if let Some(reply) = job.reply {
                drop(reply.send(response));
            }
        }
        if let Some(open) = self.conn.take() {
            drop(tokio::time::timeout(DISCONNECT_LIMIT, open.conn.disconnect()).await);
        }
    }

    async fn process(&mut self, job: &mut Job) -> Result<Response> {
        let mut repeatable = job.kind == PacketKind::Repeatable;
        let fresh = if repeatable { FRESH } else { FRESH_ONCE };
        let started = Instant::now();
        for attempt in 1.. {
            self.connect(fresh).await?;
            let Some(open) = &mut self.conn else { break };
            let error = match open.execute(job).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            // A packet that failed in the middle leaves its transaction open.
            let usable =
                !error::breaks_connection(&error) && open.conn.query_drop("ROLLBACK").await.is_ok();
            if !usable {
                self.report_demotion(&error);
                self.abandon();
                if !std::mem::take(&mut repeatable) {
                    return Err(error::unknown_outcome(error));
                }
            } else if attempt >= MAX_ATTEMPTS
                || !error::is_conflict(&error)
                || (error::is_lock_wait(&error) && started.elapsed() + ROW_WAIT > job.limit)
            {
                // Waiting for the row once more would exceed the limit, and cost the connection.
                return Err(error::from_mysql(error));
            }
        }
        Err(Error::timed_out("mysql", job.limit))
    }

    /// Makes sure that a connection is open, and that no abandoned one can execute anything.
    async fn connect(&mut self, fresh: Duration) -> Result<()> {
        if let Some(open) = &mut self.conn {
            // A server closes connections that are idle for long. A ping finds that out while no
            // request is under way, so that no outcome is unknown.
            if open.last_used.elapsed() < fresh || open.conn.ping().await.is_ok() {
                return Ok(());
            }
            self.abandon();
        }
        let mut open = open(&self.options).await?;
        while let Some(id) = self.abandoned.first() {
            kill_lock_holder(&mut open.conn, &id.lock_name()).await?;
            self.abandoned.remove(0);
        }
        self.id_sender.send_replace(Some(open.id.clone()));
        self.conn = Some(open);
        Ok(())
    }

    /// Tells the client's other connections that the server refuses writes, unless one of them has
    /// already done so since this connection was opened.
    fn report_demotion(&self, error: &mysql_async::Error) {
        let opened_at = self.conn.as_ref().map(|open| open.demotions);
        if error::is_demotion(error) {
            self.options.demotions.send_if_modified(|demotions| {
                let first = opened_at == Some(*demotions);
                *demotions += u64::from(first);
                first
            });
        }
    }

    /// Drops a connection that was opened before another one found its server demoted.
    fn drop_if_demoted(&mut self) {
        let demotions = *self.demotions.borrow();
        if self.conn.as_ref().is_some_and(|open| open.demotions < demotions) {
            self.abandon();
        }
    }

    /// Drops the connection. The outcome of a request that it was executing is unknown.
    fn abandon(&mut self) {
        if let Some(open) = self.conn.take() {
            self.abandoned.push(open.id);
            self.id_sender.send_replace(None);
            let notice = if self.options.holds_locks { LOSS_NOTICE } else { Duration::ZERO };
            tokio::spawn(async move {
                tokio::time::sleep(notice).await;
                // Dropped without this, the client library would first read all that is left.
                drop(tokio::time::timeout(DISCONNECT_LIMIT, open.conn.disconnect()).await);
            });
        }
    }
}
