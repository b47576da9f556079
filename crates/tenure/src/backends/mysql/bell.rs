//! The bell: one connection that does nothing but wait, and that others can wake.
//!
//! MySQL cannot send messages, but it can interrupt a statement. The bell holds a named lock, so
//! that whoever hands a lock over finds the number of its connection, and ends its statement with
//! `KILL QUERY`: that needs no privilege among connections of one user. The statement that it waits
//! in is `GET_LOCK` of the lock that the client's main connection holds: if that connection dies,
//! the bell gets the lock, and the client learns the loss at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mysql_async::prelude::Queryable;
use tokio::sync::Notify;

use super::fault;
use super::link::{self, Link, Recipe};
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
    /// The number of its connection; 0 while there is none.
    connection: AtomicU64,
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
            name: format!("tenure:bell:{name}"),
            rung,
            stopped: AtomicBool::new(false),
            connection: AtomicU64::new(0),
        };
        let shared = Arc::new(shared);
        runtime.spawn(wait(shared.clone(), recipe, main.clone()));
        Bell { shared, main }
    }

    /// Whether others can ring it.
    pub(super) fn is_up(&self) -> bool {
        self.shared.connection.load(Ordering::SeqCst) != 0
    }
}

/// Rings ourselves, so that the connection is closed without waiting for the end of its statement.
impl Drop for Bell {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        match self.shared.connection.load(Ordering::SeqCst) {
            0 => {}
            connection => self.main.post(format!("KILL QUERY {connection}")),
        }
    }
}

async fn wait(shared: Arc<Shared>, recipe: Recipe, main: Link) {
    let mut pause = FIRST_PAUSE;
    while !shared.stopped.load(Ordering::SeqCst) {
        match serve(&shared, &recipe, &main).await {
            Ok(()) => pause = FIRST_PAUSE,
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
    let opening = tokio::time::timeout(OPENING, open(shared, recipe)).await;
    let mut conn = opening.map_err(|_| fault::silent())??;
    shared.connection.store(u64::from(conn.id()), Ordering::SeqCst);
    // Whoever rang before there was a connection was not heard.
    shared.rung.notify_one();
    let answer = loop {
        if shared.stopped.load(Ordering::SeqCst) {
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
            Ok(Err(error)) if !fault::is_fatal(&error) => shared.rung.notify_one(),
            Ok(Err(error)) => break Err(fault::from_mysql(error)),
            Err(_silence) => break Err(fault::silent()),
        }
    };
    shared.connection.store(0, Ordering::SeqCst);
    if answer.is_ok() {
        drop(tokio::time::timeout(OPENING, conn.disconnect()).await);
    }
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

/// Seconds that a statement of the bell waits, and how long it takes at most to hear of its end.
const WAIT: u32 = 10;
const SILENCE: Duration = Duration::from_secs(14);
const OPENING: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MOST_PAUSE: Duration = Duration::from_secs(5);
