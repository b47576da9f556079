//! Fences in a SQL database, for any client library: the statements, and what their results mean.
//!
//! # A table of fences
//!
//! The table `tenure_fence` has a row for each resource, with the highest token seen of a writer,
//! and that of a reader in the column `shared`. [`admit`] and [`admit_shared`] raise the row or
//! refuse, in one statement each. There are two ways to use it.
//!
//! **In one transaction.** It is the first statement; then read, write and commit. The row stays
//! locked until the transaction ends, so that no client with another token comes in between. What
//! was read counts only if this very transaction is committed: after a rollback begin again with
//! `admit` and the read.
//!
//! **A first contact, and later the write.** Where a computation or a person is between the
//! read and the write, the first contact is a **transaction of its own, and it is committed before
//! the first read**: run [`admit`] by itself, on a connection that is in no transaction (the client
//! modules have `contact`, which sees to it). The write is then in a transaction with [`admit`] as
//! its first statement. A first contact that is rolled back fences nothing: a read-only transaction
//! that is dropped, or a savepoint that is rolled back, takes the admission with it, and then a
//! stale holder is admitted after you have read.
//!
//! ```
//! use tenure::fence::sql::{Dialect, Table};
//!
//! let table = Table::new(Dialect::Postgres);
//! assert!(table.statement().starts_with("INSERT INTO public.tenure_fence "));
//! ```
//!
//! At first use, and when the row is lost, any token is admitted. A row takes some tens of bytes.
//! **Keep it when you delete the resource**: without it a stale holder is admitted as at first
//! use, and creates the resource again. [`Table::sweep`] deletes rows that no client used for many
//! days.
//!
//! First means first: under `REPEATABLE READ` a snapshot taken before the admission shows what was
//! there before the holder came. PostgreSQL then fails with a serialization failure, SQLite with
//! "database is locked"; MySQL reads the old data without an error.
//!
//! A first contact must be as durable as the write it stands for: a server that confirms what it
//! can lose (`synchronous_commit=off`, `innodb_flush_log_at_trx_commit=2`, SQLite's
//! `synchronous=NORMAL`, a standby that lags behind) can lose the admission, and keep what was read
//! under it. `contact` of PostgreSQL and SQLite raises the setting for its own transaction; MySQL
//! has it for the whole server only.
//!
//! # A column of the resource's own table
//!
//! Where the resource is a row, the row can be its own fence. Add a column
//! `fence BIGINT NOT NULL DEFAULT 0`, and let every statement of a holder carry the token:
//!
//! ```sql
//! -- first contact: admit and read, and commit (PostgreSQL, SQLite: RETURNING n in its place)
//! UPDATE stock SET fence = $token WHERE item = $item AND fence <= $token;
//! SELECT n FROM stock WHERE item = $item;
//! -- the write
//! UPDATE stock SET n = $n, fence = $token WHERE item = $item AND fence <= $token;
//! -- the end of the resource: the row stays, for it is the fence
//! UPDATE stock SET gone = true, fence = $token WHERE item = $item AND fence <= $token;
//! ```
//!
//! Where readers of a shared lock show their tokens too, one number cannot do it: of two readers
//! the one with the lower token would be refused. Add a second column `shared BIGINT NOT NULL
//! DEFAULT 0`. A reader raises that, and a writer compares with both (SQLite: `max` in place of
//! `greatest`):
//!
//! ```sql
//! -- a reader, before its first read
//! UPDATE stock SET shared = greatest(shared, $token) WHERE item = $item AND fence <= $token;
//! -- a writer, in every statement
//! UPDATE stock SET n = $n, fence = $token
//! WHERE item = $item AND fence <= $token AND shared <= $token;
//! ```
//!
//! If no row was changed, read the column and call [`unchanged`], which says why; for a writer of
//! the second form [`unchanged_beside_readers`], with both.
//! [`Unchanged::Missing`] is no permission to insert the row: the holder that deleted it may have
//! had a higher token.

mod column;
mod statements;

pub use column::{Unchanged, unchanged, unchanged_beside_readers};
pub use statements::Table;

use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// Added to the statement of PostgreSQL, makes the commit of its transaction wait for the disk,
/// where the session would not.
#[cfg(any(feature = "fence-sqlx-postgres", feature = "fence-tokio-postgres"))]
pub(super) const POSTGRES_DURABLE: &str = ", CASE WHEN current_setting('synchronous_commit') \
                                           IN ('off', 'local') \
                                           THEN set_config('synchronous_commit', 'on', true) END";

/// The database whose SQL it is.
///
/// # Examples
///
/// ```
/// use tenure::fence::sql::{Dialect, Table};
///
/// assert!(Table::new(Dialect::Sqlite).statement().contains("RETURNING"));
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
/// none below it. For the first contact of a work in several transactions, run it in none: see
/// [the module](self).
///
/// `query` is given a statement with two parameters, and the two values to bind, the resource and
/// the token. It returns the one number of the one row that comes back; with [`Dialect::MySql`] no
/// row comes, and the number is the client's *last insert id*, as a signed number: `as i64` (or
/// `SELECT CAST(LAST_INSERT_ID() AS SIGNED)` on the same connection). In MySQL the token then stays
/// the connection's `LAST_INSERT_ID()`: read that of an insert of your own right after that insert.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with what `query` says. Roll back in any case.
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
/// let table = Table::new(Dialect::Postgres);
/// sql::admit(&table, "stock/42", guard.token(), async |statement, resource, token| {
///     let query = sqlx::query_scalar(AssertSqlSafe(statement));
///     query.bind(resource).bind(token).fetch_one(&mut *tx).await
/// }).await?;
/// ```
///
/// ```
/// use std::convert::Infallible;
/// use tenure::{fence::sql::{self, Dialect, Table}, FencingToken};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // Stands for a database in which 8 was seen before.
/// let query = async |_: String, _: &str, token: i64| Ok::<_, Infallible>(token.max(8));
/// let (table, token) = (Table::new(Dialect::Postgres), FencingToken::new(7).unwrap());
/// let refused = sql::admit(&table, "stock/42", token, query).await.unwrap_err();
/// assert_eq!(refused.to_string(), "token 7 is stale: 8 was here before");
/// # }
/// ```
pub async fn admit<'a, E, W>(
    table: &Table,
    resource: &'a str,
    token: FencingToken,
    query: impl FnOnce(String, &'a str, i64) -> W,
) -> Result<(), Refused<E>>
where
    // Not `AsyncFnOnce`: a future with one inside could not be spawned.
    W: Future<Output = Result<i64, E>>,
{
    let highest = query(table.statement(), resource, token.as_i64()).await;
    judge(token, highest.map_err(Refused::Store)?)
}

/// Admits this token of a reader for this resource, as [`admit`] does that of a writer: from now on
/// no lower one of a writer is admitted, and readers come in any order.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// what `query` says. Roll back in any case.
///
/// # Cancel safety
///
/// As that of `query`: the transaction is the caller's, and rolling back undoes it.
///
/// # Examples
///
/// ```
/// use std::convert::Infallible;
/// use tenure::{fence::sql::{self, Dialect, Table}, FencingToken};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// // Stands for a database in which the writer 8 was seen before.
/// let query = async |_: String, _: &str, token: i64| Ok::<_, Infallible>(token.max(8));
/// let (table, token) = (Table::new(Dialect::Postgres), FencingToken::new(7).unwrap());
/// let refused = sql::admit_shared(&table, "stock/42", token, query).await.unwrap_err();
/// assert_eq!(refused.to_string(), "token 7 is stale: 8 was here before");
/// # }
/// ```
pub async fn admit_shared<'a, E, W>(
    table: &Table,
    resource: &'a str,
    token: FencingToken,
    query: impl FnOnce(String, &'a str, i64) -> W,
) -> Result<(), Refused<E>>
where
    W: Future<Output = Result<i64, E>>,
{
    let highest = query(table.statement_shared(), resource, token.as_i64()).await;
    judge(token, highest.map_err(Refused::Store)?)
}

/// What the result of [`Table::statement`] or [`Table::statement_shared`] means for the token that
/// was sent. Below zero it is the token of a later reader, with a minus before it.
///
/// # Errors
///
/// [`Refused::Stale`] if it is higher, [`Refused::Garbage`] if it is no token.
///
/// # Examples
///
/// ```
/// use tenure::{fence::sql::judge, FencingToken};
///
/// let token = FencingToken::new(7).unwrap();
/// let refused = judge::<()>(token, -8).unwrap_err();
/// assert!(refused.stale().is_some_and(|stale| stale.is_by_reader()));
/// ```
pub fn judge<E>(token: FencingToken, highest: i64) -> Result<(), Refused<E>> {
    let garbage = || Refused::Garbage(highest.to_string());
    let seen = FencingToken::new(highest.unsigned_abs()).ok_or_else(garbage)?;
    if highest < 0 {
        Stale::check_reader(token, seen)?;
    } else if seen >= token {
        return Ok(Stale::check(token, seen)?);
    }
    // After the statement the row is at least as high as what was sent.
    Err(garbage())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_no_fence_returns_is_refused() {
        let token = FencingToken::new(7).unwrap();
        assert!(judge::<()>(token, 7).is_ok());
        assert!(matches!(judge::<()>(token, 8), Err(Refused::Stale(_))));
        assert!(matches!(judge::<()>(token, -8), Err(Refused::Stale(_))));
        for garbage in [i64::MIN, -7, -1, 0, 6] {
            assert!(matches!(judge::<()>(token, garbage), Err(Refused::Garbage(_))), "{garbage}");
        }
        assert_eq!(unchanged(token, Some(0)), Unchanged::Unmatched);
    }
}
