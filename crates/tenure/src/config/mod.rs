//! Where the lock server is and how to use it: one URL, and what code can set besides.

mod connect;

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, Observers};
use crate::support::credentials::{Credentials, Source};
use crate::support::url::Url;

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
    /// service may start before its server does, as with [`connect_lazy`](Config::connect_lazy).
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

    /// Calls this function for the credentials of each new connection, in place of those of the
    /// URL: for tokens that end soon (IAM, Vault), and secrets that are replaced while the program
    /// runs. A connection that is open stays as it is. The page `docs/connections.md` of the
    /// repository says when each server does so; one that cannot is `Unsupported`.
    ///
    /// It runs on the client's own thread, which has a runtime of tokio, and must not block. What
    /// it takes counts as part of connecting. Its error is `Unavailable`, and so is repeated,
    /// unless it is an [`Error`] of another kind.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use tenure::{Config, Credentials};
    ///
    /// # async fn fresh_token() -> Result<String, std::io::Error> { Ok("x".into()) }
    /// let config: Config = "memory:".parse()?; // redis://app@cache.example …
    /// let locks = config
    ///     .credentials(|| async { fresh_token().await.map(Credentials::password) })
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    #[doc(alias("iam", "token", "vault", "auth"))]
    pub fn credentials<F, W, E>(mut self, credentials: F) -> Config
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = std::result::Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(url) = &mut self.url {
            url.set_credentials(Source::new(credentials));
        }
        self
    }

    /// Calls this function with every [`Event`]. It is called on the client's own thread and must
    /// not block.
    pub fn observe(mut self, f: impl Fn(&Event) + Send + Sync + 'static) -> Config {
        self.observers.add(f);
        self
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
