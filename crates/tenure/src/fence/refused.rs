//! The errors of a fence that does not admit a token.

use std::fmt;

use crate::token::FencingToken;

/// A token that a fence refused: its holder lost the lock, and a later holder has been here since.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fenced, FencingToken};
///
/// let stock = Fenced::new(10);
/// *stock.admit(FencingToken::new(8).unwrap()).unwrap() -= 1;
/// let stale = stock.admit(FencingToken::new(7).unwrap()).unwrap_err();
/// assert_eq!(stale.to_string(), "token 7 is stale: 8 was here before");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    token: FencingToken,
    seen: FencingToken,
    by_reader: bool,
}

impl Stale {
    /// For a fence of your own that keeps one number: refuses `token` if `seen` is higher. For one
    /// that readers show their tokens to as well, see [`Seen`](super::Seen).
    ///
    /// # Errors
    ///
    /// [`Stale`] if it is.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::{fence::Stale, FencingToken};
    ///
    /// let (old, new) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
    /// assert!(Stale::check(new, old).is_ok());
    /// assert!(Stale::check(new, new).is_ok());
    /// assert!(Stale::check(old, new).is_err());
    /// ```
    pub fn check(token: FencingToken, seen: FencingToken) -> Result<(), Stale> {
        if seen > token { Err(Stale { token, seen, by_reader: false }) } else { Ok(()) }
    }

    /// As `check`, for a token that a reader has shown.
    pub(crate) fn check_reader(token: FencingToken, seen: FencingToken) -> Result<(), Stale> {
        Stale::check(token, seen).map_err(|stale| Stale { by_reader: true, ..stale })
    }

    /// The token that was refused.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The highest token that the fence has seen.
    pub fn seen(&self) -> FencingToken {
        self.seen
    }

    /// Whether that token was shown by a reader, with `admit_shared`.
    pub fn is_by_reader(&self) -> bool {
        self.by_reader
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.by_reader { ", as a reader" } else { "" };
        write!(f, "token {} is stale: {} was here before{who}", self.token, self.seen)
    }
}

impl std::error::Error for Stale {}

/// Why a fence with a store behind it did not admit a token. `E` is the error of the client that
/// the caller uses.
///
/// Only `Ok` permits the holder to go on: after any of these, roll back.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{file, Refused}, FencingToken};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("report.csv");
/// let [old, new] = [1, 2].map(|number| FencingToken::new(number).unwrap());
/// drop(file::admit(&path, new)?);
/// match file::admit(&path, old) {
///     Ok(_) => unreachable!("2 was here before"),
///     Err(Refused::Stale(stale)) => assert_eq!(stale.seen(), new),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused<E> {
    /// What is stored where the fence keeps its token is not a token: another program wrote it.
    Garbage(String),
    /// A holder with a higher token has been here: the lock is lost. Do not retry with this token;
    /// acquire the lock again and begin with the read.
    Stale(Stale),
    /// The store failed, and whether it has seen the token is unknown. A retry is safe.
    Store(E),
}

impl<E> Refused<E> {
    /// The refusal, if it is for the token and not for a failure.
    pub fn stale(&self) -> Option<&Stale> {
        match self {
            Refused::Stale(stale) => Some(stale),
            _ => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for Refused<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Garbage(found) => {
                write!(f, "the fence has `{}` where a token should be", found.escape_debug())
            }
            Refused::Stale(stale) => stale.fmt(f),
            Refused::Store(error) => write!(f, "the fence could not be checked: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Refused<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Refused::Store(error) => Some(error),
            Refused::Garbage(_) | Refused::Stale(_) => None,
        }
    }
}

impl<E> From<Stale> for Refused<E> {
    fn from(stale: Stale) -> Refused<E> {
        Refused::Stale(stale)
    }
}

/// Whether an error says that a token is stale: [`Stale`] itself, or a [`Refused`] of one of the
/// clients that have a module here. That of another client cannot be told from its type.
pub(crate) fn is_stale(error: &(dyn std::error::Error + 'static)) -> bool {
    fn refused<E: std::error::Error + 'static>(error: &(dyn std::error::Error + 'static)) -> bool {
        error.downcast_ref::<Refused<E>>().is_some_and(|refused| refused.stale().is_some())
    }
    let clients = [
        refused::<std::io::Error>,
        #[cfg(feature = "fence-mysql-async")]
        refused::<mysql_async::Error>,
        #[cfg(feature = "fence-redis")]
        refused::<redis::RedisError>,
        #[cfg(feature = "fence-rusqlite")]
        refused::<rusqlite::Error>,
        #[cfg(any(feature = "fence-sqlx-mysql", feature = "fence-sqlx-postgres"))]
        refused::<sqlx::Error>,
        #[cfg(feature = "fence-tokio-postgres")]
        refused::<tokio_postgres::Error>,
    ];
    error.is::<Stale>() || clients.iter().any(|refused| refused(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_stale_token_is_a_lost_lock_however_it_is_wrapped() {
        let [old, new] = [7, 8].map(|number| FencingToken::new(number).unwrap());
        let stale = Stale::check(old, new).unwrap_err();
        assert_eq!(ErrorKind::of(&stale), Some(ErrorKind::Lost));
        let refused: Refused<std::io::Error> = stale.into();
        assert_eq!(ErrorKind::of(&refused), Some(ErrorKind::Lost));
        let failed = Refused::Store(std::io::Error::other("disk"));
        assert_eq!(ErrorKind::of(&failed), None);
        let wrapped = std::io::Error::other(stale);
        assert_eq!(ErrorKind::of(&wrapped), None, "its source is that of what it wraps");
    }
}
