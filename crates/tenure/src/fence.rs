//! Fences: what the protected resource needs to refuse a stale holder.
//!
//! No lock is safe against a paused process: it wakes up, its lease is over, and it writes. Only
//! the resource can refuse that write, by the token. Show the token at the first contact, before
//! the first read, and again with the write: a fence that sees only writes lets a stale write in
//! before the new holder's first.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Result;
use crate::token::FencingToken;

/// A fence in memory: remembers the highest token and refuses every lower one.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fence, FencingToken};
///
/// static FENCE: Fence = Fence::new();
///
/// let (old, new) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
/// assert!(FENCE.admit(old).is_ok());
/// assert!(FENCE.admit(new).is_ok());
/// assert!(FENCE.admit(new).is_ok());
/// assert_eq!(FENCE.admit(old).unwrap_err().seen(), new);
/// ```
#[derive(Debug, Default)]
pub struct Fence(AtomicU64);

impl Fence {
    /// A fence that has seen no token.
    pub const fn new() -> Fence {
        Fence(AtomicU64::new(0))
    }

    /// Admits this token, and from now on none below it.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was here before.
    pub fn admit(&self, token: FencingToken) -> Result<(), Stale> {
        let seen = self.0.fetch_max(token.get(), Ordering::AcqRel);
        match FencingToken::new(seen) {
            Some(seen) if seen > token => Err(Stale { token, seen }),
            _ => Ok(()),
        }
    }
}

/// A token that a fence refused: its holder lost the lock and somebody else has been here since.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fence, FencingToken};
///
/// let fence = Fence::new();
/// fence.admit(FencingToken::new(8).unwrap()).unwrap();
/// let stale = fence.admit(FencingToken::new(7).unwrap()).unwrap_err();
/// assert_eq!(stale.to_string(), "token 7 is stale: 8 was here before");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    token: FencingToken,
    seen: FencingToken,
}

impl Stale {
    /// The token that was refused.
    pub fn token(&self) -> FencingToken {
        self.token
    }

    /// The highest token that the fence has seen.
    pub fn seen(&self) -> FencingToken {
        self.seen
    }
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} is stale: {} was here before", self.token, self.seen)
    }
}

impl std::error::Error for Stale {}
