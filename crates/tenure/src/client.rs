//! A client: connections, renewer and releaser of one server, shared by all its locks.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use crate::backend::{HolderInfo, Holding, Info, LostReason, Scope};
use crate::election::Election;
use crate::engine::releaser::{self, Releaser};
use crate::engine::{ClientInner, ClientRef};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::key::Key;
use crate::lock::Lock;
use crate::lock_set::LockSet;
use crate::semaphore::Semaphore;

/// A client of one server. Cheap to clone; all clones share connections and background tasks. When
/// the last of its handles (clients, locks, guards) is dropped, the client first waits for the
/// releases of dropped guards: for as long as the server confirms them, ten seconds at most, and
/// for one second if it confirms none.
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
    client_ref: Arc<ClientRef>,
    defaults: Arc<Defaults>,
    prefix: Arc<str>,
}

/// Settings that every lock of a client starts with.
#[derive(Debug)]
pub(crate) struct Defaults {
    pub(crate) ttl: Duration,
    pub(crate) renew_every: Option<Duration>,
    pub(crate) outage: Option<Duration>,
    pub(crate) holder_info: HolderInfo,
}

impl Client {
    pub(crate) fn build(inner: ClientInner, defaults: Defaults, prefix: &str) -> Client {
        let client_ref = Arc::new(ClientRef { inner: Arc::new(inner) });
        Client { client_ref, defaults: Arc::new(defaults), prefix: prefix.into() }
    }

    /// The lock with this key. An invalid key is reported by the first method that is awaited.
    #[doc(alias("mutex", "get_lock"))]
    pub fn lock<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Lock {
        let key = key.try_into().map_err(Into::into);
        Lock::new(self.clone(), key, &self.defaults)
    }

    /// The semaphore with this key: at most `limit` permits are out together, over all clients.
    #[doc(alias("permits", "rate", "concurrency"))]
    pub fn semaphore<K: TryInto<Key, Error: Into<Error>>>(&self, key: K, limit: u32) -> Semaphore {
        Semaphore::new(self.lock(key), limit)
    }

    /// The set of the locks with these keys: they are acquired together, all of them or none.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// let locks = tenure::connect("memory:").await?;
    /// let both = locks.lock_all(["accounts/7", "accounts/3"]).acquire().await?;
    /// let moved = both.while_held(async { both.token("accounts/3") }).await??;
    /// assert_eq!(moved, both.token("accounts/3")?);
    /// both.release().await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias("multi_lock", "lock_many", "acquire_all"))]
    pub fn lock_all<I>(&self, keys: I) -> LockSet
    where
        I: IntoIterator<Item: TryInto<Key, Error: Into<Error>>>,
    {
        keys.into_iter().map(|key| self.lock(key)).collect()
    }

    /// The election with this key: one leader at a time, over all clients. It is the lock with this
    /// key, seen as an office.
    #[doc(alias("leader", "leadership", "leader_election", "campaign"))]
    pub fn election<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Election {
        Election::new(self.lock(key))
    }

    /// A client that puts a prefix before every key and removes it from keys that it returns. It
    /// shares the connections of this one.
    ///
    /// # Errors
    ///
    /// `Invalid` if the prefix is not fit to begin a key.
    pub fn prefixed<K: TryInto<Key, Error: Into<Error>>>(&self, prefix: K) -> Result<Client> {
        let prefix = prefix.try_into().map_err(Into::into)?.prefixed(&self.prefix)?;
        Ok(Client { prefix: prefix.as_str().into(), ..self.clone() })
    }

    /// What the server can promise. A client that [connects at its first
    /// use](crate::Config::connect_lazy) does not know it before.
    pub fn info(&self) -> Info {
        self.inner().backend.info()
    }

    /// Lists every held key that starts with `prefix`, with its holder and waiters: for operators,
    /// not for decisions, since it is out of date when it arrives.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    #[doc(alias("ls", "locks"))]
    pub fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Holding>>> + Send + use<> {
        let client = self.clone();
        let prefix = format!("{}{prefix}", self.prefix);
        async move {
            let backend = client.inner().backend.clone();
            let list = async move { backend.list(Scope::Prefix(&prefix)).await };
            Ok(client.hide_prefix(client.inner().admin_call(list).await?))
        }
    }

    /// Checks the server for settings and states that could break a guarantee: for operators, as
    /// `tenure doctor` shows it.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like, if the server does not respond at all.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    #[doc(alias("health", "check"))]
    pub fn doctor(&self) -> impl Future<Output = Result<Vec<Finding>>> + Send + use<> {
        let inner = self.inner().clone();
        async move {
            let backend = inner.backend.clone();
            inner.admin_call(async move { backend.doctor().await }).await
        }
    }

    /// Returns when the locks of all guards that were dropped so far are released.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server has not confirmed a release by the time that its lease should
    /// have ended; the message names the key. The release is still repeated, for as long as the
    /// client lives.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn flush(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let inner = self.inner().clone();
        async move {
            let flushing = inner.clone();
            flushing.executor.run(async move { inner.releaser.flush(&inner).await }).await?
        }
    }

    /// Shuts the client down: it refuses new claims, tells holders
    /// ([`closing`](crate::Lease::closing)) and gives them `grace` to finish, then releases what is
    /// still held, and only then stops renewing. It also waits for the releases of guards
    /// that were dropped before: for what is left of `grace`, and at least for as long as one
    /// response may take.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the server did not confirm a release; the message names the key. That lock
    /// ends with its lease.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** The client stays closed; what is still held goes on until it is released.
    #[doc(alias("close", "stop"))]
    pub fn shutdown(&self, grace: Duration) -> impl Future<Output = Result<()>> + Send + use<> {
        let client_ref = self.client_ref.clone();
        async move {
            let inner = client_ref.inner.clone();
            inner.close();
            let ending = inner.clone();
            let result = inner.executor.run(async move { end(&ending, grace).await }).await?;
            inner.renewer.stop();
            result
        }
    }

    pub(crate) fn client_ref(&self) -> &Arc<ClientRef> {
        &self.client_ref
    }

    pub(crate) fn inner(&self) -> &Arc<ClientInner> {
        &self.client_ref.inner
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

/// Waits for holders to finish, then releases what they still hold.
async fn end(inner: &Arc<ClientInner>, grace: Duration) -> Result<()> {
    let until = inner.clock.now() + grace;
    let longest = ClientInner::response_limit(inner.info.max_ttl);
    // An acquire whose response is still to come ends by itself then, with a release.
    tokio::select! {
        () = inner.until_none_acquires() => {}
        () = inner.clock.sleep(longest) => {}
    }
    tokio::select! {
        () = inner.renewer.until_empty() => {}
        () = inner.clock.sleep_until(until) => {}
    }
    let releases: Vec<_> = inner
        .renewer
        .leases()
        .into_iter()
        .filter_map(|lease| {
            let pending = inner.releaser.begin(lease.key.clone());
            lease.finish(LostReason::Shutdown).ok()?;
            inner.renewer.remove(&lease);
            Some(Releaser::release(inner, lease.claim.clone(), pending))
        })
        .collect();
    // Each of them is tried, also when others fail.
    let mut tried = futures_util::stream::iter(releases).buffer_unordered(releaser::AT_ONCE);
    while tried.next().await.is_some() {}
    let until = until.max(inner.clock.now() + longest);
    tokio::select! {
        flushed = inner.releaser.flush(inner) => flushed,
        () = inner.clock.sleep_until(until) => inner.releaser.unconfirmed(inner.info.name),
    }
}
