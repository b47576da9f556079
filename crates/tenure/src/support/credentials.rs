//! User and password of a connection: those of the URL, or what the caller's code gives for each
//! connection.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use crate::error::{Error, ErrorKind, Result};

/// User and password for one connection, given by
/// [`Config::credentials`](crate::Config::credentials). `Debug` shows neither.
///
/// # Examples
///
/// ```
/// use tenure::Credentials;
///
/// let token = Credentials::new("app", "a token that is valid for 15 minutes");
/// assert_eq!(format!("{token:?}"), "Credentials");
/// ```
#[derive(Clone)]
pub struct Credentials {
    user: Option<String>,
    password: String,
}

impl Credentials {
    /// This user and this password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials { user: Some(user.into()), password: password.into() }
    }

    /// This password, or token, for the user of the URL.
    pub fn password(password: impl Into<String>) -> Credentials {
        Credentials { user: None, password: password.into() }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

/// Gives the credentials of the next connection.
#[derive(Clone)]
pub(crate) struct Source(Arc<dyn Fn() -> BoxFuture<'static, Result<Credentials>> + Send + Sync>);

impl Source {
    pub(crate) fn new<F, W, E>(credentials: F) -> Source
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        Source(Arc::new(move || {
            let given = credentials();
            async move { given.await.map_err(|error| no_credentials(error.into())) }.boxed()
        }))
    }
}

/// How to log in. `Debug` shows nothing of it.
#[derive(Clone, Default)]
pub(crate) struct UserLogin {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) source: Option<Source>,
}

#[allow(dead_code, reason = "which of these are used depends on the backends that are built")]
impl UserLogin {
    /// User and password for a new connection.
    ///
    /// # Errors
    ///
    /// What the caller's code says; `Unavailable` unless it is an error of tenure.
    pub(crate) async fn current(&self) -> Result<UserLogin> {
        let Some(Source(source)) = &self.source else { return Ok(self.clone()) };
        let given = source().await?;
        let user = given.user.or_else(|| self.user.clone());
        Ok(UserLogin { user, password: Some(given.password), source: None })
    }
}

impl fmt::Debug for UserLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserLogin")
    }
}

fn no_credentials(error: Box<dyn StdError + Send + Sync>) -> Error {
    let kind = match error.downcast_ref::<Error>() {
        Some(error) => error.kind(),
        // Where they come from may respond at another time.
        None => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("no credentials for a new connection: {error}")).with_source(error)
}
