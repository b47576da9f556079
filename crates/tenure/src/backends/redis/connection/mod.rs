//! One connection to one server: requests, their time limit, and subscriptions.
//!
//! - `servers`: which server has a key, and running a script there
//! - `dial`: making a connection
//! - `wire`: the bytes of a connection
//! - `sentinel`: finding the master by querying the sentinels
//! - `cluster`: the masters of a cluster and their slots
//!
//! Requests and pushed messages share one connection (RESP3). A connection is dead, and the next
//! caller gets a new one, when it broke, when two requests in a row got no response, or when its
//! server said that it is no master any more. Whatever the server pushes while a connection is
//! being replaced is missed, so that every replacement is reported as [`PushEvent::Missed`].

mod cluster;
mod dial;
mod sentinel;
mod servers;
mod wire;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind, RedisError, Value};
use tokio::sync::Semaphore;
use tokio::time::Instant;

pub(crate) use self::servers::Servers;
pub(crate) use self::wire::batch::BatchPart;
use self::wire::{Wire, WireEvent};
use super::layout::slot::slot;
use crate::support::sync::Mutex;

/// After so many requests in a row without a response, a connection is dead. A frozen server or a
/// half-open connection looks like this; a new connection tells them apart.
const MISSING_RESPONSES_MAX: u32 = 2;
/// How many scripts that renew are under way: about 30 ms of the server's time.
const RENEWALS_MAX: usize = 64;
/// How many refreshes of queue entries are under way: about 6 ms of the server's time.
const REFRESHES_MAX: usize = 256;
/// How many channels are subscribed to at the same time.
const SUBSCRIBING_MAX: usize = 16;

/// Called with everything that a server pushes.
pub(crate) type PushHandler = Arc<dyn Fn(PushEvent<'_>) + Send + Sync>;

/// What a connection reports to its [`PushHandler`].
#[derive(Clone, Copy, Debug)]
pub(crate) enum PushEvent<'a> {
    Message {
        channel: &'a str,
        text: &'a str,
    },
    /// Messages may have been missed: the connection broke or was replaced, or the server ended a
    /// subscription.
    Missed,
}

/// One connection.
pub(crate) struct Connection {
    wire: Wire,
    response_limit: Duration,
    health: Arc<Health>,
    /// Renewals take turns: those of very many locks at once would only queue at the server, and
    /// the last ones would look like silence.
    pub(crate) renewals: Semaphore,
    /// Claims that are queued already take turns to refresh their queue entries, since they all do
    /// when a connection was replaced.
    pub(crate) refreshes: Semaphore,
    subscribing: [tokio::sync::Mutex<()>; SUBSCRIBING_MAX],
    /// What the server said about itself when the connection was made, if that was requested.
    pub(crate) uptime: Option<Uptime>,
}

/// How long a server had run at a moment of this process's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uptime {
    pub(crate) was: Duration,
    pub(crate) at: Instant,
}

/// What a connection and the task that receives its messages both know.
#[derive(Debug, Default)]
struct Health {
    /// Whether the server can push to it.
    pushes: bool,
    closed: AtomicBool,
    /// Requests in a row without a response.
    missing_responses: AtomicU32,
    /// The channels that are subscribed to here, and by how many.
    channels: Mutex<HashMap<String, u32>>,
}

impl Health {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Passes on what the server pushed, and that the connection broke.
    fn on_event(&self, event: WireEvent, on_push: &PushHandler) {
        match event {
            WireEvent::Pushed(push) => self.received(&push, on_push),
            WireEvent::Broken => {
                self.close();
                on_push(PushEvent::Missed);
            }
        }
    }

    fn received(&self, push: &PushInfo, on_push: &PushHandler) {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let [channel, text, ..] = &push.data[..]
                    && let (Some(channel), Some(text)) = (utf8(channel), utf8(text))
                {
                    on_push(PushEvent::Message { channel, text });
                }
            }
            PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                let channel = push.data.first().and_then(utf8);
                let removed = channel.and_then(|channel| self.channels.lock().remove(channel));
                // The client did not end the subscription: a slot that moves takes its channels
                // along.
                if removed.is_some() {
                    on_push(PushEvent::Missed);
                }
            }
            _ => {}
        }
    }
}

impl Connection {
    fn new(wire: Wire, health: Arc<Health>, response_limit: Duration) -> Connection {
        Connection {
            wire,
            response_limit,
            health,
            renewals: Semaphore::new(RENEWALS_MAX),
            refreshes: Semaphore::new(REFRESHES_MAX),
            subscribing: Default::default(),
            uptime: None,
        }
    }

    /// Sends a command and awaits its response, for at most the response limit.
    pub(crate) async fn execute(&self, command: &Cmd) -> Result<Value, RedisError> {
        let request = self.wire.request(command.get_packed_command());
        self.respond(self.bounded(request).await?)
    }

    /// Executes a command that keeps the server busy for some microseconds only, alone or in a
    /// script with others.
    pub(crate) async fn execute_short(
        &self,
        command: &Cmd,
        part: Option<BatchPart>,
    ) -> Result<Value, RedisError> {
        let request = self.wire.request_short(command.get_packed_command(), part);
        self.respond(self.bounded(request).await?)
    }

    /// What a response means for the connection and the caller.
    fn respond(&self, response: Value) -> Result<Value, RedisError> {
        let response = without_error(response);
        if response.as_ref().is_err_and(is_demoted) {
            self.health.close();
        }
        response
    }

    /// Sends commands in one batch and awaits all responses; a server's error is a value among
    /// them.
    pub(crate) async fn execute_all(&self, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        let commands = commands.iter().map(Cmd::get_packed_command);
        self.bounded(self.wire.request_all(commands)).await
    }

    async fn bounded<T>(
        &self,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        let mut counted = CountMissingResponse { health: &self.health, responded: false };
        let response = match tokio::time::timeout(self.response_limit, request).await {
            Ok(response) => response,
            Err(_) => return Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        };
        counted.responded = true;
        if response.as_ref().is_err_and(RedisError::is_unrecoverable_error) {
            self.health.close();
        }
        response
    }

    /// Whether the server can push messages to this connection at all.
    pub(crate) fn can_push(&self) -> bool {
        self.health.pushes
    }

    /// Whether messages on this channel arrive here.
    pub(crate) fn is_subscribed(&self, channel: &str) -> bool {
        self.is_alive() && self.health.channels.lock().contains_key(channel)
    }

    /// Makes messages on this channel arrive here, for as long as the returned value lives.
    pub(crate) async fn subscribe(
        self: &Arc<Self>,
        channel: &str,
        sharded: bool,
    ) -> Result<Subscription, RedisError> {
        let subscription =
            Subscription { connection: self.clone(), channel: channel.to_owned(), sharded };
        if let Some(count) = self.health.channels.lock().get_mut(channel) {
            *count += 1;
            return Ok(subscription);
        }
        // A client with very many locks subscribes for all of them at once, and mostly to the same
        // channel: the first one sends the command, and the others find it done.
        let _turn = self.subscribing[usize::from(slot(channel)) % SUBSCRIBING_MAX].lock().await;
        if let Some(count) = self.health.channels.lock().get_mut(channel) {
            *count += 1;
            return Ok(subscription);
        }
        let (verb, confirmed_by) = if sharded {
            ("SSUBSCRIBE", PushKind::SSubscribe)
        } else {
            ("SUBSCRIBE", PushKind::Subscribe)
        };
        let response = self.execute_confirmed(verb, confirmed_by, channel).await;
        // Counted also after an error, since the value that is dropped then counts it off.
        *self.health.channels.lock().entry(channel.to_owned()).or_default() += 1;
        response.map(|_| subscription)
    }

    /// Sends a command about a subscription.
    async fn execute_confirmed(
        &self,
        verb: &str,
        confirmed_by: PushKind,
        channel: &str,
    ) -> Result<(), RedisError> {
        let command = redis::cmd(verb).arg(channel).get_packed_command();
        let request = self.wire.request_confirmed(command, confirmed_by, channel);
        without_error(self.bounded(request).await?).map(drop)
    }

    /// Whether it can carry another request.
    fn is_alive(&self) -> bool {
        !self.is_broken()
            && self.health.missing_responses.load(Ordering::Relaxed) < MISSING_RESPONSES_MAX
    }

    /// Whether it ended, or leads to a server that is no master any more.
    pub(crate) fn is_broken(&self) -> bool {
        self.health.closed.load(Ordering::Acquire) || self.wire.has_ended()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({:?})", self.health)
    }
}

/// Makes messages on a channel arrive at a connection.
#[derive(Debug)]
pub(crate) struct Subscription {
    connection: Arc<Connection>,
    channel: String,
    sharded: bool,
}

impl Subscription {
    /// Whether messages still arrive.
    pub(crate) fn is_alive(&self) -> bool {
        self.connection.is_subscribed(&self.channel)
    }

    /// Lets it last as long as the connection.
    pub(crate) fn keep(self) {
        if let Some(count) = self.connection.health.channels.lock().get_mut(&self.channel) {
            *count += 1;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut channels = self.connection.health.channels.lock();
        let Some(count) = channels.get_mut(&self.channel) else { return };
        *count -= 1;
        if *count > 0 {
            return;
        }
        channels.remove(&self.channel);
        drop(channels);
        let (verb, confirmed_by) = if self.sharded {
            ("SUNSUBSCRIBE", PushKind::SUnsubscribe)
        } else {
            ("UNSUBSCRIBE", PushKind::Unsubscribe)
        };
        let connection = self.connection.clone();
        let channel = self.channel.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // If it fails, messages arrive that no claim waits for.
            drop(runtime.spawn(async move {
                connection.execute_confirmed(verb, confirmed_by, &channel).await.is_ok()
            }));
        }
    }
}

/// Counts a request that ends without a response, whether the response limit ended it or its
/// caller.
struct CountMissingResponse<'a> {
    health: &'a Health,
    responded: bool,
}

impl Drop for CountMissingResponse<'_> {
    fn drop(&mut self) {
        if self.responded {
            self.health.missing_responses.store(0, Ordering::Relaxed);
        } else {
            self.health.missing_responses.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A response that is a server's error is one here.
fn without_error(response: Value) -> Result<Value, RedisError> {
    match response {
        Value::ServerError(error) => Err(error.into()),
        response => Ok(response),
    }
}

/// The server is no master any more: only a new connection can find the one that is.
fn is_demoted(error: &RedisError) -> bool {
    matches!(error.code(), Some("READONLY" | "MASTERDOWN"))
}

fn utf8(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
