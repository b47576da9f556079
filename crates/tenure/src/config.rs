//! Where the lock server is and how to use it: one URL, and what code can set besides.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Backend, HolderInfo, Reach};
use crate::backends;
use crate::client::{Client, Defaults};
use crate::engine::ClientInner;
use crate::engine::executor::Executor;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Observers};
use crate::hosted::Hosted;
use crate::support::backoff::Backoff;
use crate::support::clock::Clock;
use crate::support::url::Url;

/// The lease of locks that set none: long enough to survive a short outage, short enough that a
/// crash does not stop a service for long.
const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// The pauses between attempts to reach a server.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The largest password file, in bytes.
const MAX_PASSWORD_FILE: u64 = 64 * 1024;

/// Where the lock server is and how to use it. Made from a URL; `Debug` shows its scheme and hosts.
///
/// | option in the URL | method | meaning |
/// |---|---|---|
/// | `?prefix=app/` | [`prefix`](Config::prefix) | before every key, removed again from keys that are returned; end it with a separator |
/// | `?owner=web-3` | [`owner`](Config::owner) | what other clients and operators see as the holder |
/// | `?ttl=10s` | [`ttl`](Config::ttl) | default lease of this client's locks |
/// | `?renew=3s` | [`renew_every`](Config::renew_every) | how often a lease is renewed |
/// | `?outage=1m` | [`outage`](Config::outage) | how long `connect` and `acquire` retry a server that does not respond |
/// | `?password_file=/run/secrets/lock` | [`password`](Config::password) | keeps the secret out of the URL |
///
/// A URL is trusted input: it names the server that everything is sent to, and a file that is read
/// for it (a regular one, of 64 KB at most).
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::Config;
///
/// let config: Config = "memory:?prefix=shop/&ttl=10s".parse()?;
/// let locks = config.owner("web-3").connect().await?;
/// let guard = locks.lock("orders/42").acquire().await?;
/// assert_eq!(guard.key().as_str(), "orders/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Default)]
pub struct Config {
    url: Option<Url>,
    prefix: String,
    owner: Option<String>,
    ttl: Option<Duration>,
    renew_every: Option<Duration>,
    outage: Option<Duration>,
    observers: Observers,
}

impl Config {
    /// The configuration that the environment variable `TENURE_URL` holds, if it is set.
    ///
    /// # Errors
    ///
    /// `Invalid` if it is not a URL of tenure.
    pub fn from_env() -> Result<Option<Config>> {
        match std::env::var("TENURE_URL") {
            Ok(url) if !url.is_empty() => url.parse().map(Some),
            Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => {
                Err(Error::new(ErrorKind::Invalid, "TENURE_URL is not UTF-8"))
            }
        }
    }

    /// Puts this before every key, and removes it from keys that are returned. End it with a
    /// separator: `app` and the key `s/x` are the same lock as `apps/` and the key `x`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Config {
        self.prefix = prefix.into();
        self
    }

    /// What other clients and operators see as the holder: the program's name unless set.
    pub fn owner(mut self, name: impl Into<String>) -> Config {
        self.owner = Some(name.into());
        self
    }

    /// The lease of this client's locks: 30 s unless set.
    pub fn ttl(mut self, ttl: Duration) -> Config {
        self.ttl = Some(ttl);
        self
    }

    /// How often leases are renewed: every third of the ttl unless set. More frequent renewals find
    /// out sooner that a lock is lost, and leave more tries if one fails. It has to be less than a
    /// ttl.
    pub fn renew_every(mut self, interval: Duration) -> Config {
        self.renew_every = Some(interval);
        self
    }

    /// How long to retry a server that cannot be reached or does not respond. Each failure is an
    /// [`Event::Unavailable`].
    ///
    /// `acquire` retries for one ttl unless this is set, and `acquire_within` for as long as it
    /// waits. [`connect`](Config::connect) fails at the first refusal unless this is set: then a
    /// service may start before its server does.
    pub fn outage(mut self, limit: Duration) -> Config {
        self.outage = Some(limit);
        self
    }

    /// The password, so that it need not be in the URL.
    pub fn password(mut self, secret: impl Into<String>) -> Config {
        if let Some(url) = &mut self.url {
            url.set_password(secret.into());
        }
        self
    }

    /// Calls this function with every [`Event`]. It is called on the client's own thread and must
    /// not block.
    pub fn observe(mut self, f: impl Fn(&Event) + Send + Sync + 'static) -> Config {
        self.observers.add(f);
        self
    }

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

    fn url(&self) -> Result<Url> {
        self.url.clone().ok_or_else(|| {
            let message = "no URL is given; try `sqlite:` for a store on this machine";
            Error::new(ErrorKind::Invalid, message)
        })
    }

    /// The URL, if the rest of the configuration is valid too.
    fn checked_url(&self) -> Result<Url> {
        if !self.prefix.is_empty() {
            crate::Key::new(&self.prefix)?;
        }
        self.url()
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

impl FromStr for Config {
    type Err = Error;
    fn from_str(url: &str) -> Result<Config> {
        let mut url = Url::parse(url)?;
        if let Some(file) = url.take("password_file") {
            url.set_password(read_secret(Path::new(&file))?);
        }
        Ok(Config {
            prefix: url.take("prefix").unwrap_or_default(),
            owner: url.take("owner"),
            ttl: url.take_duration("ttl")?,
            renew_every: url.take_duration("renew")?,
            outage: url.take_duration("outage")?,
            observers: Observers::default(),
            url: Some(url),
        })
    }
}

impl TryFrom<String> for Config {
    type Error = Error;
    fn try_from(url: String) -> Result<Config> {
        url.parse()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Config");
        match &self.url {
            Some(url) => debug.field("url", url),
            None => debug.field("url", &"none"),
        };
        debug.field("prefix", &self.prefix).field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// Opens the backend on the executor, where its tasks will run.
async fn open_at(
    executor: &Executor,
    opening: impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
) -> Result<Arc<dyn Backend>> {
    if executor.is_caller() { opening.await } else { executor.run(opening).await? }
}

/// Reads a password file. Only regular files of a limited size: reading `/dev/zero` does not end,
/// and reading a pipe may block.
fn read_secret(path: &Path) -> Result<String> {
    let failed = |why: &dyn fmt::Display| {
        let message = format!("cannot read the password file `{}`: {why}", path.display());
        Error::new(ErrorKind::Invalid, message)
    };
    if !std::fs::metadata(path).map_err(|error| failed(&error))?.is_file() {
        return Err(failed(&"it is not a regular file"));
    }
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut text = String::new();
    file.take(MAX_PASSWORD_FILE + 1).read_to_string(&mut text).map_err(|error| failed(&error))?;
    if text.len() as u64 > MAX_PASSWORD_FILE {
        return Err(failed(&"it is larger than 64 KB"));
    }
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

fn program() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
