//! Opening a connection, ending an abandoned one, and executing one packet.

use std::time::Duration;

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, QueryResult, Row, TextProtocol};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::error;
use super::{ConnectOptions, ConnectionId, DISCONNECT_LIMIT, Job, PacketKind, Response};
use crate::error::Result;
use crate::support::backoff::Backoff;

/// The protocol needs the newest rows and no gap locks; a key must never be cut to fit; a statement
/// waits for a row for at most two seconds, which is far longer than any packet of tenure takes.
/// The limits that would end a connection which holds a lock, or a wake connection, have different
/// names on MySQL and MariaDB: each server reads only its own comment.
const SESSION_SETUP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;\
    SET SESSION sql_mode='STRICT_ALL_TABLES',innodb_lock_wait_timeout=2,autocommit=1,\
    time_zone='+00:00',wait_timeout=28800\
    /*M!100300 ,idle_transaction_timeout=0,idle_write_transaction_timeout=0,\
    idle_readonly_transaction_timeout=0,max_statement_time=0 */\
    /*!50708 ,max_execution_time=0 */";

/// A connection that is set up.
pub(in super::super) struct OpenConn {
    pub(in super::super) conn: Conn,
    pub(super) id: ConnectionId,
    pub(super) last_used: Instant,
    /// The client's count of demotions when this connection began to be opened.
    pub(super) demotions: u64,
}

/// Connects, sets the session up, and acquires the named lock of the connection.
pub(in super::super) async fn open(options: &ConnectOptions) -> Result<OpenConn> {
    let demotions = *options.demotions.borrow();
    let connected = Conn::new(with_login(options).await?).await;
    let mut conn = connected.map_err(|error| error::from_connect(&options.opts, error))?;
    let id = ConnectionId::random(options.id_prefix);
    let name = id.lock_name();
    let setup = format!(
        "{SESSION_SETUP};SET @tenure_home='{id}';\
         SELECT GET_LOCK('{name}',0),CONNECTION_ID() AS connection_number,\
         CONCAT(@@global.read_only) AS server_read_only,\
         CONCAT(@@global.innodb_read_only) AS engine_read_only"
    );
    let response = execute(&mut conn, &setup).await.map_err(error::from_mysql)?;
    if ["server_read_only", "engine_read_only"].iter().any(|switch| is_on(response.first(switch))) {
        drop(tokio::time::timeout(DISCONNECT_LIMIT, conn.disconnect()).await);
        return Err(error::read_only());
    }
    if options.holds_locks {
        // Behind a proxy that shares connections, the second statement may reach another one.
        let check = format!("SELECT IS_USED_LOCK('{name}'),CONNECTION_ID()");
        let checked: Option<(Option<u64>, u64)> =
            conn.query_first(check).await.map_err(error::from_mysql)?;
        let number: Option<u64> = response.first("connection_number");
        if checked.map(|(holder, now)| (holder, Some(now))) != Some((number, number)) {
            return Err(error::shared_by_proxy());
        }
    }
    Ok(OpenConn { conn, id, last_used: Instant::now(), demotions })
}

/// The options of the next connection.
async fn with_login(options: &ConnectOptions) -> Result<Opts> {
    let opts = options.opts.clone();
    if options.login.source.is_none() {
        return Ok(opts);
    }
    let login = options.login.current().await?;
    // Servers of cloud providers want a token as it is; never over a connection without encryption.
    let sends_token = opts.ssl_opts().is_some();
    let opts = OptsBuilder::from_opts(opts).user(login.user).pass(login.password);
    Ok(opts.enable_cleartext_plugin(sends_token).into())
}

/// Kills the connection that holds a named lock of tenure; returns when the lock is free.
pub(in super::super) async fn kill_lock_holder(conn: &mut Conn, name: &str) -> Result<()> {
    let find = format!("SELECT IS_USED_LOCK('{name}')");
    // A connection that waits for the disk does not end at once.
    let mut backoff = Backoff::new(Duration::from_millis(1), Duration::from_millis(100));
    loop {
        let found: Option<Option<u64>> =
            conn.query_first(&*find).await.map_err(error::from_mysql)?;
        let Some(number) = found.flatten() else { return Ok(()) };
        match conn.query_drop(format!("KILL {number}")).await {
            Err(error) if error::breaks_connection(&error) => {
                return Err(error::from_mysql(error));
            }
            // Other errors: it may have ended in between.
            Ok(()) | Err(_) => tokio::time::sleep(backoff.next()).await,
        }
    }
}

impl OpenConn {
    /// Executes a request, and responds to its caller if the first statement is the response.
    pub(super) async fn execute(&mut self, job: &mut Job) -> mysql_async::Result<Response> {
        let (result, mut response) = begin(&mut self.conn, &job.sql).await?;
        response.connection_id = self.id.clone();
        let mut rest_is_done = None;
        if let Some(reply) = job.reply.take_if(|_| job.kind == PacketKind::FirstResponds) {
            let (done, rest) = oneshot::channel();
            rest_is_done = Some(done);
            response.rest = Some(rest);
            drop(reply.send(Ok(std::mem::take(&mut response))));
        }
        match read_result_sets(result, &mut response).await {
            // A wake-up is the last statement of its packet: the others are done.
            Err(error) if error::is_failed_wake(&error) => {}
            Err(error) if rest_is_done.is_some() && !error::breaks_connection(&error) => {}
            read => read?,
        }
        self.last_used = Instant::now();
        Ok(response)
    }
}

/// Executes one packet of statements.
async fn execute(conn: &mut Conn, sql: &str) -> mysql_async::Result<Response> {
    let (result, mut response) = begin(conn, sql).await?;
    read_result_sets(result, &mut response).await?;
    Ok(response)
}

/// Sends a packet, and waits for the first statement.
async fn begin<'a>(
    conn: &'a mut Conn,
    sql: &'a str,
) -> mysql_async::Result<(QueryResult<'a, 'static, TextProtocol>, Response)> {
    let result = conn.query_iter(sql).await?;
    let response = Response {
        affected_rows: result.affected_rows(),
        last_insert_id: result.last_insert_id(),
        ..Response::default()
    };
    Ok((result, response))
}

async fn read_result_sets(
    mut result: QueryResult<'_, '_, TextProtocol>,
    response: &mut Response,
) -> mysql_async::Result<()> {
    loop {
        let returns_rows = !result.columns_ref().is_empty();
        let rows: Vec<Row> = result.collect().await?;
        if returns_rows {
            response.result_sets.push(rows);
        }
        if result.is_empty() {
            // The library reports the error of a later statement only here.
            return result.drop_result().await;
        }
    }
}

/// Whether a variable of the server, a number or a word, is on.
fn is_on(value: Option<String>) -> bool {
    value.is_some_and(|value| value != "0" && !value.eq_ignore_ascii_case("off"))
}
