//! ZooKeeper, with Curator's layout: clients of Curator and of tenure exclude one another.
//!
//! | file | job |
//! |---|---|
//! | `config` | from a URL to `Config` |
//! | `connection/` | the sessions of a client, and the limits of calls |
//! | `connection/session` | one session, its lease and its proofs |
//! | `connection/connect` | opens, resumes and closes sessions |
//! | `connection/failover` | moves a session away from a server that does not respond |
//! | `layout/` | paths and names of nodes, and their order |
//! | `layout/modes` | the mode of a claim in the name of its node |
//! | `layout/node_data` | the data of a node |
//! | `claims` | what is known of the claims of a session |
//! | `nodes` | reads and deletes of nodes that several operations share |
//! | `acquire`, `renew`, `release` | the operations, by the layout of the URL; batches and sweeps |
//! | `queue/` | `layout=queue`: acquire, renew, release, wait as in Curator, in all modes |
//! | `queue/order` | the rule of modes, by the names of the nodes |
//! | `queue/downgrade` | makes an exclusive holder shared |
//! | `ephemeral/` | `layout=ephemeral`: acquire, renew, release with one node per lock |
//! | `wait` | `until_free` and `until_lost`, by watches |
//! | `admin` | list, evict, condition |
//! | `doctor` | health checks |
//! | `error` | from the client library's errors to `Error` |
//!
//! The user's page is `docs/backends/zookeeper.md`.

mod acquire;
mod admin;
mod claims;
mod config;
mod connection;
mod doctor;
mod ephemeral;
mod error;
mod layout;
mod nodes;
mod queue;
mod release;
mod renew;
mod wait;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Order, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;
use config::{Config, Layout};
use connection::{CallKind, SessionPool};

/// Opens `zk://hosts/chroot`.
pub(crate) async fn open(url: Url) -> Result<Zookeeper> {
    let sessions = Arc::new(SessionPool::open(Config::from_url(url)?).await?);
    tokio::spawn(release::sweep(Arc::downgrade(&sessions)));
    Ok(Zookeeper { sessions })
}

/// Locks in ZooKeeper, which exclude those of Curator's `InterProcessMutex` on the same path.
///
/// Clones share their sessions. When the last clone is dropped, the sessions end.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
/// use tenure::backend::{Backend, Claim, Owner};
/// use tenure::{Attempt, Key, backends::Zookeeper};
///
/// let zookeeper = Zookeeper::open("zk://10.0.0.1,10.0.0.2,10.0.0.3/locks").await?;
/// let claim = Claim::new(Key::new("orders/42")?, Owner::random(), Duration::from_secs(30));
/// if let Attempt::Granted(grant) = zookeeper.try_acquire(&claim).await? {
///     println!("token {}", grant.token);
///     zookeeper.release(&claim).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Zookeeper {
    sessions: Arc<SessionPool>,
}

impl Zookeeper {
    /// Connects to the servers that a URL names: `zk://h1,h2,h3/chroot`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Unavailable` if no server responds, `Denied` if the login is
    /// refused.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Zookeeper>> {
        let url = Url::parse(url)?;
        Hosted::open(async move { open(url).await.map(Arc::new) }).await
    }

    /// The `check` to put into a ZooKeeper transaction of your own, so that it takes effect only if
    /// this grant is still held at that very moment: the strongest fence there is. `None` if the
    /// grant is not held now.
    ///
    /// For a guard of a client over this handle, or over a clone of it, the key is
    /// [`Guard::key`](crate::Guard::key), whatever prefix the client puts before it. For a grant of
    /// another process it is the full key, with the prefix.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no response, `Denied` if the login has no right to read.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        let session = self.sessions.alive().await?;
        // The guard of a client with a prefix has the key without it.
        let sessions = self.sessions.all();
        let full_key = sessions.iter().find_map(|session| session.claims.full_key(key, token));
        let key = full_key.as_ref().unwrap_or(key);
        let requests = admin::condition(&session, self.layout(), key, token);
        self.sessions.call(&session, CallKind::Admin, requests).await
    }

    fn layout(&self) -> Layout {
        self.sessions.config.layout
    }
}

impl Hosted<Zookeeper> {
    /// [`Zookeeper::condition`], on the backend's own thread.
    ///
    /// # Errors
    ///
    /// `Unavailable` if there is no response, `Denied` if the login has no right to read.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        let key = key.clone();
        self.call(move |backend| async move { backend.condition(&key, token).await }).await
    }
}

/// What is true in ZooKeeper as long as a grant is held: this node exists, with this version.
///
/// # Examples
///
/// ```no_run
/// # use tenure::backends::Zookeeper;
/// # async fn example(zookeeper: Zookeeper, guard: tenure::Guard) -> tenure::Result<()> {
/// if let Some(condition) = zookeeper.condition(guard.key(), guard.token()).await? {
///     // With the client of your choice: multi([check(path, version), setData(…)]).
///     println!("{} {}", condition.path, condition.version);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Condition {
    /// The full path of the holder's node, chroot included. No other grant ever has it.
    pub path: String,
    /// The version of its data.
    pub version: i32,
}

impl fmt::Debug for Zookeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.sessions.config;
        write!(f, "zk://{}{}", config.host_list(), config.tree.root())
    }
}

#[async_trait]
impl Backend for Zookeeper {
    fn info(&self) -> Info {
        let mut info = Info::new("zookeeper");
        // The server keeps the nodes of a crashed client for so long, whatever ttl it requested.
        info.min_ttl = self.sessions.main().timeout();
        // The session of a fixed lease is half as long again as the lease.
        info.max_expiry_ttls = 2;
        match self.layout() {
            Layout::Queue => info.modes = Modes::ALL,
            // Its one node has no room for a second holder.
            Layout::Ephemeral => info.order = Order::Any,
        }
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        acquire::try_acquire(&self.sessions, claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(&self.sessions, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(&self.sessions, claim).await
    }

    /// Never returns a grant: after waiting, the next request proves node and session by a
    /// majority.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(&self.sessions.of(claim), self.layout(), claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(&self.sessions.of(claim), claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let session = self.sessions.alive().await?;
        let requests = admin::list(&session, self.layout(), scope);
        self.sessions.call(&session, CallKind::Admin, requests).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let session = self.sessions.alive().await?;
        let requests = admin::evict(&session, self.layout(), key, token);
        self.sessions.call(&session, CallKind::Admin, requests).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        let session = self.sessions.alive().await?;
        let requests = doctor::doctor(&self.sessions.config, &session);
        self.sessions.call(&session, CallKind::Admin, requests).await
    }
}

/// Runs the examples of the user's page as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/zookeeper.md")]
struct ZookeeperPage;
