//! The wake connection: a connection that only waits in a statement, which other clients interrupt
//! to wake this client.
//!
//! MySQL cannot push messages, but `KILL QUERY` ends a statement of another connection, and needs
//! no privilege among connections of one user. A client with waiters keeps one wake connection. It
//! holds the named lock `tenure:bell:<wake id>`; the wake id stands in the column `bell` of the
//! client's queue entries and records, so that any client can find the connection by that lock. The
//! lock is looked up in the same statement that kills ([`wake_sql`]): a number that was read before
//! could belong to a foreign connection by now.
//!
//! The statement that it waits in is `SLEEP`, or in `mode=session` and `mode=row` `GET_LOCK` of the
//! named lock of the client's main connection: if that connection ends, the wake connection gets
//! the lock, and the client learns of the loss at once.
//!
//! A wake-up between two statements is lost. The poll task (`wait`) makes up for it: it polls
//! 20 ms after a waiter was added, and then less and less often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::Conn;
use mysql_async::prelude::Queryable;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::connection::{self, ConnectOptions, Connection};
use super::error;
use super::layout::literals::{WAKE_LOCK_PREFIX, hex};
use super::layout::outcome::WokenClient;
use super::layout::rows::KeyState;
use super::lease::LockTables;
use crate::error::{Error, Result};
use crate::support::backoff::Backoff;

/// Seconds that a statement waits, and how long the response to it may take.
const WAIT_SECONDS: u32 = 10;
const RESPONSE_LIMIT: Duration = Duration::from_secs(14);
/// How long opening the connection may take.
const OPEN_LIMIT: Duration = Duration::from_secs(5);
/// The first and the longest pause before a connection that failed is opened again.
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// For how long a request waits until it has woken another client, at most.
const MAX_WAKE_WAIT: Duration = Duration::from_millis(250);

/// For how long a request with this ttl waits until it has woken another client. It does wait,
/// because this process may end right after; but a request that has succeeded must not fail because
/// of a wake-up, and on a server without CPU time to spare a `KILL QUERY` takes long.
pub(super) fn wake_limit(ttl: Duration) -> Duration {
    (ttl / 16).min(MAX_WAKE_WAIT)
}

/// Which client has to be woken, because a request made one of its claims a holder, or evicted one.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WakeTarget {
    ThisClient,
    /// The client whose wake connection has this id.
    Client {
        wake_id: String,
    },
}

impl WakeTarget {
    /// The client of the new owner, if the request handed the lock off and that client can be
    /// woken.
    pub(super) fn after_handoff(state: &KeyState, own_wake_id: &str) -> Option<WakeTarget> {
        let target = || WakeTarget::of(&state.wake_id, state.wake_connection, own_wake_id);
        if state.handed_off { target() } else { None }
    }

    /// A client that was granted the key by a packet of other modes, if it can be woken.
    pub(super) fn granted(woken: &WokenClient, own_wake_id: &str) -> Option<WakeTarget> {
        WakeTarget::of(&woken.wake_id, woken.wake_connection, own_wake_id)
    }

    fn of(wake_id: &str, connection: Option<u64>, own_wake_id: &str) -> Option<WakeTarget> {
        if wake_id == own_wake_id {
            return Some(WakeTarget::ThisClient);
        }
        connection.map(|_number| WakeTarget::Client { wake_id: wake_id.to_owned() })
    }
}

/// The wake connection of a client. Dropping it closes the connection.
pub(super) struct WakeConnection {
    state: Arc<WakeState>,
    main: Connection,
}

struct WakeState {
    wake_id: String,
    /// Notified at each wake-up, and when the main connection is lost.
    woken: Arc<Notify>,
    is_stopped: AtomicBool,
    is_open: AtomicBool,
}

impl WakeConnection {
    pub(super) fn start(
        tables: &LockTables,
        options: ConnectOptions,
        woken: Arc<Notify>,
        runtime: &tokio::runtime::Handle,
    ) -> WakeConnection {
        let state = Arc::new(WakeState {
            wake_id: tables.wake_id().to_owned(),
            woken,
            is_stopped: AtomicBool::new(false),
            is_open: AtomicBool::new(false),
        });
        let main = tables.main().clone();
        runtime.spawn(keep_open(state.clone(), options, main.clone()));
        WakeConnection { state, main }
    }

    /// Whether other clients can wake this one.
    pub(super) fn is_open(&self) -> bool {
        self.state.is_open.load(Ordering::SeqCst)
    }
}

/// Wakes the connection itself, so that it closes before the end of its statement.
impl Drop for WakeConnection {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
        if self.is_open() {
            self.main.execute_detached(wake_sql(&self.state.wake_id));
        }
    }
}

/// The task: opens the connection, and opens it again when it fails.
async fn keep_open(state: Arc<WakeState>, options: ConnectOptions, main: Connection) {
    let mut backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
    while !state.is_stopped.load(Ordering::SeqCst) {
        let started = Instant::now();
        let result = wait_for_wakeups(&state, &options, &main).await;
        if started.elapsed() > MAX_RETRY {
            backoff.reset();
        }
        // Without a wake connection the waiters poll.
        if result.is_err() {
            tokio::time::sleep(backoff.next()).await;
        }
    }
}

/// Opens one connection and waits in statements on it, until it fails or is of no use any more.
async fn wait_for_wakeups(
    state: &WakeState,
    options: &ConnectOptions,
    main: &Connection,
) -> Result<()> {
    let demotions = *options.demotions.borrow();
    let opening = tokio::time::timeout(OPEN_LIMIT, open(state, options)).await;
    let mut conn = opening.map_err(|_| Error::timed_out("mysql", OPEN_LIMIT))??;
    state.is_open.store(true, Ordering::SeqCst);
    // Wake-ups that were sent before the connection was open are lost.
    state.woken.notify_one();
    let result = loop {
        let is_demoted = *options.demotions.borrow() != demotions;
        if state.is_stopped.load(Ordering::SeqCst) || is_demoted {
            break Ok(());
        }
        let main_id = main.current_id().filter(|_| options.holds_locks);
        let sql = match main_id {
            Some(id) => format!("SELECT GET_LOCK('{}',{WAIT_SECONDS})", id.lock_name()),
            None => format!("SELECT SLEEP({WAIT_SECONDS})"),
        };
        let query = conn.query_first::<Option<i64>, _>(sql);
        match tokio::time::timeout(RESPONSE_LIMIT, query).await {
            Ok(Ok(Some(Some(1)))) if options.holds_locks => {
                // The main connection has ended. No other client needs its lock.
                drop(conn.query_drop("DO RELEASE_ALL_LOCKS()").await);
                state.woken.notify_one();
                break Ok(());
            }
            // Interrupted (MySQL ends SLEEP without an error), or timed out: poll in both cases.
            Ok(Ok(_)) => state.woken.notify_one(),
            Ok(Err(error)) if error::is_interrupted(&error) => state.woken.notify_one(),
            // Other errors may repeat at once, again and again: open it again after a pause.
            Ok(Err(error)) => break Err(error::from_mysql(error)),
            Err(_elapsed) => break Err(Error::timed_out("mysql", RESPONSE_LIMIT)),
        }
    };
    state.is_open.store(false, Ordering::SeqCst);
    drop(tokio::time::timeout(connection::DISCONNECT_LIMIT, conn.disconnect()).await);
    result
}

async fn open(state: &WakeState, options: &ConnectOptions) -> Result<Conn> {
    let name = lock_name(&state.wake_id);
    let mut conn = connection::open(options).await?.conn;
    // An earlier wake connection of this client may have broken, and still exist at the server.
    connection::kill_lock_holder(&mut conn, &name).await?;
    conn.query_drop(format!("DO GET_LOCK('{name}',1)")).await.map_err(error::from_mysql)?;
    Ok(conn)
}

/// The name of the lock that the wake connection with this id holds.
fn lock_name(wake_id: &str) -> String {
    format!("{WAKE_LOCK_PREFIX}{wake_id}")
}

/// Ends the statement of the connection that holds the lock of this wake id now. The connection is
/// looked up in the same statement, because a restarted server counts its connections from the
/// beginning. If no connection holds the lock, the statement fails and ends nothing. The id comes
/// from a table, so it is written in hexadecimal.
pub(super) fn wake_sql(wake_id: &str) -> String {
    format!("KILL QUERY IS_USED_LOCK(CONVERT({} USING utf8mb4))", hex(lock_name(wake_id)))
}
