//! One connection, kept by one task: requests run in the order in which they were sent, also when
//! nobody waits for their answers any more, so that a release never overtakes the take it undoes.
//!
//! Every connection holds a named lock of its own, `tenure:<id>`. Whoever sees that lock knows that
//! the connection lives, and by which number the server calls it. When a connection is given up in
//! doubt, the next one ends it by that number before it carries out anything else: what was on its
//! way can then no longer take effect.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::prelude::{FromValue, Queryable};
use mysql_async::{Conn, Opts, Row};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::fault;
use crate::error::{Error, ErrorKind, Result};

/// A handle to the connection. When the last is dropped, the connection is closed.
#[derive(Clone, Debug)]
pub(super) struct Link {
    jobs: mpsc::UnboundedSender<Job>,
    /// The id of the connection; none while there is none.
    home: watch::Receiver<Option<Arc<str>>>,
}

/// What the server answered to one packet of statements.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// The id of the connection that carried it out.
    pub(super) home: Arc<str>,
    /// How many rows the first statement changed.
    pub(super) affected: u64,
    /// The `LAST_INSERT_ID()` that the first statement set.
    pub(super) last_id: Option<u64>,
    /// The rows of each statement that gives rows.
    pub(super) sets: Vec<Vec<Row>>,
}

impl Answer {
    /// The first row of the first set, by column; `None` for NULL as well.
    pub(super) fn first<T: FromValue>(&self, column: usize) -> Option<T> {
        let row = self.sets.first()?.first()?;
        row.get_opt::<Option<T>, _>(column)?.ok()?
    }

    /// The only row of the last set.
    pub(super) fn last(&self) -> Option<&Row> {
        self.sets.last()?.first()
    }
}

#[derive(Debug)]
struct Job {
    sql: String,
    limit: Duration,
    /// Whether to repeat it over a new connection if this one is broken.
    again: bool,
    reply: Option<oneshot::Sender<Result<Answer>>>,
}

/// How connections of a link are made.
#[derive(Clone)]
pub(super) struct Recipe {
    pub(super) opts: Opts,
    /// Whether locks hang on the connection itself: then a pooler in between is refused.
    pub(super) own: bool,
    /// How the ids of its connections begin.
    pub(super) home: &'static str,
    /// Counts how often one of the client's connections found out that its server takes no writes.
    /// The others to that server are given up as well, before they show what is past.
    pub(super) era: Arc<watch::Sender<u64>>,
}

impl Link {
    /// A link whose connection is made when it is first needed.
    pub(super) fn start(recipe: Recipe, runtime: &tokio::runtime::Handle) -> Link {
        let (jobs, inbox) = mpsc::unbounded_channel();
        let (tell, home) = watch::channel(None);
        let era = recipe.era.subscribe();
        let keeper = Keeper { recipe, conn: None, graves: Vec::new(), tell, era };
        runtime.spawn(keeper.work(inbox));
        Link { jobs, home }
    }

    /// Sends a packet of statements and awaits the answer. Carried out twice, it must answer the
    /// same: it is repeated when the server rolled it back because of others, and once over a new
    /// connection when the old one turns out to be broken.
    pub(super) async fn ask(&self, sql: String, limit: Duration) -> Result<Answer> {
        self.send(sql, limit, true).await
    }

    /// The same for a packet that would answer something else the second time: a broken connection
    /// is an error then.
    pub(super) async fn ask_once(&self, sql: String, limit: Duration) -> Result<Answer> {
        self.send(sql, limit, false).await
    }

    async fn send(&self, sql: String, limit: Duration, again: bool) -> Result<Answer> {
        let (reply, answer) = oneshot::channel();
        let job = Job { sql, limit, again, reply: Some(reply) };
        self.jobs.send(job).map_err(|_| fault::ended())?;
        answer.await.map_err(|_| fault::ended())?
    }

    /// Sends a statement whose answer nobody needs.
    pub(super) fn post(&self, sql: String) {
        let limit = Duration::from_secs(2);
        // A link that has ended needs no messages.
        drop(self.jobs.send(Job { sql, limit, again: false, reply: None }));
    }

    /// The id of the connection, if there is one.
    pub(super) fn home(&self) -> Option<Arc<str>> {
        self.home.borrow().clone()
    }

    /// Returns when this connection is known to be lost.
    pub(super) async fn until_lost(&self, home: &str) {
        let mut current = self.home.clone();
        // An error means that the link has ended, which is a loss as well.
        drop(current.wait_for(|current| current.as_deref() != Some(home)).await);
    }
}

/// The task's side.
struct Keeper {
    recipe: Recipe,
    conn: Option<Open>,
    /// Connections that were given up, by id: what they may still carry out has to be ended first.
    graves: Vec<Arc<str>>,
    tell: watch::Sender<Option<Arc<str>>>,
    era: watch::Receiver<u64>,
}

pub(super) struct Open {
    pub(super) conn: Conn,
    home: Arc<str>,
    used: Instant,
    /// The era in which it was begun to be made.
    era: u64,
}

impl Keeper {
    async fn work(mut self, mut inbox: mpsc::UnboundedReceiver<Job>) {
        loop {
            let job = tokio::select! {
                biased;
                Ok(()) = self.era.changed() => {
                    self.leave_old_server();
                    continue;
                }
                job = inbox.recv() => match job {
                    Some(job) => job,
                    None => break,
                },
            };
            // Whoever asked gave up before it began: it asks again, or withdraws.
            if job.reply.as_ref().is_some_and(oneshot::Sender::is_closed) {
                continue;
            }
            let answer = match tokio::time::timeout(job.limit, self.serve(&job)).await {
                Ok(answer) => answer,
                Err(_elapsed) => {
                    self.give_up();
                    Err(fault::silent())
                }
            };
            if let Some(reply) = job.reply {
                drop(reply.send(answer));
            }
        }
        if let Some(open) = self.conn.take() {
            drop(tokio::time::timeout(FAREWELL, open.conn.disconnect()).await);
        }
    }

    async fn serve(&mut self, job: &Job) -> Result<Answer> {
        let (mut again, started) = (job.again, Instant::now());
        for attempt in 1.. {
            self.connect(if job.again { FRESH } else { FRESH_ONCE }).await?;
            let Some(open) = &mut self.conn else { break };
            let error = match run(&mut open.conn, &job.sql).await {
                Ok(mut answer) => {
                    answer.home = open.home.clone();
                    open.used = Instant::now();
                    return Ok(answer);
                }
                Err(error) => error,
            };
            // A packet that failed in the middle leaves its transaction open.
            let clear = !fault::is_fatal(&error) && open.conn.query_drop("ROLLBACK").await.is_ok();
            if !clear {
                self.tell_demotion(&error);
                self.give_up();
                if !std::mem::take(&mut again) {
                    return Err(doubt(error));
                }
            } else if attempt >= ATTEMPTS
                || !fault::is_clash(&error)
                || (fault::is_lock_wait(&error) && started.elapsed() + ROW_WAIT > job.limit)
            {
                // Waiting for a row once more would end as silence, and cost the connection.
                return Err(fault::from_mysql(error));
            }
        }
        Err(fault::silent())
    }

    /// Makes sure that there is a connection that lives, and that no old one can act any more.
    async fn connect(&mut self, fresh: Duration) -> Result<()> {
        if let Some(open) = &mut self.conn {
            // A server closes what is idle for long: nothing is in doubt if we notice that first.
            if open.used.elapsed() < fresh || open.conn.ping().await.is_ok() {
                return Ok(());
            }
            self.give_up();
        }
        let mut open = open(&self.recipe).await?;
        while let Some(grave) = self.graves.first() {
            end(&mut open.conn, &lock_name(grave)).await?;
            self.graves.remove(0);
        }
        self.tell.send_replace(Some(open.home.clone()));
        self.conn = Some(open);
        Ok(())
    }

    /// Tells the client's other connections that the server takes no writes, unless one of them did
    /// so after this one was made.
    fn tell_demotion(&self, error: &mysql_async::Error) {
        let made = self.conn.as_ref().map(|open| open.era);
        if fault::is_demotion(error) {
            self.recipe.era.send_if_modified(|era| {
                let first = made == Some(*era);
                *era += u64::from(first);
                first
            });
        }
    }

    /// Drops a connection that was made before another one found its server demoted.
    fn leave_old_server(&mut self) {
        let now = *self.era.borrow();
        if self.conn.as_ref().is_some_and(|open| open.era < now) {
            self.give_up();
        }
    }

    /// Drops the connection: whatever it was carrying out is in doubt.
    fn give_up(&mut self) {
        if let Some(open) = self.conn.take() {
            self.graves.push(open.home);
            self.tell.send_replace(None);
            // Dropped as it is, the library would first read what is still to come.
            tokio::spawn(tokio::time::timeout(FAREWELL, open.conn.disconnect()));
        }
    }
}

/// Connects, sets the session up, and takes the connection's own named lock.
pub(super) async fn open(recipe: &Recipe) -> Result<Open> {
    let era = *recipe.era.borrow();
    let mut conn =
        Conn::new(recipe.opts.clone()).await.map_err(|error| fault::at(&recipe.opts, error))?;
    let home = Uuid::new_v4().simple().to_string();
    let home: Arc<str> = format!("{}{}", recipe.home, &home[recipe.home.len()..]).into();
    let name = lock_name(&home);
    let take = format!(
        "SET @tenure_home='{home}';SELECT GET_LOCK('{name}',0),CONNECTION_ID(),\
         CONCAT(@@global.read_only),CONCAT(@@global.innodb_read_only)"
    );
    let setup = format!("{SETUP};{take}");
    let took = run(&mut conn, &setup).await.map_err(fault::from_mysql)?;
    if [2, 3].iter().any(|column| is_on(took.first(*column))) {
        drop(tokio::time::timeout(FAREWELL, conn.disconnect()).await);
        return Err(fault::read_only());
    }
    if recipe.own {
        let look = format!("SELECT IS_USED_LOCK('{name}'), CONNECTION_ID()");
        let seen: Option<(Option<u64>, u64)> =
            conn.query_first(look).await.map_err(fault::from_mysql)?;
        let id: Option<u64> = took.first(1);
        if seen.map(|(holder, now)| (holder, Some(now))) != Some((id, id)) {
            return Err(pooled());
        }
    }
    Ok(Open { conn, home, used: Instant::now(), era })
}

/// Ends the connection that holds a named lock of ours; returns when the server has forgotten it.
pub(super) async fn end(conn: &mut Conn, name: &str) -> Result<()> {
    let look = format!("SELECT IS_USED_LOCK('{name}')");
    let mut pause = Duration::from_millis(1);
    loop {
        let id: Option<Option<u64>> = conn.query_first(&*look).await.map_err(fault::from_mysql)?;
        let Some(id) = id.flatten() else { return Ok(()) };
        match conn.query_drop(format!("KILL {id}")).await {
            Err(error) if fault::is_fatal(&error) => return Err(fault::from_mysql(error)),
            // It may have ended in between.
            Ok(()) | Err(_) => tokio::time::sleep(pause).await,
        }
        // One that waits for the disk takes its time.
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

async fn run(conn: &mut Conn, sql: &str) -> mysql_async::Result<Answer> {
    let mut result = conn.query_iter(sql).await?;
    let mut answer = Answer {
        affected: result.affected_rows(),
        last_id: result.last_insert_id(),
        ..Answer::default()
    };
    loop {
        let gives_rows = !result.columns_ref().is_empty();
        let rows: Vec<Row> = result.collect().await?;
        if gives_rows {
            answer.sets.push(rows);
        }
        if result.is_empty() {
            // If a statement has failed, that is kept for whoever asks next.
            result.drop_result().await?;
            return Ok(answer);
        }
    }
}

/// A switch of the server, which is a number or a word.
fn is_on(value: Option<String>) -> bool {
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("off"))
}

/// The name of the lock that a connection holds as long as it lives.
pub(super) fn lock_name(home: &str) -> String {
    format!("tenure:{home}")
}

/// A connection that broke while it carried something out: whatever the reason, it is doubt.
fn doubt(error: mysql_async::Error) -> Error {
    let error = fault::from_mysql(error);
    match error.kind() {
        ErrorKind::Unavailable => error,
        _ => Error::new(ErrorKind::Unavailable, error.to_string()).with_source(error),
    }
}

fn pooled() -> Error {
    let message = "a proxy between us and mysql shares connections among its clients, so that \
                   locks of a connection are not ours; use `?mode=lease`, or connect directly";
    Error::new(ErrorKind::Unsupported, message)
}

/// The protocol needs the newest rows and no gap locks; a key must never be cut to fit; a statement
/// waits for a row for at most two seconds, which is far longer than any packet of ours. The limits
/// that would end a connection which holds a lock, or a bell that waits, have different names on
/// the two servers: each reads only its own comment.
const SETUP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
    SET SESSION sql_mode='STRICT_ALL_TABLES',innodb_lock_wait_timeout=2,autocommit=1,\
    time_zone='+00:00',wait_timeout=28800\
    /*M!100300 ,idle_transaction_timeout=0,idle_write_transaction_timeout=0,\
    idle_readonly_transaction_timeout=0,max_statement_time=0 */\
    /*!50708 ,max_execution_time=0 */";

/// How long a statement waits for a row, with a little for the way; see [`SETUP`].
const ROW_WAIT: Duration = Duration::from_millis(2300);
/// How often a packet is repeated that was rolled back because of others.
const ATTEMPTS: u32 = 8;
/// A connection that was used so recently need not be looked at before it is used again: for what
/// can be repeated, and for what cannot.
const FRESH: Duration = Duration::from_secs(20);
const FRESH_ONCE: Duration = Duration::from_secs(1);
/// How long saying goodbye may take.
pub(super) const FAREWELL: Duration = Duration::from_secs(1);
