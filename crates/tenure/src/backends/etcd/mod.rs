//! etcd: locks between machines, in the layout of etcd's own lock package.
//!
//! | file | job |
//! |---|---|
//! | `mod.rs` | the public type, and the context that all operations share |
//! | `config.rs` | reads the URL |
//! | `connection/` | retries and failover between members; `grpc.rs`: one attempt; `login.rs`: tokens; `wire.rs`: HTTP/2 |
//! | `layout/` | keys at the server and the requests on them; `queue.rs`: modes, and who holds; `messages.rs`: etcd's API |
//! | `session.rs` | the client's leases, and the task that keeps them alive |
//! | `claims.rs` | what this client has at the server |
//! | `acquire/` | the queue: try_acquire; `position.rs`: who holds; `newcomer.rs`: claims that do not wait; `downgrade.rs` |
//! | `renew.rs` | renew |
//! | `release.rs` | release, tombstones, and the task that releases abandoned claims |
//! | `wait/` | until_free, until_lost; `watches.rs`: the task that watches keys; `departures.rs`: for permits |
//! | `admin.rs` | list, evict, condition |
//! | `doctor.rs` | health checks |
//! | `error.rs` | what the server's errors mean |
//!
//! The user's page is `docs/backends/etcd.md`. To follow one lock, read `acquire/mod.rs` first: its
//! header says what is stored and why that is safe.

mod acquire;
mod admin;
mod claims;
mod config;
mod connection;
mod doctor;
mod error;
mod layout;
mod release;
mod renew;
mod session;
mod wait;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join;
use tokio::task::AbortHandle;

use self::claims::ClaimTable;
use self::config::Config;
use self::connection::{Connection, check_login};
use self::layout::Space;
use self::session::Sessions;
use self::wait::{Departures, Watches};
use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;

/// How long opening may take: long enough for an election.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// Opens `etcd://host:port,…/space`.
pub(crate) async fn open(url: Url) -> Result<Etcd> {
    Ok(Etcd { context: Context::open(url).await? })
}

/// Locks in etcd. Clones share one connection and its leases.
///
/// # Examples
///
/// ```no_run
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::{Client, backends::Etcd};
///
/// let etcd = Etcd::open("etcd://10.0.0.1,10.0.0.2,10.0.0.3").await?;
/// let locks = Client::new(etcd.clone());
/// let guard = locks.lock("nightly").acquire().await?;
/// // In an etcd transaction of your own: IF create_revision(key) = create_revision THEN …
/// let condition = etcd.condition(guard.key(), guard.token()).await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Etcd {
    context: Arc<Context>,
}

impl Etcd {
    /// Connects: `etcd://user:password@host:port,host:port/space`.
    ///
    /// Its tasks run on a thread of their own, and end with the last clone.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Denied` if the server refuses the login, `Unavailable` if no
    /// server responds.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Etcd>> {
        let url = Url::parse(url)?;
        Hosted::open(async move { open(url).await.map(Arc::new) }).await
    }

    /// The comparison to put into an etcd transaction of your own, so that it takes effect only if
    /// this grant is still held at that very moment: the strongest fence there is. `None` if the
    /// grant is not held now.
    ///
    /// For a guard of a client over this handle, or over a clone of it, the key is
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
        admin::condition(&self.context, key, token).await
    }
}

impl Hosted<Etcd> {
    /// [`Etcd::condition`], executed on the backend's own thread.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub async fn condition(&self, key: &Key, token: FencingToken) -> Result<Option<Condition>> {
        let key = key.clone();
        self.call(move |backend| async move { backend.condition(&key, token).await }).await
    }
}

/// What is true in etcd as long as a grant is held: that this key has this create revision.
///
/// # Examples
///
/// ```no_run
/// # async fn example(etcd: tenure::backends::Etcd, guard: tenure::Guard) -> tenure::Result<()> {
/// if let Some(condition) = etcd.condition(guard.key(), guard.token()).await? {
///     // With the client of your choice: Compare::create_revision(key, Equal, create_revision).
///     println!("{:?} {}", condition.key, condition.create_revision);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Condition {
    /// The key at the server.
    pub key: Vec<u8>,
    /// Its create revision: the grant's token divided by 1024.
    pub create_revision: i64,
}

/// What the operations of this backend work on.
#[derive(Debug)]
struct Context {
    connection: Arc<Connection>,
    space: Space,
    sessions: Arc<Sessions>,
    claims: ClaimTable,
    watches: Watches,
    departures: Departures,
    /// The shortest lease that the servers grant.
    min_ttl: Duration,
    /// They end with the context.
    tasks: Vec<AbortHandle>,
}

impl Context {
    /// Connects, proves that the servers respond and accept the login, and starts the tasks.
    async fn open(url: Url) -> Result<Arc<Context>> {
        let Config { hosts, space, login, tls } = Config::from_url(url)?;
        let connection = Arc::new(Connection::new(&hosts, login, tls)?);
        // The lease is not used, and ends by itself: that is one proposal less than to revoke it.
        // Servers grant it to every client, so that only the read proves the login.
        let shortest = session::grant(&connection, 1, OPEN_LIMIT);
        let (shortest, login) = join(shortest, check_login(&connection, OPEN_LIMIT)).await;
        login?;
        let min_ttl = Duration::from_secs(u64::try_from(shortest?.ttl).unwrap_or(1));
        let sessions = Arc::new(Sessions::default());
        let keep_alive = tokio::spawn(session::keep_alive(connection.clone(), sessions.clone()));
        let (watches, watch_task) = Watches::new(connection.clone());
        let watch_task = tokio::spawn(watch_task);
        Ok(Arc::new_cyclic(|context: &Weak<Context>| {
            let sweep = tokio::spawn(release::sweep(context.clone()));
            let tasks = [keep_alive, watch_task, sweep].map(|task| task.abort_handle()).into();
            let claims = ClaimTable::default();
            let departures = Departures::default();
            Context { connection, space, sessions, claims, watches, departures, min_ttl, tasks }
        }))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.connection.fmt(f)
    }
}

#[async_trait]
impl Backend for Etcd {
    fn info(&self) -> Info {
        let modes = Modes::ALL;
        Info { min_ttl: self.context.min_ttl, modes, ..Info::new("etcd") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        match claim.token {
            Some(_) => acquire::downgrade(&self.context, claim).await.map(Attempt::Granted),
            None => acquire::try_acquire(&self.context, claim).await,
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        renew::renew(&self.context, claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        release::release(&self.context, claim).await
    }

    /// Never carries a grant: the next attempt proves the claim, by one read.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        wait::until_free(&self.context, claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        wait::until_lost(&self.context, claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        admin::list(&self.context.connection, &self.context.space, scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        admin::evict(&self.context.connection, &self.context.space, key, token).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        doctor::doctor(&self.context).await
    }
}
