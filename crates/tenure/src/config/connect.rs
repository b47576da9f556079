//! From a configuration to a client, or to the bare backend.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::Config;
use crate::backend::{Backend, HolderInfo, Reach};
use crate::backends;
use crate::client::{Client, Defaults};
use crate::engine::ClientInner;
use crate::engine::executor::Executor;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::hosted::Hosted;
use crate::lazy::Lazy;
use crate::support::backoff::Backoff;
use crate::support::clock::Clock;
use crate::support::url::Url;

/// The lease of locks that set none: long enough to survive a short outage, short enough that a
/// crash does not stop a service for long.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The pauses between attempts to reach a server.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Config {
    /// Connects: checks address and credentials once. A server that is down is an error at once,
    /// unless [`outage`](Config::outage) says for how long to retry.
    ///
    /// # Errors
    ///
    /// `Invalid` for a wrong URL, `Unsupported` if the backend is not built in, `Unavailable` and
    /// `Denied` by the server.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub async fn connect(self) -> Result<Client> {
        let url = self.checked_url()?;
        let executor =
            if backends::is_in_process(&url) { Executor::caller() } else { Executor::thread()? };
        let backend = open_at(&executor, self.open_with_retries(url)).await?;
        Ok(self.build(backend, executor))
    }

    /// A client that connects at its first use, so that a service may start before its server does,
    /// and without a runtime. While the server cannot be reached, `acquire` retries for as long as
    /// [`outage`](Config::outage) or a ttl, and every other method fails with the server's error;
    /// the next use tries again. URL options and ttls that the server does not have are reported
    /// then too, by an error of kind `Invalid`.
    ///
    /// # Errors
    ///
    /// `Invalid` for an unknown scheme or a wrong prefix, `Unsupported` if the backend is not built
    /// in.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use tenure::Config;
    ///
    /// let config: Config = "memory:?prefix=shop/".parse()?;
    /// let locks = config.connect_lazy()?;
    /// let guard = locks.lock("orders/42").acquire().await?; // connects
    /// # Ok(()) }
    /// ```
    pub fn connect_lazy(self) -> Result<Client> {
        let url = self.checked_url()?;
        if backends::is_in_process(&url) {
            // Nothing to wait for; and its client is on the caller's clock from the beginning.
            let opened = backends::open(url).now_or_never();
            let backend =
                opened.ok_or_else(|| Error::invalid("cannot be opened without waiting"))?;
            return Ok(self.build(backend?, Executor::caller()));
        }
        let backend = Lazy::new(url)?;
        Ok(self.build(Arc::new(backend), Executor::thread()?))
    }

    /// As [`connect_lazy`](Config::connect_lazy), without async. See
    /// [`blocking`](crate::blocking).
    ///
    /// # Errors
    ///
    /// As for [`connect_lazy`](Config::connect_lazy).
    pub fn connect_lazy_blocking(self) -> Result<crate::blocking::Client> {
        let url = self.checked_url()?;
        if backends::is_in_process(&url) {
            return self.connect_blocking();
        }
        self.connect_lazy().map(crate::blocking::Client::new)
    }

    /// Connects, with layers around the backend. They run on the client's own thread, as the
    /// backend does.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use std::time::Duration;
    /// use tenure::{Config, layers::{Retry, Timeout}};
    ///
    /// let config: Config = "memory:".parse()?;
    /// let locks = config.connect_with(|backend| {
    ///     Retry::new(Timeout::new(backend, Duration::from_secs(1)), 3, Duration::from_millis(50))
    /// }).await?;
    /// locks.lock("a").acquire().await?.release().await?;
    /// # Ok(()) }
    /// ```
    pub async fn connect_with<B: Backend>(
        self,
        layers: impl FnOnce(Arc<dyn Backend>) -> B,
    ) -> Result<Client> {
        let url = self.checked_url()?;
        let executor =
            if backends::is_in_process(&url) { Executor::caller() } else { Executor::thread()? };
        let backend = layers(open_at(&executor, self.open_with_retries(url)).await?);
        Ok(self.build(Arc::new(backend), executor))
    }

    /// The bare backend, to be called by itself, or to be given to
    /// [`with_backend`](Config::with_backend). It has a thread of its own, on which every call
    /// runs; a client over it has another. To put layers around the backend of a client,
    /// [`connect_with`](Config::connect_with) needs only one.
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future closes what was opened.
    pub fn open(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + use<> {
        let url = self.url();
        async move {
            let url = url?;
            if backends::is_in_process(&url) {
                return backends::open(url).await;
            }
            let hosted = Hosted::open(backends::open(url)).await?;
            Ok(Arc::new(hosted) as Arc<dyn Backend>)
        }
    }

    /// A client with this configuration over that backend. A prefix that cannot begin a key is
    /// reported by the first lock.
    ///
    /// # Panics
    ///
    /// If the system cannot start the client's thread.
    pub fn with_backend(self, backend: impl Backend) -> Client {
        let executor = match backend.info().reach {
            Reach::Process => Executor::caller(),
            Reach::Machine | Reach::Network => Executor::thread().expect("a thread can be started"),
        };
        self.build(Arc::new(backend), executor)
    }

    /// Connects without async. See [`blocking`](crate::blocking).
    ///
    /// # Errors
    ///
    /// As for [`connect`](Config::connect).
    pub fn connect_blocking(self) -> Result<crate::blocking::Client> {
        // Always on a thread of its own: there may be no runtime at all.
        let url = self.checked_url()?;
        let executor = Executor::thread()?;
        let backend = crate::blocking::wait(open_at(&executor, self.open_with_retries(url)))?;
        Ok(crate::blocking::Client::new(self.build(backend, executor)))
    }

    /// Opens the backend, and retries for `outage` if the server cannot be reached.
    fn open_with_retries(
        &self,
        url: Url,
    ) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + use<> {
        let outage = self.outage.unwrap_or_default();
        let observers = self.observers.clone();
        async move {
            let clock = Clock::Boot;
            let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            let end = clock.now() + outage;
            loop {
                let opened = backends::open(url.clone()).await;
                let left = end.since(clock.now());
                match &opened {
                    Err(error) if error.kind() == ErrorKind::Unavailable && !left.is_zero() => {
                        let cause = error.clone();
                        observers.tell(|| Event::Unavailable { key: None, cause });
                    }
                    Ok(_) | Err(_) => return opened,
                }
                clock.sleep(backoff.next().min(left)).await;
            }
        }
    }

    fn build(self, backend: Arc<dyn Backend>, executor: Executor) -> Client {
        let name = self.owner.unwrap_or_else(program);
        let defaults = Defaults {
            ttl: self.ttl.unwrap_or(DEFAULT_TTL),
            renew_every: self.renew_every,
            outage: self.outage,
            holder_info: HolderInfo::new(name, host(), std::process::id(), ""),
        };
        let inner = ClientInner::new(backend, executor, self.observers);
        Client::build(inner, defaults, &self.prefix)
    }
}

/// Opens the backend on the executor, where its tasks will run.
async fn open_at(
    executor: &Executor,
    opening: impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
) -> Result<Arc<dyn Backend>> {
    if executor.is_caller() { opening.await } else { executor.run(opening).await? }
}

fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
