//! SQLite: locks between the processes of one machine, in a file. There is no server.
//!
//! - `config`: what the URL says
//! - `store_path`: finds or creates the file, and checks that it may be used
//! - `mounts`: checks of the file system below the file
//! - `trust`: which folders root may use a store in
//! - `boot`: the clock of leases, and the id of the boot
//! - `connection`: the thread that owns the open store, and its transactions
//! - `layout`: the tables and their rows
//! - `transaction`: what acquire, renew, release and evict share: handoff, tokens, wake-ups
//! - `holders`: several holders of one key, and the marker before them
//! - `acquire`, `downgrade`, `renew`, `release`: the lock operations
//! - `wait`: `until_free` and `until_lost`
//! - `wake_socket`: wake-ups between processes
//! - `liveness`: sessions, and the file that shows that one lives
//! - `session_folder`: the folder of liveness files and wake sockets
//! - `admin`: list and evict
//! - `doctor`: checks for operators
//! - `error`: errors of SQLite and of the file system
//! - `write_lock`: which process blocks the file, for error messages
//!
//! The user's page is `docs/backends/sqlite.md`.

mod acquire;
mod admin;
mod boot;
mod config;
mod connection;
mod doctor;
mod downgrade;
mod error;
mod holders;
mod layout;
mod liveness;
mod mounts;
mod release;
mod renew;
mod session_folder;
mod store_path;
#[cfg(test)]
mod tests;
mod transaction;
mod trust;
mod wait;
mod wake_socket;
mod write_lock;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Attempt, Backend, Claim, Grant, Holding, Info, Modes, Reach, Scope};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::support::url::Url;
use crate::token::FencingToken;
use config::Config;
use connection::store::OpenStore;
use connection::thread::StoreHandle;
use wait::WatchFor;

/// A change takes well under a millisecond; a machine may be busy for some tens of them.
const MIN_TTL: Duration = Duration::from_millis(50);

/// Opens `sqlite:`, the default store of this user, or `sqlite:PATH`.
pub(crate) async fn open(url: Url) -> Result<Sqlite> {
    let config = Config::from_url(url)?;
    let (handle, path) = StoreHandle::start(config, |store| store.path.file.clone()).await?;
    Ok(Sqlite { opened: Arc::new(Opened { handle, path }) })
}

/// Locks between the processes of one machine, in a file that survives crashes.
///
/// Clones share one session. When the last one is dropped, all locks of the session are released.
///
/// # Examples
///
/// ```
/// # type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result {
/// use std::time::Duration;
/// use tenure::backend::{Backend, Claim, Owner};
/// use tenure::{Attempt, Key, backends::Sqlite};
///
/// let folder = tempfile::tempdir()?;
/// let url = format!("sqlite://{}/locks.db", folder.path().display());
/// let (one, two) = (Sqlite::open(&url).await?, Sqlite::open(&url).await?);
///
/// let claim = |key: &str| -> tenure::Result<Claim> {
///     Ok(Claim::new(Key::new(key)?, Owner::random(), Duration::from_secs(30)))
/// };
/// let (mine, yours) = (claim("orders/42")?, claim("orders/42")?);
/// assert!(matches!(one.try_acquire(&mine).await?, Attempt::Granted(_)));
/// assert!(matches!(two.try_acquire(&yours).await?, Attempt::Busy(_)));
/// assert!(one.release(&mine).await?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Sqlite {
    opened: Arc<Opened>,
}

struct Opened {
    handle: StoreHandle,
    path: PathBuf,
}

impl Sqlite {
    /// Opens the store that a URL names: `sqlite:`, `sqlite:rel/x.db` or `sqlite:///abs/x.db`.
    ///
    /// # Errors
    ///
    /// `Invalid` if the URL is wrong or the file is not a store; `Denied` if it may not be written;
    /// `Unsupported` on a network file system; `Unavailable` if the file is damaged or the disk
    /// full.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn open(url: &str) -> Result<Sqlite> {
        open(Url::parse(url)?).await
    }

    /// The path of the file, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    fn store(&self) -> &StoreHandle {
        &self.opened.handle
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sqlite:{}", self.opened.path.display())
    }
}

#[async_trait]
impl Backend for Sqlite {
    fn info(&self) -> Info {
        Info {
            reach: Reach::Machine,
            min_ttl: MIN_TTL,
            busy_leaves_nothing: true,
            modes: Modes::ALL,
            ..Info::new("sqlite")
        }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let claim = claim.clone();
        let attempt = move |store: &mut OpenStore| match claim.token {
            Some(token) => downgrade::downgrade(store, &claim, token).map(Attempt::Granted),
            None => acquire::try_acquire(store, &claim),
        };
        self.store().execute(attempt).await?
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let count = claims.len();
        let claims = claims.to_vec();
        match self.store().execute(move |store| renew::renew(store, &claims)).await {
            Ok(outcomes) => outcomes,
            Err(error) => vec![Err(error); count],
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let claim = claim.clone();
        self.store().execute(move |store| release::release(store, &claim)).await?
    }

    /// Never returns a grant: the next request confirms an offer, and returns its lease.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.store().wait(claim, WatchFor::Free { queued: claim.waits }).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        self.store().wait(claim, WatchFor::Lost).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        match scope {
            Scope::Key(key) => {
                let key = key.clone();
                self.store().execute(move |store| admin::list(store, Scope::Key(&key))).await?
            }
            Scope::Prefix(prefix) => {
                let prefix = prefix.to_owned();
                self.store()
                    .execute(move |store| admin::list(store, Scope::Prefix(&prefix)))
                    .await?
            }
        }
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let key = key.clone();
        self.store().execute(move |store| admin::evict(store, &key, token)).await?
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        self.store().execute(doctor::doctor).await?
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/sqlite.md")]
struct Page;
