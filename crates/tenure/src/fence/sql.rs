//! Fences in a SQL database, for any client: the statements, and what their answers mean.
//!
//! # A table of fences
//!
//! The table `tenure_fence` has a row for each resource, with the highest token seen. [`admit`] is
//! **the first statement of the transaction**: it raises the row or refuses, in one statement, and
//! the row stays locked until the transaction ends, so that nobody with another token comes in
//! between the admission and the write.
//!
//! ```
//! use tenure::fence::sql::{self, Dialect};
//!
//! assert!(sql::schema(Dialect::Postgres).starts_with("CREATE TABLE IF NOT EXISTS tenure_fence"));
//! ```
//!
//! At first use, and when the row is lost, any token is admitted. A row takes some tens of bytes
//! and stays: delete it in the transaction that deletes the resource itself, or let [`sweep`]
//! delete those that nobody touched for many days.
//!
//! First means first: under `REPEATABLE READ` a snapshot taken before the admission shows what was
//! there before the holder came. PostgreSQL then answers a serialization failure, SQLite "database
//! is locked"; MySQL reads the old data without a word.
//!
//! # A column of one's own
//!
//! Where the resource is a row, the row can be its own fence. Add a column
//! `fence BIGINT NOT NULL DEFAULT 0`, and let every statement of a holder carry the token:
//!
//! ```sql
//! -- first contact: admit, and read in the same transaction (PostgreSQL, SQLite: RETURNING n)
//! UPDATE stock SET fence = $token WHERE item = $item AND fence <= $token;
//! SELECT n FROM stock WHERE item = $item;
//! -- the write
//! UPDATE stock SET n = $n, fence = $token WHERE item = $item AND fence <= $token;
//! ```
//!
//! If no row was changed, read the column and ask [`unchanged`] why.

use std::fmt;

use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// Whose SQL it is.
///
/// # Examples
///
/// ```
/// use tenure::fence::sql::{self, Dialect};
///
/// assert!(sql::statement(Dialect::Sqlite).contains("RETURNING"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// MySQL 8 and MariaDB.
    MySql,
    /// PostgreSQL.
    Postgres,
    /// SQLite 3.35 and later.
    Sqlite,
}

/// Admits this token for this resource in the transaction that `query` runs in, and from now on
/// none below it.
///
/// `query` is given a statement with two parameters, and the two values to bind, the resource and
/// the token. It returns the one number of the one row that comes back; with [`Dialect::MySql`]
/// no row comes, and the number is the client's *last insert id* (or `SELECT LAST_INSERT_ID()` on
/// the same connection).
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] with what `query` says.
/// Roll back in any case.
///
/// # Cancel safety
///
/// As that of `query`: the transaction is the caller's, and rolling back undoes it.
///
/// # Examples
///
/// With sqlx it reads so:
///
/// ```ignore
/// sql::admit(Dialect::Postgres, "stock/42", guard.token(), async |statement, resource, token| {
///     sqlx::query_scalar(statement).bind(resource).bind(token).fetch_one(&mut *tx).await
/// }).await?;
/// ```
///
/// ```
/// use std::convert::Infallible;
/// use tenure::{fence::sql::{self, Dialect}, FencingToken};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // Stands for a database in which 8 was seen before.
/// let query = async |_: &'static str, _: &str, token: i64| Ok::<_, Infallible>(token.max(8));
/// let token = FencingToken::new(7).unwrap();
/// let refused = sql::admit(Dialect::Postgres, "stock/42", token, query).await.unwrap_err();
/// assert_eq!(refused.to_string(), "token 7 is stale: 8 was here before");
/// # }
/// ```
pub async fn admit<'a, E, W>(
    dialect: Dialect,
    resource: &'a str,
    token: FencingToken,
    query: impl FnOnce(&'static str, &'a str, i64) -> W,
) -> Result<(), Refused<E>>
where
    // Not `AsyncFnOnce`: a future with one inside could not be spawned.
    W: Future<Output = Result<i64, E>>,
{
    let highest = query(statement(dialect), resource, token.as_i64()).await;
    judge(token, highest.map_err(Refused::Store)?)
}

/// The statement that makes the table of fences. It belongs among the migrations.
pub fn schema(dialect: Dialect) -> &'static str {
    match dialect {
        // Binary, else `a` and `A` would share a fence.
        Dialect::MySql => {
            "CREATE TABLE IF NOT EXISTS tenure_fence (resource VARBINARY(255) PRIMARY KEY, \
             token BIGINT NOT NULL CHECK (token > 0), touched DATE NOT NULL) ENGINE = InnoDB"
        }
        // Half-empty pages: a raised token then stays on its page and needs no new index entry.
        Dialect::Postgres => {
            "CREATE TABLE IF NOT EXISTS tenure_fence (resource text PRIMARY KEY, \
             token bigint NOT NULL CHECK (token > 0), touched date NOT NULL) \
             WITH (fillfactor = 50)"
        }
        Dialect::Sqlite => {
            "CREATE TABLE IF NOT EXISTS tenure_fence (resource TEXT PRIMARY KEY NOT NULL, \
             token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0), \
             touched TEXT NOT NULL) WITHOUT ROWID"
        }
    }
}

/// The statement of [`admit`], for clients that cannot be called from a closure. Its parameters are
/// the resource and the token; give its answer to [`judge`]. It notes the day too, for [`sweep`].
pub fn statement(dialect: Dialect) -> &'static str {
    match dialect {
        // There is no RETURNING here. LAST_INSERT_ID(x) hands x to the client with the answer, also
        // when nothing changed.
        Dialect::MySql => {
            "INSERT INTO tenure_fence (resource, token, touched) \
             VALUES (?, LAST_INSERT_ID(?), UTC_DATE()) ON DUPLICATE KEY UPDATE \
             token = LAST_INSERT_ID(GREATEST(token, VALUES(token))), touched = VALUES(touched)"
        }
        // Also a refused token updates the row, to itself: without an update no row comes back.
        Dialect::Postgres => {
            "INSERT INTO tenure_fence AS f (resource, token, touched) \
             VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date) \
             ON CONFLICT (resource) DO UPDATE SET \
             token = greatest(f.token, excluded.token), touched = excluded.touched \
             RETURNING token"
        }
        Dialect::Sqlite => {
            "INSERT INTO tenure_fence (resource, token, touched) \
             VALUES (?1, ?2, date('now')) ON CONFLICT (resource) DO UPDATE SET \
             token = max(token, excluded.token), touched = excluded.touched \
             RETURNING token"
        }
    }
}

/// The statement that deletes the fences which nobody touched for so many whole days, by the
/// database's clock in UTC. The number of days is its one parameter, a 64-bit integer. It reads the
/// whole table, in a transaction of its own: run it at night.
///
/// It is safe if **no holder that lost its lock so many days ago can still write**. A row that is
/// gone admits any token, as at first use; the next admission makes it anew, and closes the fence
/// for all before. So the days are to be longer than any pause that is to be survived: a suspended
/// laptop, a virtual machine that is restored, a job that hangs. 30 is a good number. A holder that
/// is in the middle of its work loses nothing: its next admission makes the row anew.
///
/// # Examples
///
/// ```
/// use tenure::fence::sql::{self, Dialect};
///
/// assert!(sql::sweep(Dialect::Sqlite).starts_with("DELETE FROM tenure_fence WHERE touched <"));
/// ```
pub fn sweep(dialect: Dialect) -> &'static str {
    match dialect {
        Dialect::MySql => "DELETE FROM tenure_fence WHERE touched < UTC_DATE() - INTERVAL ? DAY",
        Dialect::Postgres => {
            "DELETE FROM tenure_fence \
             WHERE touched < (now() AT TIME ZONE 'UTC')::date - $1::bigint::integer"
        }
        Dialect::Sqlite => {
            "DELETE FROM tenure_fence WHERE touched < date('now', '-' || ?1 || ' days')"
        }
    }
}

/// What the answer to [`statement`] means for the token that was sent.
///
/// # Errors
///
/// [`Refused::Stale`] if it is higher, [`Refused::Garbage`] if it is no token.
pub fn judge<E>(token: FencingToken, highest: i64) -> Result<(), Refused<E>> {
    let seen = u64::try_from(highest).ok().and_then(FencingToken::new);
    // After the statement the row is at least as high as what was sent.
    match seen.filter(|seen| *seen >= token) {
        Some(seen) => Ok(Stale::check(token, seen)?),
        None => Err(Refused::Garbage(highest.to_string())),
    }
}

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
    let Some(fence) = fence else { return Unchanged::Missing };
    // A row that was never fenced has 0; a negative number is nobody's token and refuses nobody.
    let seen = u64::try_from(fence).ok().and_then(FencingToken::new);
    match seen.map(|seen| Stale::check(token, seen)) {
        Some(Err(stale)) => Unchanged::Stale(stale),
        _ => Unchanged::Unmatched,
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
    /// There is no such row.
    Missing,
    /// A higher token was here before.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_no_fence_gives_is_refused() {
        let token = FencingToken::new(7).unwrap();
        assert!(judge::<()>(token, 7).is_ok());
        assert!(matches!(judge::<()>(token, 8), Err(Refused::Stale(_))));
        for garbage in [-1, 0, 6] {
            assert!(matches!(judge::<()>(token, garbage), Err(Refused::Garbage(_))), "{garbage}");
        }
        assert_eq!(unchanged(token, Some(0)), Unchanged::Unmatched);
    }
}
