//! What a case works with: clients of one store, keys of its own, and waiting with a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use futures_util::future::BoxFuture;
use tenure::backend::{Backend, Claim, Info, Owner, Scope, Wakeup};
use tenure::{Attempt, Client, Config, Guard, Key, Lock};
use tokio::sync::OnceCell;

use crate::network::Network;
use crate::oracle::{Ledger, Oracle, ReadBack};

/// Generous: it is only reached on failure.
pub const SOON: Duration = Duration::from_secs(20);
/// The pause between two polls.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// One running store and how to reach it.
pub struct Store {
    /// Opens the backend once more, as another process would.
    pub open: Open,
    /// The URL under which other processes reach the same store, if they can.
    pub url: Option<String>,
    /// The ports of the servers in that URL, where every request of a client goes to one of them: a
    /// proxy can stand before each.
    pub ports: Vec<u16>,
    /// Whatever has to live as long as the store.
    pub keep: Box<dyn std::any::Any + Send + Sync>,
}

/// Opens a backend.
pub type Open = Box<dyn Fn() -> BoxFuture<'static, Opened> + Send + Sync>;
type Opened = tenure::Result<Arc<dyn Backend>>;

/// What a case works with.
pub struct TestContext {
    store: Arc<Store>,
    ledger: Arc<Ledger>,
    info: Info,
    prefix: String,
}

impl TestContext {
    /// A context over this store.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened.
    pub async fn new(store: Store) -> Result<TestContext> {
        static CONTEXTS: AtomicU64 = AtomicU64::new(0);
        let info = (store.open)().await?.info();
        let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("t{}-{number}/", Owner::random().to_string().split_at(8).0);
        let store = Arc::new(store);
        let ledger = Ledger::new(read_back(store.clone()), slack(&info));
        Ok(TestContext { store, ledger, info, prefix })
    }

    /// What the oracle has found.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether a proxy can stand between a client and every server.
    pub fn has_network(&self) -> bool {
        !self.store.ports.is_empty()
    }

    /// Whether a connection holds the lock, which the server frees when it breaks, however long the
    /// lease would last. The holder is told at once, and not before.
    pub fn hangs_on_a_connection(&self) -> bool {
        let url = self.store.url.as_deref().unwrap_or_default();
        url.contains("mode=session") || url.contains("mode=row")
    }

    /// A network of this case's own, which it can cut.
    ///
    /// # Errors
    ///
    /// If the store has none.
    pub fn network(&self) -> Result<Network> {
        let url = self.store.url.as_deref().context("the store has a URL")?;
        Network::new(url, &self.store.ports)
    }

    /// A client whose requests go through that network.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened.
    pub async fn client_through(&self, network: &Network) -> Result<Client> {
        let config: Config = network.url().parse()?;
        // An outage of a case's own making is not to end what waits.
        let patient = Config::default().outage(Duration::from_secs(120));
        Ok(patient.with_backend(Oracle::new(config.open().await?, self.ledger.clone())))
    }

    /// What the backend promises.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The URL for other processes.
    pub fn url(&self) -> Option<&str> {
        self.store.url.as_deref()
    }

    /// A key that no other case uses.
    pub fn key(&self, name: &str) -> Key {
        Key::new(format!("{}{name}", self.prefix)).expect("the names of cases are keys")
    }

    /// The prefix of all keys of this case.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The bare backend, opened once more.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub async fn backend(&self) -> Result<Arc<dyn Backend>> {
        let backend = (self.store.open)().await?;
        Ok(Arc::new(Oracle::new(backend, self.ledger.clone())))
    }

    /// Another client of the same store.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened.
    pub async fn client(&self) -> Result<Client> {
        self.client_with(Config::default()).await
    }

    /// Another client of the same store, with these settings.
    ///
    /// # Errors
    ///
    /// If the store cannot be opened.
    pub async fn client_with(&self, config: Config) -> Result<Client> {
        Ok(config.with_backend(self.backend().await?))
    }

    /// A lease that is short for a test and long enough for this server on a busy machine.
    pub fn short_ttl(&self) -> Duration {
        self.info.min_ttl.max(Duration::from_millis(900))
    }

    /// How long a waiter with a ttl of 30 s may take after its turn has come: without a wake-up its
    /// next request comes after 10 s.
    pub fn wakeup_limit(&self) -> Duration {
        match self.info.wakeup {
            Wakeup::Push => Duration::from_secs(4),
            _ => SOON,
        }
    }

    /// A claim as a client would make it, for cases that speak to the backend itself.
    pub fn claim(&self, name: &str) -> Claim {
        Claim::new(self.key(name), Owner::random(), Duration::from_secs(20))
    }
}

/// The oracle's own way to the store, opened when it is first needed.
fn read_back(store: Arc<Store>) -> ReadBack {
    let backend = Arc::new(OnceCell::new());
    Box::new(move |key| {
        let (store, backend) = (store.clone(), backend.clone());
        Box::pin(async move {
            let opened = backend.get_or_try_init(|| (store.open)()).await.ok()?;
            opened.list(Scope::Key(&key)).await.ok()
        })
    })
}

/// How much shorter than it is a server may show a lease: etcd shows whole seconds, Redis whole
/// milliseconds, and keeps a key through the millisecond in which it ends.
fn slack(info: &Info) -> Duration {
    match info.name {
        "etcd" => Duration::from_secs(1),
        "redis" | "redlock" => Duration::from_millis(1),
        _ => Duration::ZERO,
    }
}

/// Awaits something that must come before the deadline. Generous: it is only reached on failure.
///
/// # Errors
///
/// If it does not come.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    within(SOON, what, future).await
}

/// Awaits something that must come within this time.
///
/// # Errors
///
/// If it does not come.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(limit, future).await.map_err(|_| anyhow!("{what}: not within {limit:?}"))
}

/// Polls until there is a result, for at most this time: for what no server
/// tells by itself.
///
/// # Errors
///
/// If nothing comes, or that of a poll.
pub async fn until<T, F: Future<Output = Result<Option<T>>>>(
    limit: Duration,
    what: &str,
    mut poll: impl FnMut() -> F,
) -> Result<T> {
    let looking = async {
        loop {
            if let Some(seen) = poll().await? {
                return Ok(seen);
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    within(limit, what, looking).await?
}

/// Acquires a lock that must be free.
///
/// # Errors
///
/// If it is not.
pub async fn acquire_free(lock: &Lock) -> Result<Guard> {
    match soon("try_acquire", lock.try_acquire()).await?? {
        Attempt::Granted(guard) => Ok(guard),
        Attempt::Busy(busy) => Err(anyhow!("expected a free lock, but {busy}")),
    }
}

/// Checks that a lock is held by another client.
///
/// # Errors
///
/// If it is free.
pub async fn expect_busy(lock: &Lock) -> Result<()> {
    let attempt = soon("try_acquire", lock.try_acquire()).await??;
    ensure!(matches!(attempt, Attempt::Busy(_)), "expected busy, but the lock was free");
    Ok(())
}

/// Waits until this many wait for the lock, as the server tells it.
///
/// # Errors
///
/// If that does not happen soon.
pub async fn until_waiters(lock: &Lock, count: usize) -> Result<()> {
    until(SOON, &format!("{count} waiters"), || async {
        let holding = lock.status().await?;
        Ok(holding.filter(|holding| holding.waiters.len() == count).map(drop))
    })
    .await
}

/// Renews until the server has responded, as the renewer does.
pub async fn renew(backend: &dyn Backend, claims: &[Claim]) -> Vec<tenure::Result<Duration>> {
    loop {
        let responses = backend.renew(claims).await;
        let unknown = |response: &tenure::Result<Duration>| match response {
            Err(error) => error.kind() == tenure::ErrorKind::Unavailable,
            Ok(_) => false,
        };
        if !responses.iter().any(unknown) {
            return responses;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
