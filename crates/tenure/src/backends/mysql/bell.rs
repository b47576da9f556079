//! The bell: one connection that does nothing but wait, and that others can wake.
//!
//! MySQL cannot send messages, but it can interrupt a statement. The bell holds a named lock, so
//! that whoever hands a lock over finds its connection by that lock, and ends its statement with
//! `KILL QUERY`: that needs no privilege among connections of one user. The statement that it waits
//! in is `GET_LOCK` of the lock that the client's main connection holds: if that connection dies,
//! the bell gets the lock, and the client learns the loss at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::fault;
use super::link::{self, Link, Recipe};
use super::literals::hex;
use crate::error::Result;

/// The bell of a client, while it is up.
#[derive(Debug)]
pub(super) struct Bell {
    shared: Arc<Shared>,
    main: Link,
}

#[derive(Debug)]
struct Shared {
    /// The name of the bell, without its prefix.
    name: String,
    rung: Arc<Notify>,
    stopped: AtomicBool,
    /// Whether its connection is there.
    up: AtomicBool,
}

impl Bell {
    /// Puts the bell up. `rung` is told when somebody rings, and when the main link died.
    pub(super) fn start(
        name: &str,
        recipe: Recipe,
        main: Link,
        rung: Arc<Notify>,
        runtime: &tokio::runtime::Handle,
    ) -> Bell {
        let shared = Shared {
            name: lock_name(name),
            rung,
            stopped: AtomicBool::new(false),
            up: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        runtime.spawn(wait(shared.clone(), recipe, main.clone()));
        Bell { shared, main }
    }

    /// Whether others can ring it.
    pub(super) fn is_up(&self) -> bool {
        self.shared.up.load(Ordering::SeqCst)
    }
}

/// Rings ourselves, so that the connection is closed without waiting for the end of its statement.
impl Drop for Bell {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        if self.is_up() {
            self.main.post(wake_sql(&self.shared.name));
        }
    }
}

async fn wait(shared: Arc<Shared>, recipe: Recipe, main: Link) {
    let mut pause = FIRST_PAUSE;
    while !shared.stopped.load(Ordering::SeqCst) {
        let started = Instant::now();
        let served = serve(&shared, &recipe, &main).await;
        if started.elapsed() > MOST_PAUSE {
            pause = FIRST_PAUSE;
        }
        match served {
            Ok(()) => {}
            // Without a bell the waiters look from time to time.
            Err(_unavailable) => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MOST_PAUSE);
            }
        }
    }
}

/// One connection, from its beginning to its end.
async fn serve(shared: &Shared, recipe: &Recipe, main: &Link) -> Result<()> {
    let era = *recipe.era.borrow();
    let opening = tokio::time::timeout(OPENING, open(shared, recipe)).await;
    let mut conn = opening.map_err(|_| fault::silent())??;
    shared.up.store(true, Ordering::SeqCst);
    // Whoever rang before there was a connection was not heard.
    shared.rung.notify_one();
    let answer = loop {
        if shared.stopped.load(Ordering::SeqCst) || *recipe.era.borrow() != era {
            break Ok(());
        }
        let sql = match main.home().filter(|_| recipe.own) {
            Some(home) => format!("SELECT GET_LOCK('tenure:{home}',{WAIT})"),
            None => format!("SELECT SLEEP({WAIT})"),
        };
        match tokio::time::timeout(SILENCE, conn.query_first::<Option<i64>, _>(sql)).await {
            Ok(Ok(Some(Some(1)))) if recipe.own => {
                // The main connection is dead; the lock is of no use to anybody else.
                drop(conn.query_drop("DO RELEASE_ALL_LOCKS()").await);
                shared.rung.notify_one();
                break Ok(());
            }
            // A time-out of the statement is as good a reason to look as a ring.
            Ok(Ok(_)) => shared.rung.notify_one(),
            Ok(Err(error)) if fault::is_interrupted(&error) => shared.rung.notify_one(),
            // What fails otherwise may fail at once, again and again: after a pause, anew.
            Ok(Err(error)) => break Err(fault::from_mysql(error)),
            Err(_silence) => break Err(fault::silent()),
        }
    };
    shared.up.store(false, Ordering::SeqCst);
    drop(tokio::time::timeout(link::FAREWELL, conn.disconnect()).await);
    answer
}

async fn open(shared: &Shared, recipe: &Recipe) -> Result<mysql_async::Conn> {
    let name = &shared.name;
    let mut conn = link::open(recipe).await?.conn;
    // A bell of ours whose connection broke may still hang there.
    link::end(&mut conn, name).await?;
    conn.query_drop(format!("DO GET_LOCK('{name}',1)")).await.map_err(fault::from_mysql)?;
    Ok(conn)
}

/// The name of the lock that a bell holds.
pub(super) fn lock_name(bell: &str) -> String {
    format!("tenure:bell:{bell}")
}

/// Ends the statement of whatever connection holds this lock now. A number that was read before
/// could belong to another connection by now: a server that was restarted counts from the
/// beginning. Where nobody holds it, there is no connection 0 either. The name comes from a table,
/// so it is written in hexadecimal.
pub(super) fn wake_sql(lock: &str) -> String {
    format!("KILL QUERY IS_USED_LOCK(CONVERT({} USING utf8mb4))", hex(lock))
}

/// Seconds that a statement of the bell waits, and how long it takes at most to hear of its end.
const WAIT: u32 = 10;
const SILENCE: Duration = Duration::from_secs(14);
const OPENING: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(5);
