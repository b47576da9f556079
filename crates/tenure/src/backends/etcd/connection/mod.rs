//! The connection to the cluster: a channel to one member at a time, retries, and failover to the
//! next member.
//!
//! All requests and both streams of a client (keep-alives, watches) use the same channel. Whichever
//! of them finds the member silent, without a leader or gone makes the connection move on to the
//! next endpoint of the URL, for all of them. Each move, and each login, gets a new *generation*:
//! a request that failed on generation 7 moves the connection on only if it is still at 7, so that
//! a hundred requests that fail together move it once; and a stream of an older generation is
//! closed and opened again by its task.
//!
//! Requests are retried until there is a response or their time is up, so that only requests that
//! may be carried out twice are sent through [`Connection::call`]. Its response says whether an
//! earlier attempt may still arrive at the server. `login` gets the token that requests carry,
//! `grpc` is one attempt, `status` how it failed, and `error` says what that means. `channel` makes
//! the connection to a member, and `wire` is that connection.

mod channel;
mod grpc;
mod login;
mod status;
mod wire;

use std::fmt;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use prost::Message;
use tokio::sync::watch;

use self::channel::{Channel, MemberAddress};
pub(crate) use self::grpc::{Duplex, Method};
use self::grpc::{open_stream, unary};
use self::login::Token;
pub(crate) use self::login::{Login, check_login};
pub(crate) use self::status::{Code, Status};
use super::error::{RetryAction, from_status, is_refused, retry_action, unreachable};
use crate::error::{Error, ErrorKind, Result};
use crate::support::backoff::Backoff;
use crate::support::sync::Mutex;
use crate::support::tls::{Dial, Tls};

/// The protocol, for servers that offer several on one port.
const HTTP2: &[u8] = b"h2";
/// How long opening a stream may take, which may need a login.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// A request that was dropped after this long without a response counts against its member.
const SILENCE: Duration = Duration::from_millis(150);
/// The pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The endpoints of the URL, and the one in use.
pub(crate) struct Connection {
    endpoints: Vec<MemberAddress>,
    /// Makes connections, encrypted if the URL wants that.
    dial: Dial,
    login: Option<Login>,
    active: Mutex<ActiveEndpoint>,
    /// The generation of `active`, for the tasks that have streams open.
    generation: watch::Sender<u64>,
}

/// The endpoint in use.
#[derive(Clone)]
struct ActiveEndpoint {
    /// Counts endpoints and logins.
    generation: u64,
    /// Its position among the endpoints.
    index: usize,
    channel: Channel,
    token: Token,
}

/// The response to a request that was attempted once or several times.
pub(crate) struct CallResponse<T> {
    pub(crate) body: T,
    /// Whether an earlier attempt at the same request may still arrive at the server, or may be the
    /// one that was carried out.
    pub(crate) unconfirmed: bool,
}

impl Connection {
    /// Must be called within a runtime. Nothing is sent yet.
    pub(crate) fn new(
        hosts: &[(String, u16)],
        login: Option<Login>,
        tls: Option<Tls>,
    ) -> Result<Connection> {
        let endpoints = hosts.iter().map(MemberAddress::new).collect::<Result<Vec<_>>>()?;
        let dial = Dial::new(tls, HTTP2);
        let first = endpoints.first().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the etcd URL names no host; try etcd://127.0.0.1:2379")
        })?;
        let token = if login.is_some() { Token::None } else { Token::NotNeeded };
        let channel = Channel::new(first, &dial);
        let active = Mutex::new(ActiveEndpoint { generation: 0, index: 0, channel, token });
        Ok(Connection { endpoints, dial, login, active, generation: watch::Sender::new(0) })
    }

    /// Sends a request until there is a response, or for at most `limit`. The request must be one
    /// that may be carried out twice.
    pub(crate) async fn call<Q, A>(
        &self,
        method: Method,
        request: Q,
        limit: Duration,
    ) -> Result<CallResponse<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let end = Instant::now() + limit;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut unconfirmed = false;
        let mut new_login = false;
        let mut refused_in_a_row = 0;
        loop {
            let active = self.active_with_token(end).await?;
            let left = end.saturating_duration_since(Instant::now());
            // A silent member costs half of the time, so that another can be tried. With one
            // endpoint there is no other.
            let wait = if self.endpoints.len() > 1 { (limit / 2).min(left) } else { left };
            let status = match self.attempt(&active, method, request.clone(), wait).await {
                Ok(body) => return Ok(CallResponse { body, unconfirmed }),
                Err(status) => status,
            };
            // An endpoint that refuses the connection has not got the request.
            let is_refused = is_refused(&status);
            refused_in_a_row = if is_refused { refused_in_a_row + 1 } else { 0 };
            match self.react_to(&status, active.generation) {
                RetryAction::LogIn if self.login.is_some() && !new_login => new_login = true,
                RetryAction::LogIn | RetryAction::Fail => return Err(from_status(status)),
                RetryAction::SameMember | RetryAction::NextMember => unconfirmed |= !is_refused,
            }
            // When every endpoint has refused the connection, a retry within the limit is no use.
            let pause = backoff.next();
            if Instant::now() + pause >= end || refused_in_a_row >= self.endpoints.len() {
                return Err(self.explain(status, &active));
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends a request once to every endpoint, whichever is in use.
    pub(crate) async fn call_each<Q, A>(
        &self,
        method: Method,
        request: Q,
        limit: Duration,
    ) -> Vec<(String, Result<A>)>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let active = self.active_with_token(Instant::now() + limit).await;
        let token = active.map_or(Token::None, |active| active.token);
        let calls = self.endpoints.iter().map(|endpoint| {
            let channel = Channel::new(endpoint, &self.dial);
            let token = token.clone();
            let request = request.clone();
            async move {
                let response = unary(&channel, &token, method, request);
                let response = match tokio::time::timeout(limit, response).await {
                    Ok(response) => response.map_err(from_status),
                    Err(_) => Err(Error::timed_out("etcd", limit)),
                };
                (endpoint.host().to_owned(), response)
            }
        });
        join_all(calls).await
    }

    /// Opens a stream. The server sends nothing before it has got a first request.
    pub(crate) async fn open<Q, A>(&self, method: Method) -> Result<Duplex<Q, A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let active = self.active_with_token(Instant::now() + OPEN_LIMIT).await?;
        let opened = open_stream(&active.channel, &active.token, active.generation, method).await;
        opened.map_err(|status| {
            self.react_to(&status, active.generation);
            self.explain(status, &active)
        })
    }

    /// Moves on from the endpoint of this generation to the next one, unless that has been done.
    /// With a single endpoint it makes a new connection to it.
    pub(crate) fn move_on(&self, generation: u64) {
        let mut active = self.active.lock();
        // Without a runtime there is nothing to connect with: the process is ending.
        if active.generation != generation || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        active.index = (active.index + 1) % self.endpoints.len();
        active.channel = Channel::new(&self.endpoints[active.index], &self.dial);
        self.begin_generation(&mut active);
    }

    /// A stream of this generation has ended, with this error or without one.
    pub(crate) fn stream_ended(&self, generation: u64, status: Option<&Status>) {
        if let Some(status) = status {
            self.react_to(status, generation);
        } else {
            self.move_on(generation);
        }
    }

    /// Forgets the token that this generation was given, because the server refused it. Without a
    /// login there is no way to get another.
    pub(crate) fn forget_token(&self, generation: u64) {
        let mut active = self.active.lock();
        if active.generation == generation && self.login.is_some() {
            active.token = Token::None;
        }
    }

    /// Tells of each new generation.
    pub(crate) fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// One attempt at a request. If the caller drops it after [`SILENCE`] without a response, the
    /// connection moves on.
    async fn attempt<Q, A>(
        &self,
        active: &ActiveEndpoint,
        method: Method,
        request: Q,
        limit: Duration,
    ) -> Result<A, Status>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let pending = PendingRequest::new(self, active.generation);
        let response = unary(&active.channel, &active.token, method, request);
        let response = tokio::time::timeout(limit, response).await;
        pending.finish();
        response.unwrap_or_else(|_| {
            let message = format!("no response within {} ms", limit.as_millis());
            Err(Status::new(Code::DeadlineExceeded, message))
        })
    }

    /// Does what a failure calls for, and returns it.
    fn react_to(&self, status: &Status, generation: u64) -> RetryAction {
        let action = retry_action(status);
        match action {
            RetryAction::NextMember => self.move_on(generation),
            RetryAction::LogIn => self.forget_token(generation),
            RetryAction::SameMember | RetryAction::Fail => {}
        }
        action
    }

    /// The endpoint in use, with a token if the server wants one.
    async fn active_with_token(&self, end: Instant) -> Result<ActiveEndpoint> {
        let active = self.active.lock().clone();
        match &self.login {
            Some(login) if active.token == Token::None => login.log_in(self, end).await,
            Some(_) | None => Ok(active),
        }
    }

    /// A login has succeeded.
    fn set_token(&self, token: Token) -> ActiveEndpoint {
        let mut active = self.active.lock();
        active.token = token;
        self.begin_generation(&mut active);
        active.clone()
    }

    /// MemberAddress or token are new: streams that were opened before are to be opened again.
    fn begin_generation(&self, active: &mut ActiveEndpoint) {
        active.generation += 1;
        self.generation.send_replace(active.generation);
    }

    /// The error, with the endpoint if that could not even be reached.
    fn explain(&self, status: Status, active: &ActiveEndpoint) -> Error {
        let host = self.endpoints[active.index].host();
        unreachable(host, &status).unwrap_or_else(|| from_status(status))
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<_> = self.endpoints.iter().map(MemberAddress::host).collect();
        write!(f, "etcd://{}", hosts.join(","))
    }
}

/// A request under way. The engine drops a request when its own limit has passed: that is the only
/// sign of a silent member if the limit of `call` is longer.
struct PendingRequest<'a> {
    connection: &'a Connection,
    generation: u64,
    since: Instant,
    finished: bool,
}

impl<'a> PendingRequest<'a> {
    fn new(connection: &'a Connection, generation: u64) -> PendingRequest<'a> {
        PendingRequest { connection, generation, since: Instant::now(), finished: false }
    }

    fn finish(mut self) {
        self.finished = true;
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        if !self.finished && self.since.elapsed() >= SILENCE {
            self.connection.move_on(self.generation);
        }
    }
}
