//! What can go wrong, sorted by what the caller should do about it.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Busy, Lost, LostReason, Mode};

/// A result whose error is [`Error`] unless said otherwise.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. [`kind`](Error::kind) says what to do; the text is for operators.
///
/// One word wide and cheap to clone. The types behind [`source`](StdError::source) are not part of
/// the API.
///
/// # Examples
///
/// ```
/// use tenure::{ErrorKind, Key};
///
/// let error = Key::new("").unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Invalid);
/// assert_eq!(error.to_string(), "the key is empty; give the lock a name");
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
    detail: Detail,
}

enum Detail {
    None,
    Busy(Busy),
    Gone(LostReason),
    Lost(Lost),
}

/// What the caller should do about an [`Error`].
///
/// # As responses of an HTTP service
///
/// | kind | status | why |
/// |---|---|---|
/// | `Busy` | 409 Conflict, with the [`Busy`] as JSON (feature `serde`) | another client works on it; `retry_after` and the holder say how long it may take |
/// | `Lost` | 503 Service Unavailable | the work was stopped in the middle, or a fence refused its write; repeat it from the beginning, under a new grant |
/// | `Unavailable` | 503, with `Retry-After` | the lock server does not respond, so nothing may be done |
/// | `Closed` | 503 | this instance shuts down; the next one will do it |
/// | `Invalid` | 400 if the key comes from the request, else 500 | see [`Key::new`](crate::Key::new) |
/// | `Denied`, `Unsupported`, `Internal` | 500 | a fault of the deployment, for its operators |
///
/// A service that itself checks tokens answers a stale one with 412: see `fence::http`.
/// [`ErrorKind::of`] finds the kind of any error, boxed or not; `examples/shop` in the repository
/// is a service that does this.
///
/// # Examples
///
/// ```
/// use tenure::{Error, ErrorKind};
///
/// fn worth_another_try(error: &Error) -> bool {
///     matches!(error.kind(), ErrorKind::Busy | ErrorKind::Unavailable)
/// }
/// # assert!(worth_another_try(&Error::new(ErrorKind::Unavailable, "gone")));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Another client holds the lock: try later. Comes only from
    /// [`Attempt::granted`](crate::Attempt).
    Busy,
    /// This client was shut down: stop using it.
    Closed,
    /// Authentication or authorization failed: change credentials or rights.
    Denied,
    /// A fault of tenure or of a backend: report it.
    Internal,
    /// A key, URL or setting is wrong, or the store is not one of tenure: change it.
    Invalid,
    /// The lock was held and no longer is: stop the work.
    Lost,
    /// No response, so that the outcome is unknown: try again, or check the server.
    Unavailable,
    /// This server or this build cannot do that: request less, or choose another.
    Unsupported,
}

impl ErrorKind {
    /// The kind of any error: of an [`Error`], a [`Lost`], a [`Busy`], or a refusal of a
    /// [`fence`](crate::fence) (which is `Lost` if the token is stale), or of the first of them
    /// among the error's sources. `None` if it has nothing to do with tenure.
    ///
    /// A wrapper whose `source` skips what it wraps (`#[error(transparent)]` of `thiserror`) hides
    /// it: match on that variant.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
    /// use std::error::Error;
    /// use tenure::{ErrorKind, Guard};
    ///
    /// async fn work(guard: &Guard) -> Result<(), Box<dyn Error + Send + Sync>> {
    ///     guard.while_held(async { Ok::<_, std::io::Error>(()) }).await??; // a `Lost` in a box
    ///     Ok(())
    /// }
    ///
    /// let locks = tenure::connect("memory:").await?;
    /// let lock = locks.lock("orders/42");
    /// let guard = lock.acquire().await?;
    /// lock.evict(guard.token()).await?;
    /// guard.lost().await;
    /// let error = work(&guard).await.unwrap_err();
    /// assert_eq!(ErrorKind::of(error.as_ref()), Some(ErrorKind::Lost));
    /// # Ok(()) }
    /// ```
    #[doc(alias = "kind_of")]
    pub fn of(error: &(dyn StdError + 'static)) -> Option<ErrorKind> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<Error>() {
                return Some(error.kind());
            }
            if error.is::<Lost>() || crate::fence::is_stale(error) {
                return Some(ErrorKind::Lost);
            }
            if error.is::<Busy>() {
                return Some(ErrorKind::Busy);
            }
            next = error.source();
        }
        None
    }
}

impl Error {
    /// An error of this kind. Messages are lower case, name the thing and say what to try.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::build(kind, message.into(), None, Detail::None)
    }

    /// For backends: the server says that a claim is no longer held, and why.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::{Error, ErrorKind, LostReason};
    ///
    /// let error = Error::gone(LostReason::TakenOver);
    /// assert_eq!(error.kind(), ErrorKind::Lost);
    /// ```
    pub fn gone(reason: LostReason) -> Error {
        let message = format!("the lock is gone: {}", reason.describe());
        Error::build(ErrorKind::Lost, message, None, Detail::Gone(reason))
    }

    /// A key, URL or option is wrong.
    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    /// A key is a lock or a semaphore, and another client uses it as the other.
    #[allow(dead_code, reason = "a build without servers refuses nothing")]
    pub(crate) fn other_kind(key: impl fmt::Display, used: Mode) -> Error {
        let kind = if used.is_lock() { "lock" } else { "semaphore" };
        Error::invalid(format!("`{key}` is in use as a {kind}; give the other a key of its own"))
    }

    /// A renewal found that the claim is not held, and the server does not know why.
    #[allow(dead_code, reason = "a build without servers renews nothing")]
    pub(crate) fn not_held() -> Error {
        Error::new(ErrorKind::Lost, "the lock is not held")
    }

    /// A request got no response in time: it may have been carried out.
    pub(crate) fn timed_out(server: impl fmt::Display, limit: Duration) -> Error {
        let message = format!("no response from {server} within {} ms", limit.as_millis());
        Error::new(ErrorKind::Unavailable, message)
    }

    /// The server responded with something that this version does not understand.
    #[allow(dead_code, reason = "`memory` has no responses")]
    pub(crate) fn unexpected_response(server: &str, what: impl fmt::Display) -> Error {
        let message = format!("unexpected response from {server}: {what}");
        Error::new(ErrorKind::Internal, message)
    }

    /// This error with its cause.
    pub fn with_source(self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        let detail = match &self.0.detail {
            Detail::None => Detail::None,
            Detail::Busy(busy) => Detail::Busy(busy.clone()),
            Detail::Gone(reason) => Detail::Gone(*reason),
            Detail::Lost(lost) => Detail::Lost(lost.clone()),
        };
        Error::build(self.0.kind, self.0.message.clone(), Some(source.into()), detail)
    }

    /// What the caller should do about it.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Who holds the lock, if the kind is [`ErrorKind::Busy`].
    pub fn busy(&self) -> Option<&Busy> {
        match &self.0.detail {
            Detail::Busy(busy) => Some(busy),
            _ => None,
        }
    }

    /// Which lock was lost and why, if the kind is [`ErrorKind::Lost`].
    pub fn lost(&self) -> Option<&Lost> {
        match &self.0.detail {
            Detail::Lost(lost) => Some(lost),
            _ => None,
        }
    }

    /// The reason that a backend gave with [`Error::gone`].
    pub(crate) fn gone_reason(&self) -> Option<LostReason> {
        match self.0.detail {
            Detail::Gone(reason) => Some(reason),
            _ => None,
        }
    }

    fn build(
        kind: ErrorKind,
        message: String,
        source: Option<Box<dyn StdError + Send + Sync>>,
        detail: Detail,
    ) -> Error {
        Error(Arc::new(Inner { kind, message, source, detail }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Error");
        debug.field("kind", &self.0.kind).field("message", &self.0.message);
        if let Some(source) = &self.0.source {
            debug.field("source", source);
        }
        debug.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Error {
        Error::build(ErrorKind::Busy, busy.to_string(), None, Detail::Busy(busy))
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Error {
        Error::build(ErrorKind::Lost, lost.to_string(), None, Detail::Lost(lost))
    }
}

/// A `Key` is made into a `Key` without error: lets [`Client::lock`](crate::Client::lock) take
/// both.
impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Error {
        match never {}
    }
}
