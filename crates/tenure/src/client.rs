//! A client: connections, keeper and janitor of one server, shared by all its locks.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Info, Note, Scope};
use crate::claim::{Holding, LostReason};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::janitor::Janitor;
use crate::key::Key;
use crate::lock::Lock;
use crate::shared::{Shared, User};

/// The way to one server. Cheap to clone; all clones share connections and background work. When
/// the last handle of it goes (clients, locks, guards), what was dropped is given back first.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::time::Duration;
///
/// let locks = tenure::connect("memory:").await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// drop(guard);
/// locks.flush().await?;
/// locks.shutdown(Duration::from_secs(5)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Client {
    user: Arc<User>,
    defaults: Arc<Defaults>,
    prefix: Arc<str>,
}

/// What the locks of a client start from.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Duration,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) outage: Option<Duration>,
    pub(crate) note: Note,
}

impl Client {
    pub(crate) fn build(shared: Shared, defaults: Defaults, prefix: &str) -> Client {
        let user = Arc::new(User { shared: Arc::new(shared) });
        Client { user, defaults: Arc::new(defaults), prefix: prefix.into() }
    }

    /// The lock with this name. A wrong name is reported by the lock's first verb.
    pub fn lock<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Lock {
        let key = key.try_into().map_err(Into::into);
        Lock::new(self.clone(), key, &self.defaults)
    }

    /// The same client with a prefix before every key, hidden again in its answers.
    ///
    /// # Errors
    ///
    /// `Invalid` if the prefix is not fit to begin a key.
    pub fn prefixed<K: TryInto<Key, Error: Into<Error>>>(&self, prefix: K) -> Result<Client> {
        let prefix = prefix.try_into().map_err(Into::into)?.prefixed(&self.prefix)?;
        Ok(Client { prefix: prefix.as_str().into(), ..self.clone() })
    }

    /// What the server can promise.
    pub fn info(&self) -> Info {
        self.shared().info.clone()
    }

    /// Who holds what, for people: every held key that starts so.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Holding>>> + Send + use<> {
        let (client, prefix) = (self.clone(), format!("{}{prefix}", self.prefix));
        async move {
            let backend = client.shared().backend.clone();
            let list = async move { backend.list(Scope::Prefix(&prefix)).await };
            Ok(client.hide_prefix(client.shared().look(list).await?))
        }
    }

    /// Examines the server for what could break a promise, for people. See `tenure doctor`.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like, if not even that can be asked.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn examine(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send + use<> {
        let shared = self.shared().clone();
        async move {
            let backend = shared.backend.clone();
            shared.look(async move { backend.examine().await }).await
        }
    }

    /// Returns when everything that was dropped so far has been given back.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has not confirmed a release by the time that its lease should be
    /// over; the message names the key. The release is still repeated, for as long as the client
    /// lives.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn flush(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let shared = self.shared().clone();
        async move {
            let home = shared.clone();
            home.home.run(async move { shared.janitor.flush(&shared).await }).await?
        }
    }

    /// Ends this client in good order: no new claims, holders may finish for as long as `grace`,
    /// then everything is released, and only then does renewing stop. What was dropped before, and
    /// what ends by this, is waited for too: for what is left of `grace`, and at least for as long
    /// as one response may take.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server did not confirm a release; the message names the key. That lock
    /// ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** The client stays closed; what is still held goes on until it is released.
    pub fn shutdown(&self, grace: Duration) -> impl Future<Output = Result<()>> + Send + use<> {
        let user = self.user.clone();
        async move {
            let shared = user.shared.clone();
            shared.close();
            let ending = shared.clone();
            let result = shared.home.run(async move { end(&ending, grace).await }).await?;
            shared.keeper.stop();
            result
        }
    }

    pub(crate) fn user(&self) -> &Arc<User> {
        &self.user
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.user.shared
    }

    pub(crate) fn defaults(&self) -> &Defaults {
        &self.defaults
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn hide_prefix(&self, holdings: Vec<Holding>) -> Vec<Holding> {
        let shown = |mut holding: Holding| {
            holding.key = holding.key.strip(&self.prefix)?;
            Some(holding)
        };
        holdings.into_iter().filter_map(shown).collect()
    }
}

/// Lets holders finish, then releases what they left.
async fn end(shared: &Arc<Shared>, grace: Duration) -> Result<()> {
    let until = shared.clock.now() + grace;
    tokio::select! {
        () = shared.keeper.until_empty() => {}
        () = shared.clock.sleep(grace) => {}
    }
    let releases: Vec<_> = shared
        .keeper
        .all()
        .into_iter()
        .filter_map(|held| {
            let pending = shared.janitor.begin(held.key.clone());
            held.finish(LostReason::Shutdown).ok()?;
            shared.keeper.forget(&held);
            Some(Janitor::release(shared, held.claim.clone(), pending))
        })
        .collect();
    let longest = Shared::answer_limit(shared.info.max_ttl);
    // Every one of them is tried, whatever becomes of the others.
    futures_util::future::join_all(releases).await;
    let until = until.max(shared.clock.now() + longest);
    tokio::select! {
        flushed = shared.janitor.flush(shared) => flushed,
        () = shared.clock.sleep_until(until) => shared.janitor.unconfirmed(shared.info.name),
    }
}
