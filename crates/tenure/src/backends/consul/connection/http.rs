//! HTTP/1.1 to the agents: every request has a deadline, and an agent that fails is replaced by the
//! next one of the URL.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::header::HeaderValue;
use hyper::{Method, Request, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use super::super::config::Config;
use super::super::error;
use super::acl_token::AclToken;
use crate::error::{Error, ErrorKind, Result};
use crate::support::percent;
use crate::support::tls::Dial;

/// The protocol that is offered to servers with TLS.
const HTTP1: &[u8] = b"http/1.1";
/// How long a response may take that the server does not hold back.
const RESPONSE_LIMIT: Duration = Duration::from_secs(5);
/// The status of a request whose token has no right to it, or does not exist.
const FORBIDDEN: u16 = 403;
/// How long an idle connection is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP client for the agents of one cluster.
pub(crate) struct HttpClient {
    client: Client<Dial, Full<Bytes>>,
    hosts: Vec<String>,
    /// Counts the changes of agent: modulo the number of hosts, the one that gets the requests.
    current: AtomicUsize,
    token: AclToken,
    /// The query options that every request carries.
    common_query: String,
    sent: AtomicU64,
}

/// The response of an agent.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// The index of the data that it shows; 0 if the response does not say.
    pub(crate) index: u64,
    pub(crate) body: Bytes,
}

impl HttpClient {
    pub(crate) fn new(config: &Config) -> Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .build(Dial::new(config.tls.clone(), HTTP1));
        let mut common_query = String::new();
        for (name, value) in [("dc", &config.datacenter), ("ns", &config.namespace)] {
            if let Some(value) = value {
                common_query.push_str(&format!("&{name}={}", escape(value)));
            }
        }
        Ok(HttpClient {
            client,
            hosts: config.hosts.clone(),
            current: AtomicUsize::new(0),
            token: AclToken::new(config.login.clone())?,
            common_query,
            sent: AtomicU64::new(0),
        })
    }

    /// A read that the server responds to at once.
    pub(crate) async fn get(&self, path: &str, query: &str) -> Result<HttpResponse> {
        self.send(&Method::GET, path, query, Bytes::new(), ResponseTime::Immediate).await
    }

    /// A blocking query: the server responds when the data changes, after `wait` at the latest.
    pub(crate) async fn wait(
        &self,
        path: &str,
        query: &str,
        wait: Duration,
    ) -> Result<HttpResponse> {
        let query = format!("{query}&wait={}ms", wait.as_millis());
        self.send(&Method::GET, path, &query, Bytes::new(), ResponseTime::Blocking(wait)).await
    }

    pub(crate) async fn put(&self, path: &str, query: &str, body: String) -> Result<HttpResponse> {
        self.send(&Method::PUT, path, query, body.into(), ResponseTime::Immediate).await
    }

    /// How many requests were sent.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Sends one request. If the agent refuses its token, it has had no effect and is sent once
    /// more with another, if the caller's code gives one.
    async fn send(
        &self,
        method: &Method,
        path: &str,
        query: &str,
        body: Bytes,
        time: ResponseTime,
    ) -> Result<HttpResponse> {
        let token = self.token.get().await?;
        let first = self.send_with(token.as_ref(), method, path, query, body.clone(), time);
        let first = first.await?;
        if first.status != FORBIDDEN || !self.token.replace(token.as_ref()).await? {
            return Ok(first);
        }
        let token = self.token.get().await?;
        self.send_with(token.as_ref(), method, path, query, body, time).await
    }

    /// Sends one request, to each agent at most once. It goes to the next agent if it certainly had
    /// no effect at this one: it was not sent, it is a read, or the agent had no leader to pass it
    /// on to.
    async fn send_with(
        &self,
        token: Option<&HeaderValue>,
        method: &Method,
        path: &str,
        query: &str,
        body: Bytes,
        time: ResponseTime,
    ) -> Result<HttpResponse> {
        let limit = time.limit();
        let deadline = tokio::time::Instant::now() + limit;
        let mut last = None;
        for _ in &self.hosts {
            let mut agent = AgentInUse::new(&self.current, time);
            let host = &self.hosts[agent.index % self.hosts.len()];
            let mut request = self.request(method, host, path, query, body.clone())?;
            if let Some(token) = token {
                request.headers_mut().insert("x-consul-token", token.clone());
            }
            let response = tokio::time::timeout_at(deadline, self.exchange(request)).await;
            agent.failed = true;
            match response {
                Ok(Ok(response)) if may_repeat(method, &response) => last = Some(Ok(response)),
                Ok(Ok(response)) => {
                    agent.failed = response.status >= 500;
                    return Ok(response);
                }
                Ok(Err(SendFailure::NotSent(cause))) => {
                    last = Some(Err(error::unreachable(host, &*cause)));
                }
                Ok(Err(SendFailure::Broken(cause))) => return Err(error::broken(host, &*cause)),
                Err(_elapsed) => {
                    return Err(Error::timed_out(format_args!("consul at {host}"), limit));
                }
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
        let uri = format!("http://{host}{}?{query}{}", escape(path), self.common_query);
        let bad_address = |error: &dyn fmt::Display| {
            let message = format!("`{}` is not an address: {error}", host.escape_debug());
            Error::new(ErrorKind::Invalid, message)
        };
        let uri: Uri = uri.parse().map_err(|error| bad_address(&error))?;
        let request = Request::builder().method(method.clone()).uri(uri);
        request.body(Full::new(body)).map_err(|error| bad_address(&error))
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<HttpResponse, SendFailure> {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let response = self.client.request(request).await.map_err(|error| {
            if error.is_connect() {
                SendFailure::NotSent(error.into())
            } else {
                SendFailure::Broken(error.into())
            }
        })?;
        let status = response.status().as_u16();
        let index = response.headers().get("x-consul-index");
        let index = index.and_then(|value| value.to_str().ok()?.parse().ok()).unwrap_or(0);
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| SendFailure::Broken(error.into()))?.to_bytes();
        Ok(HttpResponse { status, index, body })
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hosts.join(","))
    }
}

/// Why there is no response.
enum SendFailure {
    NotSent(Box<dyn std::error::Error + Send + Sync>),
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// When the server responds.
#[derive(Clone, Copy)]
enum ResponseTime {
    Immediate,
    /// The server holds its response back for up to this long.
    Blocking(Duration),
}

impl ResponseTime {
    fn limit(self) -> Duration {
        match self {
            ResponseTime::Immediate => RESPONSE_LIMIT,
            // The server adds up to a sixteenth, so that blocking queries do not all end at once.
            ResponseTime::Blocking(wait) => wait + wait / 16 + RESPONSE_LIMIT,
        }
    }
}

/// The agent that a request goes to. When it is dropped as failed, later requests go to the next
/// agent.
///
/// A request that is dropped before its response came counts as failed too: a stopped agent accepts
/// connections and never responds, and the caller's own limit may end the request first. This does
/// not hold for blocking queries, which callers drop at any time.
struct AgentInUse<'a> {
    current: &'a AtomicUsize,
    index: usize,
    failed: bool,
}

impl<'a> AgentInUse<'a> {
    fn new(current: &'a AtomicUsize, time: ResponseTime) -> AgentInUse<'a> {
        let failed = matches!(time, ResponseTime::Immediate);
        AgentInUse { current, index: current.load(Ordering::Relaxed), failed }
    }
}

impl Drop for AgentInUse<'_> {
    fn drop(&mut self) {
        if self.failed {
            let next = self.index.wrapping_add(1);
            // An error means that another request has moved on from this agent already.
            let _ignored = self.current.compare_exchange(
                self.index,
                next,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }
}

/// Whether the same request may go to the next agent. A write may, if this agent found no leader or
/// no connection to it, so that nothing was passed on; other errors leave the outcome unknown.
fn may_repeat(method: &Method, response: &HttpResponse) -> bool {
    let text = String::from_utf8_lossy(&response.body);
    let not_passed_on =
        || text.contains("No cluster leader") || text.contains("rpc error getting client");
    response.status >= 500 && (method == Method::GET || not_passed_on())
}

/// Percent-encodes text for a path or a query. Slashes stay.
fn escape(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '/');
    percent::encode(text, |_, c| !plain(c))
}
