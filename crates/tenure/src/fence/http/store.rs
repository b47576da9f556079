//! The stores in which the layer keeps the highest token of each resource.

use std::error::Error;
use std::fmt;

use super::Shown;
use crate::fence::{Fences, Refused};

/// A store of fences. [`Fences`] is one, and so is every function
/// `Fn(String, Shown) -> impl Future<Output = Result<(), Refused<Unavailable>>>`.
///
/// # Examples
///
/// ```
/// use tenure::fence::{http::{Shown, Store, Unavailable}, Fenced, Refused};
///
/// /// One fence for everything.
/// struct Single(Fenced<()>);
///
/// impl Store for Single {
///     async fn admit(&self, _: &str, shown: Shown) -> Result<(), Refused<Unavailable>> {
///         // The layer itself lets one request pass at a time.
///         match shown {
///             Shown::Exclusive(token) => drop(self.0.admit(token)?),
///             Shown::Shared(token) => drop(self.0.admit_shared(token)?),
///         }
///         Ok(())
///     }
/// }
/// ```
pub trait Store: Send + Sync + 'static {
    /// Admits this token for this resource, and from now on none below it; that of a reader as
    /// `admit_shared` of every fence does. When this returns, the token is stored as durably as the
    /// store can: in a database it is committed.
    fn admit(
        &self,
        resource: &str,
        shown: Shown,
    ) -> impl Future<Output = Result<(), Refused<Unavailable>>> + Send;
}

impl Store for Fences {
    async fn admit(&self, resource: &str, shown: Shown) -> Result<(), Refused<Unavailable>> {
        let turn = match shown {
            Shown::Exclusive(token) => Fences::admit(self, resource, token),
            Shown::Shared(token) => self.admit_shared(resource, token),
        };
        // The layer has a turn of its own, which lasts until the service is done.
        turn.map(drop).map_err(Unavailable::from_refused)
    }
}

impl<F, W> Store for F
where
    F: Fn(String, Shown) -> W + Send + Sync + 'static,
    W: Future<Output = Result<(), Refused<Unavailable>>> + Send,
{
    fn admit(
        &self,
        resource: &str,
        shown: Shown,
    ) -> impl Future<Output = Result<(), Refused<Unavailable>>> + Send {
        self(resource.to_owned(), shown)
    }
}

/// The error of a store that could not be reached.
///
/// # Examples
///
/// ```
/// use tenure::fence::http::Unavailable;
///
/// let error = Unavailable::new(std::io::Error::other("disk full"));
/// assert_eq!(error.to_string(), "disk full");
/// ```
#[derive(Debug)]
pub struct Unavailable(Box<dyn Error + Send + Sync>);

impl Unavailable {
    /// An error with this cause.
    pub fn new(cause: impl Into<Box<dyn Error + Send + Sync>>) -> Unavailable {
        Unavailable(cause.into())
    }

    /// Turns the refusal of another fence into that of a [`Store`].
    pub fn from_refused<E>(refused: Refused<E>) -> Refused<Unavailable>
    where
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        match refused {
            Refused::Garbage(found) => Refused::Garbage(found),
            Refused::Stale(stale) => Refused::Stale(stale),
            Refused::Store(error) => Refused::Store(Unavailable::new(error)),
        }
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Unavailable {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
