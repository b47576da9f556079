//! etcd: locks between machines, in the layout of etcd's own lock package.
//!
//! `wire` and `login` are the way to the servers, `proto` and `ask` what is said there; `session`
//! and `pulse` keep leases alive, `watch` wakes; `store` is the open client, `take`, `keep`,
//! `hints` and `people` its verbs. The user's page is `docs/backends/etcd.md`.

mod ask;
mod examine;
mod fault;
mod hints;
mod keep;
mod login;
mod names;
mod people;
mod proto;
mod pulse;
mod session;
mod store;
mod table;
mod take;
mod watch;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Backend, Claim, Grant, Info, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::Result;
use crate::finding::Finding;
use crate::hosted::Hosted;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use store::Store;

/// Opens `etcd://host:port,…/space`.
pub(crate) async fn open(options: Options) -> Result<Etcd> {
    Ok(Etcd { store: Store::open(options).await? })
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
    store: Arc<Store>,
}

impl Etcd {
    /// Connects: `etcd://user:password@host:port,host:port/space`.
    ///
    /// Its tasks run on a thread of its own, and end with the last clone.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong, `Denied` if the server refuses the login, `Unavailable` if no
    /// server answers.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Hosted<Etcd>> {
        let options = Options::parse(url)?;
        Hosted::open(async move { open(options).await.map(Arc::new) }).await
    }

    /// The comparison to put into an etcd transaction of your own, so that it takes effect only if
    /// this grant is still held at that very moment: the strongest fence there is. `None` if it is
    /// not held now.
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
        self.store.condition(key, token).await
    }
}

impl Hosted<Etcd> {
    /// [`Etcd::condition`], asked for on the backend's own thread.
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

/// What is true in etcd as long as a grant is held: this key has this create revision.
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
    /// Its create revision: the number of the grant's token.
    pub create_revision: i64,
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.wire.fmt(f)
    }
}

#[async_trait]
impl Backend for Etcd {
    fn info(&self) -> Info {
        Info { min_ttl: self.store.min_ttl, ..Info::new("etcd") }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        self.store.take(claim).await
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        self.store.renew(claims).await
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.store.give_back(claim).await
    }

    /// Never carries a grant: a claim is proven by the next ask, which is one read.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.store.until_free(claim).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        self.store.until_lost(claim).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        self.store.list(scope).await
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        self.store.evict(key, token).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.store.examine().await
    }
}
