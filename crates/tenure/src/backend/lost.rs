//! The loss of a lock: why a grant ended.

use std::fmt;

use crate::key::Key;
use crate::token::FencingToken;

/// The lock was held and no longer is. `?` makes an [`Error`](crate::Error) of it where one is
/// expected; in a boxed error it stays a `Lost`, and
/// [`ErrorKind::of`](crate::ErrorKind::of) finds both.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::LostReason;
///
/// let locks = tenure::connect("memory:").await?;
/// let lock = locks.lock("orders/42");
/// let guard = lock.acquire().await?;
/// lock.evict(guard.token()).await?;
/// let lost = guard.lost().await;
/// assert_eq!(lost.reason(), LostReason::Evicted);
/// assert_eq!(lost.key().as_str(), "orders/42");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    key: Key,
    token: FencingToken,
    reason: LostReason,
}

impl Lost {
    pub(crate) fn new(key: Key, token: FencingToken, reason: LostReason) -> Lost {
        Lost { key, token, reason }
    }

    /// Why it is no longer held.
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// Key of the lock.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The token of the grant that ended.
    pub fn token(&self) -> FencingToken {
        self.token
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (token {}) is lost: {}", self.key, self.token, self.reason.describe())
    }
}

impl std::error::Error for Lost {}

/// Why a lock is no longer held.
///
/// # Examples
///
/// ```
/// use tenure::LostReason;
///
/// assert_ne!(LostReason::Expired, LostReason::Evicted);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// An operator force-released it.
    Evicted,
    /// The lease ended before it could be renewed.
    Expired,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// Its own guard released it.
    Released,
    /// The server ended the session that the lock belonged to.
    SessionGone,
    /// The client was shut down, which released what was still held.
    Shutdown,
    /// Another client holds it now.
    TakenOver,
}

impl LostReason {
    /// One word in lower case, as in the JSON of `tenure run`.
    pub fn as_str(self) -> &'static str {
        match self {
            LostReason::Evicted => "evicted",
            LostReason::Expired => "expired",
            LostReason::MaxHold => "max_hold",
            LostReason::Released => "released",
            LostReason::SessionGone => "session_gone",
            LostReason::Shutdown => "shutdown",
            LostReason::TakenOver => "taken_over",
        }
    }

    pub(crate) fn describe(self) -> &'static str {
        match self {
            LostReason::Evicted => "it was evicted",
            LostReason::Expired => "its lease ended before it could be renewed",
            LostReason::MaxHold => "it was held for as long as `max_hold` allows",
            LostReason::Released => "it was released",
            LostReason::SessionGone => "the server ended the session that it belonged to",
            LostReason::Shutdown => "the client was shut down",
            LostReason::TakenOver => "another client holds it now",
        }
    }
}
