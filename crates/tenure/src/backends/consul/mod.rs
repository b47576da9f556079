//! Consul: sessions and keys in the layout of its own `api.Lock`, so that Go services, `consul
//! lock` and tenure exclude one another.
//!
//! | file | job |
//! |---|---|
//! | `config` | from a URL to `Config` |
//! | `connection` | connections to the agents: `http`, `api`, `base64` |
//! | `connection/http` | requests to the agents, with a deadline each, and the change of agent |
//! | `connection/api` | the requests of Consul's HTTP API: sessions, transactions, reads |
//! | `connection/base64` | the encoding of values in that API |
//! | `layout` | the keys of a lock, and the record that holders and waiters write |
//! | `session` | the sessions of this client, and their renewal |
//! | `claims` | what this client knows of its own claims |
//! | `snapshot` | what the stored keys of a lock mean |
//! | `acquire` | acquires a lock, or says what it is busy with |
//! | `grant_request` | the transaction that grants a claim |
//! | `decide` | what to do after a read |
//! | `enqueue` | joins the queue of a lock |
//! | `downgrade` | makes an exclusive grant shared |
//! | `renew` | renews sessions, and checks that locks are still held |
//! | `release` | releases grants and queue entries, and writes tombstones |
//! | `wait` | `until_free` and `until_lost`, by blocking queries |
//! | `admin` | list, evict, condition |
//! | `doctor` | health checks |
//! | `error` | from failed requests and status codes to `Error` |
//!
//! The user's page is `docs/backends/consul.md`.

mod acquire;
mod admin;
mod claims;
mod config;
mod connection;
mod decide;
mod doctor;
mod downgrade;
mod enqueue;
mod error;
mod grant_request;
mod layout;
mod release;
mod renew;
mod session;
mod snapshot;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;
use claims::ClientClaims;
use config::Config;
use connection::api::Api;
use connection::http::HttpClient;
use session::SessionsByTtl;

/// The shortest ttl that Consul allows unless its servers are configured otherwise.
const DEFAULT_MIN_TTL: Duration = Duration::from_secs(10);
/// How many locks are watched for their loss. Each watch is a connection, and Consul accepts 200
/// from one address.
const WATCHES_MAX: usize = 16;

/// Opens a URL, and checks that there is a leader and that it accepts the token.
pub(crate) async fn open(url: Url) -> Result<Consul> {
    let config = Config::from_url(url)?;
    let http = HttpClient::new(&config)?;
    let api = Arc::new(Api { http, node: config.node });
    api.read("tenure").await?;
    let min_ttl = match config.min_ttl {
        Some(min) => min,
        // Without the right to read the agent, Consul's own default applies.
        None => {
            let agent = api.get_json("/v1/agent/self").await.ok();
            agent.as_ref().and_then(doctor::min_ttl).unwrap_or(DEFAULT_MIN_TTL)
        }
    };
    let context = Context {
        api,
        sessions: Arc::default(),
        claims: ClientClaims::default(),
        lock_delay: config.lock_delay,
        min_ttl,
        watches: Semaphore::new(WATCHES_MAX),
    };
    Ok(Consul { context })
}

/// Locks in Consul.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::{Config, backends::Consul};
///
/// let consul = Consul::open("consul://127.0.0.1:8500").await?;
/// let locks = Config::default().ttl(Duration::from_secs(15)).with_backend(consul);
/// locks.lock("orders/42").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub struct Consul {
    context: Context,
}

/// What the operations of the backend work with.
struct Context {
    api: Arc<Api>,
    sessions: Arc<SessionsByTtl>,
    claims: ClientClaims,
    lock_delay: Duration,
    min_ttl: Duration,
    /// How many more locks may be watched for their loss.
    watches: Semaphore,
}

impl Consul {
    /// Opens the backend of a URL, to put layers around it. See [`Config`](crate::Config) for
    /// clients.
    ///
    /// # Errors
    ///
    /// `Invalid` for a wrong URL, `Unavailable` if there is no leader, `Denied` if the token is not
    /// accepted.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Consul> {
        open(Url::parse(url)?).await
    }

    /// The checks to put into a Consul transaction of your own, so that it takes effect only if
    /// this grant is still held at that very moment: the strongest fence there is. `None` if the
    /// grant is not held now.
    ///
    /// For a guard of a client over this handle (in an `Arc`) the key is
    /// [`Guard::key`](crate::Guard::key), whatever prefix the client puts before it. For a grant of
    /// another process it is the full key, with the prefix.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no response, `Denied` if the token has no right to read.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        admin::condition(&self.context.api, &self.context.claims, key, token).await
    }

    /// How many requests were sent through this handle, to measure what a lock costs the servers.
    pub fn requests(&self) -> u64 {
        self.context.api.http.sent()
    }
}

/// What is true in Consul as long as a grant is held: this session holds this key since that index.
///
/// Check both, by the verbs `check-session` (with `key` and `session`) and `check-index` (with
/// `key` and `index`): the locks of one client share a session, so that the session alone would
/// also admit an earlier grant of the same client.
///
/// # Examples
///
/// ```no_run
/// # use tenure::backends::Consul;
/// # async fn example(consul: Consul, guard: tenure::Guard) -> tenure::Result<()> {
/// if let Some(condition) = consul.condition(guard.key(), guard.token()).await? {
///     // PUT /v1/txn: [{"KV": {"Verb": "check-session", …}},
///     //               {"KV": {"Verb": "check-index", …}}, …]
///     println!("{} {} {}", condition.key, condition.session, condition.index);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Condition {
    /// The name of the key in Consul.
    pub key: String,
    /// The session that holds the key.
    pub session: String,
    /// The index of the write that acquired the lock: the number of the grant's token, divided by
    /// 1024. Of a lock that was downgraded, the index of the downgrade.
    pub index: u64,
}

impl fmt::Debug for Consul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consul://{:?}", self.context.api.http)
    }
}

#[async_trait]
impl Backend for Consul {
    fn info(&self) -> Info {
        let min_ttl = self.context.min_ttl;
        Info { min_ttl, max_expiry_ttls: 2, modes: Modes::ALL, ..Info::new("consul") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        acquire::try_acquire(&self.context, claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(&self.context, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(&self.context, claim.owner, claim.unconfirmed).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(&self.context, claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(&self.context, claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        admin::list(&self.context.api, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(&self.context.api, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.context).await
    }
}

/// Runs the examples of the user's page as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/consul.md")]
struct ConsulPage;
