//! A column of the caller's own table as a fence: why a statement changed no row.

use std::fmt;

use crate::fence::refused::Stale;
use crate::fence::seen::Seen;
use crate::token::FencingToken;

/// Why `UPDATE … WHERE fence <= $token` changed no row, by the value that the column has now, or
/// none if there is no such row.
///
/// # Examples
///
/// ```
/// use tenure::{fence::sql::{unchanged, Unchanged}, FencingToken};
///
/// let token = FencingToken::new(7).unwrap();
/// assert_eq!(unchanged(token, None), Unchanged::Missing);
/// assert_eq!(unchanged(token, Some(8)).to_string(), "token 7 is stale: 8 was here before");
/// ```
pub fn unchanged(token: FencingToken, fence: Option<i64>) -> Unchanged {
    unchanged_beside_readers(token, fence.map(|fence| (fence, 0)))
}

/// Why a writer's `UPDATE … WHERE fence <= $token AND shared <= $token` changed no row, by the
/// values that the two columns have now, or none if there is no such row. For a reader, whose
/// statement compares with `fence` alone, it is [`unchanged`].
///
/// # Examples
///
/// ```
/// use tenure::{fence::sql::unchanged_beside_readers, FencingToken};
///
/// let why = unchanged_beside_readers(FencingToken::new(7).unwrap(), Some((7, 9)));
/// assert_eq!(why.to_string(), "token 7 is stale: 9 was here before, as a reader");
/// ```
pub fn unchanged_beside_readers(token: FencingToken, found: Option<(i64, i64)>) -> Unchanged {
    let Some((fence, shared)) = found else { return Unchanged::Missing };
    // A row that was never fenced has 0; a negative number is not a token and refuses none.
    let number = |number: i64| u64::try_from(number).ok().and_then(FencingToken::new);
    match Seen::of(number(fence), number(shared)).check(token) {
        Err(stale) => Unchanged::Stale(stale),
        Ok(()) => Unchanged::Unmatched,
    }
}

/// Why a fenced `UPDATE` changed no row. See [`unchanged`].
///
/// # Examples
///
/// ```
/// use tenure::{fence::sql::{unchanged, Unchanged}, FencingToken};
///
/// match unchanged(FencingToken::new(7).unwrap(), Some(7)) {
///     Unchanged::Missing => println!("there is no such item"),
///     Unchanged::Stale(stale) => println!("the lock was lost: {stale}"),
///     Unchanged::Unmatched => println!("sold out"), // … AND n > 0
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unchanged {
    /// There is no such row. That is no permission to insert it: it may have been deleted under a
    /// higher token.
    Missing,
    /// A higher token was admitted before.
    Stale(Stale),
    /// The fence would have let the token in: another condition of the `WHERE` did not hold, or,
    /// in MySQL without `CLIENT_FOUND_ROWS`, the row had these very values already.
    Unmatched,
}

impl fmt::Display for Unchanged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unchanged::Missing => f.write_str("there is no such row"),
            Unchanged::Stale(stale) => stale.fmt(f),
            Unchanged::Unmatched => f.write_str("the token was admitted, and no row matched"),
        }
    }
}

impl std::error::Error for Unchanged {}
