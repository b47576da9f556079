//! The fencing token: a number that grows with every grant of a key.

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// A number that grows with every grant of a key: across release, crash, expiry and eviction.
///
/// Hand it to the resource that the lock protects and let the resource refuse a smaller one than it
/// has seen: then a holder that was paused past its lease cannot do harm. See
/// [`fence`](crate::fence). It lies in `1..=i64::MAX`, so that it fits a `BIGINT` column.
///
/// # Examples
///
/// ```
/// use tenure::FencingToken;
///
/// let older = FencingToken::new(41).unwrap();
/// let newer: FencingToken = "42".parse()?;
/// assert!(newer > older);
/// assert_eq!(newer.as_i64(), 42);
/// assert_eq!(FencingToken::new(0), None);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(NonZeroU64);

/// How many tokens one grant owns on servers that reserve a range: its own, and the 1023 above it,
/// which no other grant of the key ever has. A client can hand the lock on inside itself with them.
pub(crate) const TOKENS_PER_GRANT: u32 = 1024;

#[allow(dead_code, reason = "used by the backends whose tokens are an index of the server")]
impl FencingToken {
    /// The first token of the range of a grant whose order is an index of the server, such as its
    /// revision. All clients of such a server use this scale: with two scales on one key, a stale
    /// holder could have the higher number.
    ///
    /// # Errors
    ///
    /// `Internal` beyond 2^53, where tokens would no longer fit a `BIGINT`.
    pub(crate) fn of_index(index: u64) -> Result<FencingToken> {
        let number = index.checked_mul(TOKENS_PER_GRANT.into());
        number.and_then(FencingToken::new).ok_or_else(|| {
            let message = format!("the server's index {index} is too large for a fencing token");
            Error::new(ErrorKind::Internal, message)
        })
    }

    /// The index of the server in whose range the token lies.
    pub(crate) fn index(self) -> u64 {
        self.get() / u64::from(TOKENS_PER_GRANT)
    }
}

impl FencingToken {
    /// The token with this number, if it is one.
    pub const fn new(number: u64) -> Option<FencingToken> {
        if number > i64::MAX as u64 {
            return None;
        }
        match NonZeroU64::new(number) {
            Some(number) => Some(FencingToken(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The number as SQL clients want it.
    pub const fn as_i64(self) -> i64 {
        // Cannot wrap: `new` admits nothing above i64::MAX.
        self.0.get() as i64
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> u64 {
        token.get()
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> i64 {
        token.as_i64()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl FromStr for FencingToken {
    type Err = Error;
    fn from_str(text: &str) -> Result<FencingToken> {
        text.parse().ok().and_then(FencingToken::new).ok_or_else(|| {
            let message = format!(
                "`{}` is not a fencing token; it is a number from 1 to {}",
                text.escape_debug(),
                i64::MAX
            );
            Error::new(ErrorKind::Invalid, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_of_a_range_belongs_to_its_index() {
        let first = FencingToken::of_index(7).unwrap();
        let last = FencingToken::new(first.get() + u64::from(TOKENS_PER_GRANT) - 1).unwrap();
        assert_eq!((first.index(), last.index()), (7, 7));
        assert!(FencingToken::of_index(8).unwrap() > last);
        assert!(FencingToken::of_index(1 << 53).is_err());
        assert!(FencingToken::of_index(0).is_err());
        assert!(FencingToken::of_index((1 << 53) - 1).is_ok());
    }

    #[test]
    fn a_token_fits_a_bigint_and_is_never_zero() {
        assert_eq!(FencingToken::new(0), None);
        assert_eq!(FencingToken::new(i64::MAX as u64 + 1), None);
        assert_eq!(FencingToken::new(i64::MAX as u64).unwrap().as_i64(), i64::MAX);
        for text in ["0", "-1", "", "x", "9223372036854775808"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }
}
