//! Consul: sessions and keys in the layout of its own `api.Lock`, so that Go services, `consul
//! lock` and tenure exclude one another.
//!
//! `http` and `api` speak to the agents, `names` says what stands where, `session` keeps sessions
//! alive; `take`, `renew` and `leave` decide, on what `view` sees and `table` remembers; `wait`
//! wakes who waits. The user's page is `docs/backends/consul.md`.

mod api;
mod base64;
mod http;
mod leave;
mod names;
mod people;
mod renew;
mod session;
mod settings;
mod table;
mod take;
mod view;
mod wait;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::backend::{Backend, Claim, Grant, Info, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use api::Api;
use http::Http;
use session::Sessions;
use settings::Settings;
use table::Table;

/// Opens a URL and proves once that a leader answers and knows the token.
pub(crate) async fn open(options: Options) -> Result<Consul> {
    let mut settings = Settings::read(options)?;
    let api = Api { http: Http::new(&settings)?, node: settings.node.take() };
    api.read("tenure").await?;
    let min_ttl = match settings.min_ttl {
        Some(min) => min,
        // Without the right to read the agent, Consul's own default holds.
        None => {
            let agent = api.ask("/v1/agent/self").await.ok();
            agent.as_ref().and_then(people::min_ttl).unwrap_or(DEFAULT_MIN_TTL)
        }
    };
    Ok(Consul {
        inner: Inner {
            api,
            sessions: Sessions::default(),
            table: Table::default(),
            lock_delay: settings.lock_delay,
            min_ttl,
            watches: Semaphore::new(WATCHES_MAX),
        },
    })
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
/// let locks = Config::default().ttl(Duration::from_secs(15)).over(consul);
/// locks.lock("orders/42").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
pub struct Consul {
    inner: Inner,
}

/// What the parts of the backend work on.
struct Inner {
    api: Api,
    sessions: Sessions,
    table: Table,
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
    /// known.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Consul> {
        open(Options::parse(url)?).await
    }

    /// What to put into a Consul transaction of your own, so that it takes effect only if this
    /// grant is still held at that very moment: the strongest fence there is. `None` if it is not
    /// held now.
    ///
    /// For a guard of a client over this handle (in an `Arc`) the key is
    /// [`Guard::key`](crate::Guard::key), whatever prefix the client puts before it. For a grant of
    /// another process it is the whole key, with the prefix.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        self.inner.condition(key, token).await
    }

    /// How many requests were sent through this handle: what a lock costs the servers.
    pub fn requests(&self) -> u64 {
        self.inner.api.http.sent()
    }
}

/// What is true in Consul as long as a grant is held: this session holds this key since that index.
///
/// It takes both verbs, `check-session` with `key` and `session`, and `check-index` with `key` and
/// `index`: the locks of one client share a session, so that the session alone would also let in
/// the same client's grant of before.
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
    /// The key in Consul.
    pub key: String,
    /// The session that holds it.
    pub session: String,
    /// The index at which it took it: the number of the grant's token.
    pub index: u64,
}

impl fmt::Debug for Consul {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "consul://{:?}", self.inner.api.http)
    }
}

#[async_trait]
impl Backend for Consul {
    fn info(&self) -> Info {
        Info { min_ttl: self.inner.min_ttl, freed_after: 2, ..Info::new("consul") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.inner.take(claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.inner.leave(claim.owner, claim.doubtful).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.inner.until_free(claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        self.inner.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.inner.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.inner.evict(key, token).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }
}

/// What Consul allows unless its servers say otherwise.
const DEFAULT_MIN_TTL: Duration = Duration::from_secs(10);
/// Each watch is a connection, and Consul allows 200 from one address.
const WATCHES_MAX: usize = 16;

/// The examples of the user's page run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/consul.md")]
struct Page;
