//! The response to a claim: granted, or busy.

use std::fmt;
use std::time::Duration;

use super::Holder;
use crate::error::Result;
use crate::key::Key;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// A granted claim: its token, and how long the lease lasts from the request on.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::{backend::Grant, FencingToken};
///
/// let grant = Grant::new(FencingToken::new(7).unwrap(), Duration::from_secs(30));
/// assert_eq!(grant.token.get(), 7);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Grows with every grant of the key; a repeated request of the same owner gets the same one.
    pub token: FencingToken,
    /// The lease, counted by the client from before the request was sent.
    pub ttl: Duration,
    /// How many tokens, from `token` on, no other grant of the key has or gets. 1 unless the server
    /// reserves more.
    pub tokens: u32,
}

impl Grant {
    /// A grant with this token and lease.
    pub fn new(token: FencingToken, ttl: Duration) -> Grant {
        Grant { token, ttl, tokens: 1 }
    }

    /// A grant that owns a whole range of tokens, from this one on.
    #[allow(dead_code, reason = "used by the backends that reserve ranges")]
    pub(crate) fn with_range(token: FencingToken, ttl: Duration) -> Grant {
        Grant { token, ttl, tokens: TOKENS_PER_GRANT }
    }
}

/// The outcome of an acquire that may end without the lock: granted, or who holds it.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::Attempt;
///
/// let locks = tenure::connect("memory:").await?;
/// match locks.lock("stock/42").try_acquire().await? {
///     Attempt::Granted(guard) => guard.release().await?,
///     Attempt::Busy(busy) => println!("{busy}"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "the lock may be busy: match on it, or call `granted()?`"]
pub enum Attempt<T> {
    /// The lock is held by the caller now.
    Granted(T),
    /// Another client holds it.
    Busy(Busy),
}

impl<T> Attempt<T> {
    /// The lock, or busy as an error that names the holder.
    ///
    /// # Errors
    ///
    /// [`Busy`], which turns into an [`Error`](crate::Error) of kind
    /// [`Busy`](crate::ErrorKind::Busy).
    pub fn granted(self) -> Result<T, Busy> {
        match self {
            Attempt::Granted(granted) => Ok(granted),
            Attempt::Busy(busy) => Err(busy),
        }
    }

    /// Applies a function to what was granted.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Attempt<U> {
        match self {
            Attempt::Granted(granted) => Attempt::Granted(f(granted)),
            Attempt::Busy(busy) => Attempt::Busy(busy),
        }
    }
}

/// Another client holds the lock: which one, and what is known about how long it may take.
///
/// # Examples
///
/// ```
/// use tenure::{Busy, Key};
///
/// let busy = Busy::new(Key::new("stock/42")?);
/// assert_eq!(busy.to_string(), "`stock/42` is held by another");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Busy {
    /// Key of the lock.
    pub key: Key,
    /// The holder, where the server can tell; of several the oldest.
    pub holder: Option<Box<Holder>>,
    /// How many holders there are, where the server can tell.
    pub holders: u32,
    /// How many waiters are ahead of this claim, where the server has a queue and it is in it.
    pub ahead: Option<u32>,
    /// When it makes sense to try again.
    pub retry_after: Option<Duration>,
    /// How long the caller has waited.
    pub waited: Duration,
}

impl Busy {
    /// The key is held, and nothing else is known.
    pub fn new(key: Key) -> Busy {
        Busy {
            key,
            holder: None,
            holders: 0,
            ahead: None,
            retry_after: None,
            waited: Duration::ZERO,
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is held by ", self.key)?;
        match &self.holder {
            Some(holder) => holder.fmt(f)?,
            None => f.write_str("another")?,
        }
        match self.holders {
            0 | 1 => {}
            2 => f.write_str(" and 1 other")?,
            n => write!(f, " and {} others", n - 1)?,
        }
        match self.ahead {
            Some(1) => f.write_str("; 1 waiter is ahead"),
            Some(n) if n > 1 => write!(f, "; {n} waiters are ahead"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Busy {}
