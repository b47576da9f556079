//! The way to the agents: HTTP/1.1, a deadline for every request, and the next agent when one does
//! not answer.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::settings::Settings;
use crate::error::{Error, ErrorKind, Result};
use crate::tls::Dial;

/// The agents of one cluster.
pub(super) struct Http {
    client: Client<Dial, Full<Bytes>>,
    hosts: Vec<String>,
    /// Which of them is asked.
    current: AtomicUsize,
    token: Option<HeaderValue>,
    /// The options that every request carries.
    options: String,
    sent: AtomicU64,
}

/// What an agent said.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    /// Where in the history of the data it was read; 0 if it does not say.
    pub(super) index: u64,
    pub(super) body: Bytes,
}

impl Http {
    pub(super) fn new(settings: &Settings) -> Result<Http> {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(Dial::new(settings.tls.clone(), HTTP1));
        let token = settings.token.as_ref().map(|token| {
            let bad = |_| Error::new(ErrorKind::Invalid, "the ACL token has odd characters in it");
            let mut value = HeaderValue::from_str(token).map_err(bad)?;
            value.set_sensitive(true);
            Ok::<_, Error>(value)
        });
        let mut options = String::new();
        for (name, value) in [("dc", &settings.datacenter), ("ns", &settings.namespace)] {
            if let Some(value) = value {
                options.push_str(&format!("&{name}={}", percent(value)));
            }
        }
        let (current, sent) = (AtomicUsize::new(0), AtomicU64::new(0));
        let (hosts, token) = (settings.hosts.clone(), token.transpose()?);
        Ok(Http { client, hosts, current, token, options, sent })
    }

    /// Asks for something that is answered at once.
    pub(super) async fn get(&self, path: &str, query: &str) -> Result<Answer> {
        self.send(&Method::GET, path, query, Bytes::new(), Patience::Short).await
    }

    /// Asks for something that is answered when it changes, after `wait` at the latest.
    pub(super) async fn wait(&self, path: &str, query: &str, wait: Duration) -> Result<Answer> {
        let query = format!("{query}&wait={}ms", wait.as_millis());
        self.send(&Method::GET, path, &query, Bytes::new(), Patience::Long(wait)).await
    }

    pub(super) async fn put(&self, path: &str, query: &str, body: String) -> Result<Answer> {
        self.send(&Method::PUT, path, query, body.into(), Patience::Short).await
    }

    /// How many requests were sent.
    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// One request. An agent that cannot be reached was not asked, and one that knows no leader has
    /// not passed it on: then the next one is asked. So it is if a read fails.
    async fn send(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        body: Bytes,
        patience: Patience,
    ) -> Result<Answer> {
        let limit = patience.limit();
        let deadline = tokio::time::Instant::now() + limit;
        let mut last = None;
        for _ in &self.hosts {
            let mut suspect = Suspect::new(&self.current, patience);
            let host = &self.hosts[suspect.at % self.hosts.len()];
            let request = self.request(method, host, path, query, body.clone())?;
            let answer = tokio::time::timeout_at(deadline, self.exchange(request)).await;
            suspect.guilty = true;
            match answer {
                Ok(Ok(answer)) if is_left(method, &answer) => last = Some(Ok(answer)),
                Ok(Ok(answer)) => {
                    suspect.guilty = answer.status >= 500;
                    return Ok(answer);
                }
                Ok(Err(Failure::NotSent(error))) => last = Some(Err(unreachable(host, &*error))),
                Ok(Err(Failure::Broken(error))) => return Err(broken(host, &*error)),
                Err(_elapsed) => return Err(silent(host, limit)),
            }
        }
        last.unwrap_or_else(|| Err(Error::new(ErrorKind::Invalid, "the consul URL has no host")))
    }

    fn request(
        &self,
        method: &Method,
        host: &str,
        path: &str,
        query: &str,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>> {
        let uri = format!("http://{host}{}?{query}{}", percent(path), self.options);
        let bad = |error: &dyn fmt::Display| {
            let message = format!("`{}` is not an address: {error}", host.escape_debug());
            Error::new(ErrorKind::Invalid, message)
        };
        let uri: Uri = uri.parse().map_err(|error| bad(&error))?;
        let mut request = Request::builder().method(method.clone()).uri(uri);
        if let Some(token) = &self.token {
            request = request.header(HeaderName::from_static("x-consul-token"), token.clone());
        }
        request.body(Full::new(body)).map_err(|error| bad(&error))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, Failure> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let response =
            self.client.request(request).await.map_err(|error| match error.is_connect() {
                true => Failure::NotSent(error.into()),
                false => Failure::Broken(error.into()),
            })?;
        let status = response.status().as_u16();
        let index = response.headers().get("x-consul-index");
        let index = index.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| Failure::Broken(error.into()))?.to_bytes();
        Ok(Answer { status, index, body })
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hosts.join(","))
    }
}

/// Why there is no answer.
enum Failure {
    NotSent(Box<dyn std::error::Error + Send + Sync>),
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// How long a request may take.
#[derive(Clone, Copy)]
enum Patience {
    Short,
    /// The server holds its answer back for up to so long.
    Long(Duration),
}

impl Patience {
    fn limit(self) -> Duration {
        match self {
            Patience::Short => LIMIT,
            // The server adds up to a sixteenth, so that not all come back at once.
            Patience::Long(wait) => wait + wait / 16 + LIMIT,
        }
    }
}

/// The agent that is being asked. One that fails is not asked next time, and neither is one whose
/// answer somebody stopped waiting for: a stopped agent accepts and is silent.
struct Suspect<'a> {
    current: &'a AtomicUsize,
    at: usize,
    guilty: bool,
}

impl<'a> Suspect<'a> {
    fn new(current: &'a AtomicUsize, patience: Patience) -> Suspect<'a> {
        let guilty = matches!(patience, Patience::Short);
        Suspect { current, at: current.load(Ordering::Relaxed), guilty }
    }
}

impl Drop for Suspect<'_> {
    fn drop(&mut self) {
        if self.guilty {
            let (at, next) = (self.at, self.at.wrapping_add(1));
            // If somebody else has moved on already, once is enough.
            let _moved =
                self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// Whether the next agent may be asked the same. A write may be, if the agent found no leader, or
/// no way to it, so that nothing was passed on; what its other errors mean is not known.
fn is_left(method: &Method, answer: &Answer) -> bool {
    let text = String::from_utf8_lossy(&answer.body);
    let kept = || text.contains("No cluster leader") || text.contains("rpc error getting client");
    answer.status >= 500 && (method == Method::GET || kept())
}

/// As it has to stand in a path or a query.
pub(super) fn percent(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                safe.push(char::from(byte));
            }
            odd => safe.push_str(&format!("%{odd:02X}")),
        }
    }
    safe
}

fn unreachable(host: &str, error: &(dyn std::error::Error + Send + Sync + 'static)) -> Error {
    let message = format!("cannot reach consul at {host}: {}", root(error));
    Error::new(ErrorKind::Unavailable, message)
}

fn broken(host: &str, error: &(dyn std::error::Error + Send + Sync + 'static)) -> Error {
    let message = format!("the connection to consul at {host} broke: {}", root(error));
    Error::new(ErrorKind::Unavailable, message)
}

fn silent(host: &str, limit: Duration) -> Error {
    let message = format!("no answer from consul at {host} within {} ms", limit.as_millis());
    Error::new(ErrorKind::Unavailable, message)
}

/// The innermost cause says it best: "connection refused".
fn root<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner
}

/// The protocol, for servers that offer several.
const HTTP1: &[u8] = b"http/1.1";
/// How long an answer may take that the server does not hold back.
const LIMIT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(30);
