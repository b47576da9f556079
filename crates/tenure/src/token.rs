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
    fn a_token_fits_a_bigint_and_is_never_zero() {
        assert_eq!(FencingToken::new(0), None);
        assert_eq!(FencingToken::new(i64::MAX as u64 + 1), None);
        assert_eq!(FencingToken::new(i64::MAX as u64).unwrap().as_i64(), i64::MAX);
        for text in ["0", "-1", "", "x", "9223372036854775808"] {
            assert!(text.parse::<FencingToken>().is_err(), "{text}");
        }
    }
}
