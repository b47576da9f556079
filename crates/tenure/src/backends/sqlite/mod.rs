//! The embedded store: locks between the processes of one machine, in a file.
//!
//! `place` finds the file, `trust` and `mounts` say whether it may be used, `schema` opens it,
//! `store` is the open store on its `thread`; `verbs` and `change` decide who holds what; `beacon`
//! tells the dead from the living, `bell` and `wait` wake who waits, both in the folder `sessions`.
//! The user's page is `docs/backends/sqlite.md`.

mod beacon;
mod bell;
mod boot;
mod change;
mod culprit;
mod examine;
mod fault;
mod mounts;
mod place;
mod row;
mod schema;
mod sessions;
mod store;
#[cfg(test)]
mod tests;
mod thread;
mod trust;
mod verbs;
mod wait;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::backend::{Backend, Claim, Grant, Info, Reach, Scope};
use crate::claim::{Attempt, Holding};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::options::Options;
use crate::token::FencingToken;
use place::Settings;
use store::Store;
use thread::Handle;
use wait::Wish;

/// Opens `sqlite:`, the default store of this user, or `sqlite:PATH`.
pub(crate) async fn open(options: Options) -> Result<Sqlite> {
    let settings = Settings::take(options)?;
    let (handle, path) = Handle::start(settings, |store| store.place.file.clone()).await?;
    Ok(Sqlite { opened: Arc::new(Opened { handle, path }) })
}

/// Locks between the processes of one machine, in a file that survives crashes.
///
/// Clones share one session. When the last is dropped, whatever it still holds is released.
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
    handle: Handle,
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
        open(Options::parse(url)?).await
    }

    /// The file, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.opened.path
    }

    fn handle(&self) -> &Handle {
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
            ..Info::new("sqlite")
        }
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let claim = claim.clone();
        self.handle().ask(move |store| store.take(&claim)).await?
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let (count, claims) = (claims.len(), claims.to_vec());
        match self.handle().ask(move |store| store.renew(&claims)).await {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); count],
        }
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        let claim = claim.clone();
        self.handle().ask(move |store| store.release(&claim)).await?
    }

    /// Never carries a grant: an offer is confirmed by the next ask, which also tells its lease.
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.handle().watch(claim, Wish::Free { queued: claim.waits }).await;
        None
    }

    async fn until_lost(&self, claim: &Claim) {
        self.handle().watch(claim, Wish::Lost).await;
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        match scope {
            Scope::Key(key) => {
                let key = key.clone();
                self.handle().ask(move |store| store.list(Scope::Key(&key))).await?
            }
            Scope::Prefix(prefix) => {
                let prefix = prefix.to_owned();
                self.handle().ask(move |store| store.list(Scope::Prefix(&prefix))).await?
            }
        }
    }

    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let key = key.clone();
        self.handle().ask(move |store| store.evict(&key, token)).await?
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.handle().ask(Store::examine).await?
    }
}

/// The examples of the user's page are run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../../../docs/backends/sqlite.md")]
struct Page;

/// A change takes well under a millisecond; a machine may be busy for some tens of them.
const MIN_TTL: Duration = Duration::from_millis(50);
