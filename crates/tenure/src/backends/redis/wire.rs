//! One connection, and the link that replaces it when it is broken or silent.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::dial::Dialer;
use super::names;
use super::post::Post;
use crate::error::{Error, ErrorKind, Result};

/// One server, reached by one connection at a time.
pub(super) struct Link {
    dialer: Dialer,
    post: Arc<Post>,
    current: Mutex<Option<Arc<Wire>>>,
    /// Held while dialing; what the last failure was, and when.
    dialing: tokio::sync::Mutex<Option<(Instant, Error)>>,
}

impl Link {
    pub(super) fn new(dialer: Dialer, post: Arc<Post>) -> Arc<Link> {
        let (current, dialing) = (Mutex::default(), tokio::sync::Mutex::default());
        Arc::new(Link { dialer, post, current, dialing })
    }

    /// The connection, dialed anew if there is none that works.
    pub(super) async fn wire(self: &Arc<Self>) -> Result<Arc<Wire>> {
        if let Some(wire) = self.sound() {
            return Ok(wire);
        }
        let (link, asked) = (self.clone(), Instant::now());
        // In a task of its own: a caller with little time must not break off every attempt.
        let dialed = tokio::spawn(async move { link.dial(asked).await }).await;
        dialed.unwrap_or_else(|_| Err(Error::new(ErrorKind::Closed, "the runtime has ended")))
    }

    async fn dial(&self, asked: Instant) -> Result<Arc<Wire>> {
        let mut failure = self.dialing.lock().await;
        if let Some(wire) = self.sound() {
            return Ok(wire);
        }
        if let Some((at, error)) = &*failure {
            // Many may ask at once; one failure answers them all.
            if *at >= asked {
                return Err(error.clone());
            }
            // And many ask again and again, each at its own time: a server that refuses at once is
            // not dialed for each of them.
            tokio::time::sleep_until(*at + DIAL_AGAIN).await;
        }
        match self.dialer.dial(&self.post).await {
            Ok(wire) => {
                *failure = None;
                let wire = Arc::new(wire);
                let old = self.current().replace(wire.clone());
                if let Some(old) = old {
                    old.tap.close();
                    self.post.ring_all();
                }
                Ok(wire)
            }
            Err(error) => {
                *failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    fn sound(&self) -> Option<Arc<Wire>> {
        self.current().as_ref().filter(|wire| wire.is_sound()).cloned()
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Wire>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?})", self.dialer)
    }
}

/// One connection.
pub(super) struct Wire {
    connection: MultiplexedConnection,
    driver: AbortHandle,
    response: Duration,
    pub(super) tap: Arc<Tap>,
    /// Renewals take turns: those of very many locks at once would only queue at the server, and
    /// the last ones would look like silence.
    pub(super) renewing: Semaphore,
    /// Those who have a place already take turns to refresh it, since they all do when a connection
    /// was replaced.
    pub(super) refreshing: Semaphore,
    subscribing: [tokio::sync::Mutex<()>; SUBSCRIBING],
    /// What the server said about itself when the connection was made, if it was asked.
    pub(super) uptime: Option<Uptime>,
}

/// How long a server had run at a moment of ours.
#[derive(Clone, Copy, Debug)]
pub(super) struct Uptime {
    pub(super) was: Duration,
    pub(super) at: Instant,
}

/// What a connection and its receiving end both know.
#[derive(Debug, Default)]
pub(super) struct Tap {
    /// Whether the server can push to it.
    pub(super) pushes: bool,
    closed: AtomicBool,
    /// Questions in a row that were not answered.
    silent: AtomicU32,
    /// The channels heard here, and by how many.
    channels: Mutex<HashMap<String, u32>>,
}

impl Tap {
    pub(super) fn new(pushes: bool) -> Tap {
        Tap { pushes, ..Tap::default() }
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// The server ended a subscription: `true` if we had not.
    pub(super) fn lost(&self, channel: &str) -> bool {
        self.channels().remove(channel).is_some()
    }

    fn channels(&self) -> MutexGuard<'_, HashMap<String, u32>> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire {
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: AbortHandle,
        tap: Arc<Tap>,
        response: Duration,
    ) -> Wire {
        let renewing = Semaphore::new(RENEWING_MAX);
        let refreshing = Semaphore::new(REFRESHING_MAX);
        let subscribing = Default::default();
        Wire { connection, driver, response, tap, renewing, refreshing, subscribing, uptime: None }
    }

    /// Sends a command and awaits its answer, for at most the response limit.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut asked = Asked { tap: &self.tap, answered: false };
        let mut connection = self.connection.clone();
        let answer = command.query_async::<Value>(&mut connection);
        let answer = match tokio::time::timeout(self.response, answer).await {
            Ok(answer) => answer,
            Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        };
        asked.answered = true;
        if answer.as_ref().is_err_and(|error| error.is_unrecoverable_error() || demoted(error)) {
            self.tap.close();
        }
        answer
    }

    /// Sends commands in one go and awaits all answers; a server's error is a value among them.
    pub(super) async fn ask_all(
        &self,
        pipeline: &redis::Pipeline,
    ) -> Result<Vec<Value>, RedisError> {
        let mut asked = Asked { tap: &self.tap, answered: false };
        let mut connection = self.connection.clone();
        let answers = connection.send_packed_commands(pipeline, 0, pipeline.len());
        let answers = match tokio::time::timeout(self.response, answers).await {
            Ok(answers) => answers,
            Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        };
        asked.answered = true;
        if answers.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            self.tap.close();
        }
        answers
    }

    /// Whether messages on this channel come here.
    pub(super) fn hears(&self, channel: &str) -> bool {
        self.is_sound() && self.tap.channels().contains_key(channel)
    }

    /// Makes messages on this channel come here, for as long as the answer lives.
    pub(super) async fn subscribe(
        self: &Arc<Self>,
        channel: &str,
        sharded: bool,
    ) -> Result<Subscription, RedisError> {
        let subscription =
            Subscription { wire: self.clone(), channel: channel.to_owned(), sharded };
        if let Some(count) = self.tap.channels().get_mut(channel) {
            *count += 1;
            return Ok(subscription);
        }
        // Those who hold very many locks all ask at once, and mostly for the same channel.
        let _turn = self.subscribing[usize::from(names::slot(channel)) % SUBSCRIBING].lock().await;
        if let Some(count) = self.tap.channels().get_mut(channel) {
            *count += 1;
            return Ok(subscription);
        }
        let verb = if sharded { "SSUBSCRIBE" } else { "SUBSCRIBE" };
        let asked = self.ask(redis::cmd(verb).arg(channel)).await;
        *self.tap.channels().entry(channel.to_owned()).or_default() += 1;
        asked.map(|_| subscription)
    }

    pub(super) fn is_sound(&self) -> bool {
        !self.is_broken() && self.tap.silent.load(Ordering::Relaxed) < SILENT_MAX
    }

    /// Whether it ended, or leads to a server that is no master any more.
    pub(super) fn is_broken(&self) -> bool {
        self.tap.closed.load(Ordering::Acquire) || self.driver.is_finished()
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wire({:?})", self.tap)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Makes messages on a channel come to a connection.
#[derive(Debug)]
pub(super) struct Subscription {
    wire: Arc<Wire>,
    channel: String,
    sharded: bool,
}

impl Subscription {
    /// Whether messages still come.
    pub(super) fn lives(&self) -> bool {
        self.wire.hears(&self.channel)
    }

    /// Lets it last as long as the connection.
    pub(super) fn keep(self) {
        if let Some(count) = self.wire.tap.channels().get_mut(&self.channel) {
            *count += 1;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut channels = self.wire.tap.channels();
        let Some(count) = channels.get_mut(&self.channel) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        channels.remove(&self.channel);
        drop(channels);
        let verb = if self.sharded { "SUNSUBSCRIBE" } else { "UNSUBSCRIBE" };
        let (wire, mut command) = (self.wire.clone(), redis::cmd(verb));
        command.arg(&self.channel);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // If it fails, messages come that nobody reads.
            drop(runtime.spawn(async move { wire.ask(&command).await.is_ok() }));
        }
    }
}

/// Counts a question that was given up, by our limit or by whoever asked, as unanswered.
struct Asked<'a> {
    tap: &'a Tap,
    answered: bool,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        match self.answered {
            true => self.tap.silent.store(0, Ordering::Relaxed),
            false => drop(self.tap.silent.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// The server is no master any more: only a new connection can find the one that is.
fn demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

/// A frozen server or a half-open connection looks like this; a new connection tells them apart.
const SILENT_MAX: u32 = 2;
/// How many scripts that renew are under way: about 30 ms of the server's time.
const RENEWING_MAX: usize = 64;
/// How many refreshes of places are under way: about 6 ms of the server's time.
const REFRESHING_MAX: usize = 256;
/// The shortest time between two attempts to connect, if the first failed.
const DIAL_AGAIN: Duration = Duration::from_millis(20);
/// How many channels are subscribed to at the same time.
const SUBSCRIBING: usize = 16;
