//! The way to the servers: one connection at a time, to one of several endpoints. Whoever finds it
//! silent moves everybody on to the next. Requests that may be repeated are, until they are
//! answered or their time is up; `login` gets the token that they carry, `fault` says what their
//! errors mean.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use prost::Message;
use tokio::sync::{mpsc, watch};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::fault::{Meaning, chain, from_status, is_refused, meaning, unavailable, unreachable};
use super::login::{Login, Token};
use crate::error::{Error, ErrorKind, Result};
use crate::tls::{Dial, Tls};

/// The endpoints, and the connection in use.
pub(super) struct Wire {
    endpoints: Vec<Endpoint>,
    /// Makes encrypted connections, if the URL asks for them.
    dial: Option<Dial>,
    pub(super) login: Option<Login>,
    line: Mutex<Line>,
    /// Counts the connections and the logins: whoever holds a stream of an old one opens it anew.
    generation: watch::Sender<u64>,
}

/// The connection in use.
#[derive(Clone)]
pub(super) struct Line {
    pub(super) generation: u64,
    /// Which endpoint it leads to.
    at: usize,
    channel: Channel,
    pub(super) token: Token,
}

/// A method of the API.
#[derive(Clone, Copy)]
pub(super) struct Method(pub(super) &'static str);

/// An answer, and whether an earlier attempt at the same request may still arrive.
pub(super) struct Answer<T> {
    pub(super) body: T,
    pub(super) doubtful: bool,
}

/// A stream in both directions: what is sent, and what comes.
pub(super) struct Duplex<Q, A> {
    pub(super) generation: u64,
    pub(super) out: mpsc::UnboundedSender<Q>,
    pub(super) messages: BoxStream<'static, Result<A, Status>>,
}

impl Wire {
    /// Must be called within a runtime. Nothing is sent yet.
    pub(super) fn new(
        hosts: &[(String, u16)],
        login: Option<Login>,
        tls: Option<Tls>,
    ) -> Result<Wire> {
        let endpoints = hosts.iter().map(endpoint).collect::<Result<Vec<_>>>()?;
        let dial = tls.map(|tls| Dial::new(Some(tls), HTTP2));
        let first = endpoints.first().ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the etcd URL names no host; try etcd://127.0.0.1:2379")
        })?;
        let token = if login.is_some() { Token::None } else { Token::Needless };
        let line = Line { generation: 0, at: 0, channel: connect(first, dial.as_ref()), token };
        Ok(Wire {
            endpoints,
            dial,
            login,
            line: Mutex::new(line),
            generation: watch::Sender::new(0),
        })
    }

    /// Asks until there is an answer, or for at most `limit`. The request must be one that may
    /// arrive twice.
    pub(super) async fn call<Q, A>(
        &self,
        method: Method,
        request: Q,
        limit: Duration,
    ) -> Result<Answer<A>>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let end = Instant::now() + limit;
        let (mut doubtful, mut pause, mut new_login) = (false, FIRST_PAUSE, false);
        let mut refused = 0;
        loop {
            let line = self.line_for_call(end).await?;
            let left = end.saturating_duration_since(Instant::now());
            // With one endpoint there is nothing to gain by asking elsewhere.
            let patience = if self.endpoints.len() > 1 { (limit / 2).min(left) } else { left };
            let unanswered = Unanswered::new(self, line.generation);
            let attempt = unary(&line, method, request.clone());
            let status = match tokio::time::timeout(patience, attempt).await {
                Ok(Ok(body)) => {
                    unanswered.answered();
                    return Ok(Answer { body, doubtful });
                }
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            unanswered.answered();
            // An endpoint that refuses the connection has not got the request.
            let is_refused = is_refused(&status);
            refused = if is_refused { refused + 1 } else { 0 };
            match self.settle(&status, &line) {
                Meaning::Login if self.login.is_some() && !new_login => new_login = true,
                Meaning::Login | Meaning::Final => return Err(from_status(status)),
                Meaning::Again | Meaning::Elsewhere => doubtful |= !is_refused,
            }
            if Instant::now() + pause >= end || refused >= self.endpoints.len() {
                return Err(self.explained(status, &line));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MOST_PAUSE);
        }
    }

    /// Asks one particular endpoint, once: for people who want to know about each.
    pub(super) async fn ask_each<Q, A>(
        &self,
        method: Method,
        request: Q,
        limit: Duration,
    ) -> Vec<(String, Result<A>)>
    where
        Q: Message + Clone + 'static,
        A: Message + Default + 'static,
    {
        let line = self.line_for_call(Instant::now() + limit).await;
        let token = line.map_or(Token::None, |line| line.token);
        let asks = self.endpoints.iter().map(|endpoint| {
            let channel = connect(endpoint, self.dial.as_ref());
            let line = Line { generation: 0, at: 0, channel, token: token.clone() };
            let request = request.clone();
            async move {
                let host = endpoint.uri().authority().map(ToString::to_string);
                let answer = unary(&line, method, request);
                let answer = match tokio::time::timeout(limit, answer).await {
                    Ok(answer) => answer.map_err(from_status),
                    Err(_) => Err(unavailable("it does not answer")),
                };
                (host.unwrap_or_default(), answer)
            }
        });
        futures_util::future::join_all(asks).await
    }

    /// Opens a stream. The server answers nothing before it has got a first message.
    pub(super) async fn open<Q, A>(&self, method: Method) -> Result<Duplex<Q, A>>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let line = self.line_for_call(Instant::now() + OPENING).await?;
        let (out, mut outgoing) = mpsc::unbounded_channel();
        let outgoing = stream::poll_fn(move |context| outgoing.poll_recv(context));
        let request = dress(Request::new(outgoing), &line);
        let generation = line.generation;
        let opening = async move {
            let mut grpc = Grpc::new(line.channel);
            ready(&mut grpc).await?;
            let path = PathAndQuery::from_static(method.0);
            grpc.streaming(request, path, ProstCodec::<Q, A>::default())
                .await
                .map(Response::into_inner)
        };
        Ok(Duplex { generation, out, messages: stream::once(opening).try_flatten().boxed() })
    }

    /// Leaves this connection for the next endpoint, unless somebody did so before. With a single
    /// endpoint that is a new connection to it.
    pub(super) fn move_on(&self, generation: u64) {
        let mut line = self.line();
        // Without a runtime there is nothing to connect with: the process is ending.
        if line.generation != generation || tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        line.at = (line.at + 1) % self.endpoints.len();
        line.channel = connect(&self.endpoints[line.at], self.dial.as_ref());
        self.renumber(&mut line);
    }

    /// The connection or its token is new: streams that were opened before are closed.
    fn renumber(&self, line: &mut Line) {
        line.generation += 1;
        self.generation.send_replace(line.generation);
    }

    /// A login has succeeded.
    pub(super) fn set_token(&self, token: Token) -> Line {
        let mut line = self.line();
        line.token = token;
        self.renumber(&mut line);
        line.clone()
    }

    /// Does what a failure asks for, and says what it means.
    pub(super) fn settle(&self, status: &Status, line: &Line) -> Meaning {
        let meaning = meaning(status);
        match meaning {
            Meaning::Elsewhere => self.move_on(line.generation),
            Meaning::Login => self.forget_token(line.generation),
            Meaning::Again | Meaning::Final => {}
        }
        meaning
    }

    /// A stream has ended, by this error or without one.
    pub(super) fn stream_ended(&self, generation: u64, status: Option<&Status>) {
        match status.map(meaning) {
            None | Some(Meaning::Elsewhere) => self.move_on(generation),
            Some(Meaning::Login) => self.forget_token(generation),
            Some(Meaning::Again | Meaning::Final) => {}
        }
    }

    /// Tells of new connections.
    pub(super) fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub(super) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection in use, with a token if the server wants one.
    async fn line_for_call(&self, end: Instant) -> Result<Line> {
        let line = self.line().clone();
        match &self.login {
            Some(login) if line.token == Token::None => login.log_in(self, end).await,
            Some(_) | None => Ok(line),
        }
    }

    /// The server does not take the token of this connection any more. Whoever has no login cannot
    /// get another.
    pub(super) fn forget_token(&self, generation: u64) {
        let mut line = self.line();
        if line.generation == generation && self.login.is_some() {
            line.token = Token::None;
        }
    }

    /// How many endpoints the URL names.
    pub(super) fn count(&self) -> usize {
        self.endpoints.len()
    }

    /// The error, and which endpoint it is about if it could not even be reached.
    pub(super) fn explained(&self, status: Status, line: &Line) -> Error {
        let host = self.endpoints[line.at].uri().authority();
        let host = host.map(ToString::to_string).unwrap_or_default();
        unreachable(&host, &status).unwrap_or_else(|| from_status(status))
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.endpoints.iter().filter_map(|endpoint| endpoint.uri().authority());
        let hosts: Vec<_> = hosts.map(ToString::to_string).collect();
        write!(f, "etcd://{}", hosts.join(","))
    }
}

/// Moves on if a request is dropped after having waited in vain: whoever dropped it had a reason.
struct Unanswered<'a> {
    wire: &'a Wire,
    generation: u64,
    since: Instant,
    open: bool,
}

impl<'a> Unanswered<'a> {
    fn new(wire: &'a Wire, generation: u64) -> Unanswered<'a> {
        Unanswered { wire, generation, since: Instant::now(), open: true }
    }

    fn answered(mut self) {
        self.open = false;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.open && self.since.elapsed() >= SILENCE {
            self.wire.move_on(self.generation);
        }
    }
}

fn endpoint((host, port): &(String, u16)) -> Result<Endpoint> {
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    // Also where it is encrypted: that is our business and not the library's.
    let endpoint = Endpoint::from_shared(format!("http://{host}:{port}")).map_err(|_| {
        Error::new(ErrorKind::Invalid, format!("`{}` is not a host", host.escape_debug()))
    })?;
    // Servers close connections that ping more often than every 5 s. Our own limits notice silence
    // sooner; this notices it where nothing is asked.
    Ok(endpoint
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(6))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(false))
}

/// A connection that is opened when it is first used.
fn connect(endpoint: &Endpoint, dial: Option<&Dial>) -> Channel {
    match dial {
        Some(dial) => endpoint.connect_with_connector_lazy(dial.clone()),
        None => endpoint.connect_lazy(),
    }
}

pub(super) async fn unary<Q, A>(line: &Line, method: Method, request: Q) -> Result<A, Status>
where
    Q: Message + 'static,
    A: Message + Default + 'static,
{
    let mut grpc = Grpc::new(line.channel.clone()).max_decoding_message_size(MOST_BYTES);
    ready(&mut grpc).await?;
    let path = PathAndQuery::from_static(method.0);
    let request = dress(Request::new(request), line);
    let answer = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?;
    Ok(answer.into_inner())
}

async fn ready(grpc: &mut Grpc<Channel>) -> Result<(), Status> {
    grpc.ready().await.map_err(|error| {
        let mut status = Status::unavailable(chain(&error));
        status.set_source(Arc::new(error));
        status
    })
}

/// A member without a leader refuses at once instead of waiting for one.
fn dress<T>(mut request: Request<T>, line: &Line) -> Request<T> {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Token::Given(token) = &line.token {
        request.metadata_mut().insert("token", token.clone());
    }
    request
}

/// The protocol, for servers that offer several.
const HTTP2: &[u8] = b"h2";
/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// How long opening a stream may take, which may need a login.
const OPENING: Duration = Duration::from_secs(3);
/// No response of ours is longer; a server of others may hold any amount of data.
const MOST_BYTES: usize = 64 << 20;
/// A request that was dropped after this long without an answer speaks against its connection.
const SILENCE: Duration = Duration::from_millis(150);
/// The pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const MOST_PAUSE: Duration = Duration::from_millis(100);
