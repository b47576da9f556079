//! Fences in a SQL database, for any client library: the statements, and what their results mean.
//!
//! # A table of fences
//!
//! The table `tenure_fence` has a row for each resource, with the highest token seen. [`admit`]
//! raises the row or refuses, in one statement. There are two ways to use it.
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
//! If no row was changed, read the column and call [`unchanged`], which says why.
//! [`Unchanged::Missing`] is no permission to insert the row: the holder that deleted it may have
//! had a higher token.

use std::fmt;

use super::refused::{Refused, Stale};
use crate::token::FencingToken;

/// The schema of PostgreSQL that has the table by default.
const PUBLIC: &str = "public";
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

/// The table of fences: `public.tenure_fence` in PostgreSQL, `main.tenure_fence` in SQLite, and in
/// MySQL that of the connection's own database. It is named with its schema in every statement:
/// found by `search_path`, two roles could have two tables, and two fences for one resource.
///
/// # Examples
///
/// ```
/// use tenure::fence::sql::{Dialect, Table};
///
/// let table = Table::new(Dialect::Postgres).schema("shop");
/// assert!(table.sweep().starts_with(r#"DELETE FROM "shop".tenure_fence WHERE touched <"#));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Table {
    dialect: Dialect,
    schema: Option<String>,
}

impl Table {
    /// The table in the default schema.
    pub const fn new(dialect: Dialect) -> Table {
        Table { dialect, schema: None }
    }

    /// The table in this schema; in MySQL, in this database. The schema has to exist already.
    #[must_use]
    pub fn schema(mut self, name: impl Into<String>) -> Table {
        self.schema = Some(name.into());
        self
    }

    /// The statement that creates the table. It belongs among the migrations.
    ///
    /// In PostgreSQL it fails if `search_path` shows a table of that name in another schema: it was
    /// created by an older version or by hand, and what it fences must not be forgotten. Move it,
    /// with `ALTER TABLE … SET SCHEMA`, or drop it.
    pub fn create(&self) -> String {
        let name = self.name();
        match self.dialect {
            // Binary, else `a` and `A` would share a fence.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {name} (resource VARBINARY(255) PRIMARY KEY, \
                 token BIGINT NOT NULL CHECK (token > 0), touched DATE NOT NULL) ENGINE = InnoDB"
            ),
            Dialect::Postgres => self.create_postgres(&name),
            Dialect::Sqlite => format!(
                "CREATE TABLE IF NOT EXISTS {name} (resource TEXT PRIMARY KEY NOT NULL, \
                 token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0), \
                 touched TEXT NOT NULL) WITHOUT ROWID"
            ),
        }
    }

    /// A single statement, so that clients that prepare statements can execute it too.
    fn create_postgres(&self, name: &str) -> String {
        let schema = self.schema.as_deref().unwrap_or(PUBLIC).replace('\'', "''");
        // Half-empty pages: a raised token then stays on its page and needs no new index entry.
        format!(
            "DO $tenure$
             DECLARE other name;
             BEGIN
                SELECT n.nspname INTO other FROM pg_catalog.pg_class c
                JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                WHERE c.relname = 'tenure_fence' AND n.nspname <> '{schema}'
                AND n.nspname = ANY (current_schemas(false)) LIMIT 1;
                IF FOUND THEN
                    RAISE EXCEPTION 'there is a table tenure_fence in the schema % too', other
                    USING HINT = 'Move it with ALTER TABLE ... SET SCHEMA, or drop it.';
                END IF;
                CREATE TABLE IF NOT EXISTS {name} (resource text PRIMARY KEY,
                token bigint NOT NULL CHECK (token > 0), touched date NOT NULL)
                WITH (fillfactor = 50);
             END $tenure$"
        )
    }

    /// The statement of [`admit`], for clients that cannot be called from a closure. Its parameters
    /// are the resource and the token; pass its result to [`judge`]. It also records the day, for
    /// [`sweep`](Table::sweep).
    pub fn statement(&self) -> String {
        let name = self.name();
        match self.dialect {
            // There is no RETURNING here. LAST_INSERT_ID(x) returns x to the client with the
            // response, also when nothing changed.
            Dialect::MySql => format!(
                "INSERT INTO {name} (resource, token, touched) \
                 VALUES (?, LAST_INSERT_ID(?), UTC_DATE()) ON DUPLICATE KEY UPDATE \
                 token = LAST_INSERT_ID(GREATEST(token, VALUES(token))), touched = VALUES(touched)"
            ),
            // Also a refused token updates the row, to itself: without an update no row comes back.
            Dialect::Postgres => format!(
                "INSERT INTO {name} AS f (resource, token, touched) \
                 VALUES ($1, $2, (now() AT TIME ZONE 'UTC')::date) \
                 ON CONFLICT (resource) DO UPDATE SET \
                 token = greatest(f.token, excluded.token), touched = excluded.touched \
                 RETURNING token"
            ),
            Dialect::Sqlite => format!(
                "INSERT INTO {name} (resource, token, touched) \
                 VALUES (?1, ?2, date('now')) ON CONFLICT (resource) DO UPDATE SET \
                 token = max(token, excluded.token), touched = excluded.touched \
                 RETURNING token"
            ),
        }
    }

    /// The statement that deletes the fences that no client used for so many whole days, by the
    /// database's clock in UTC. The number of days is its one parameter, a 64-bit integer; below 0
    /// counts as 0. It reads the whole table, in a transaction of its own: run it at night.
    ///
    /// It is safe if **no holder that lost its lock so many days ago can still write**. A row that
    /// is deleted admits any token, as at first use; the next admission creates it again, and
    /// closes the fence for all before. So the days are to be longer than any pause that is to be
    /// survived: a suspended laptop, a virtual machine that is restored, a job that hangs. 30 is a
    /// good number. A holder that is in the middle of its work loses nothing: its next admission
    /// creates the row again.
    pub fn sweep(&self) -> String {
        let name = self.name();
        let old = match self.dialect {
            Dialect::MySql => "UTC_DATE() - INTERVAL GREATEST(?, 0) DAY",
            Dialect::Postgres => {
                "(now() AT TIME ZONE 'UTC')::date - greatest($1::bigint, 0)::integer"
            }
            Dialect::Sqlite => "date('now', '-' || max(?1, 0) || ' days')",
        };
        format!("DELETE FROM {name} WHERE touched < {old}")
    }

    /// The name of the table, as it is written in a statement.
    fn name(&self) -> String {
        match (&self.schema, self.dialect) {
            (Some(schema), Dialect::MySql) => {
                format!("`{}`.tenure_fence", schema.replace('`', "``"))
            }
            (Some(schema), _) => format!("\"{}\".tenure_fence", schema.replace('"', "\"\"")),
            // A database of MySQL is a schema, and there is no path through several.
            (None, Dialect::MySql) => "tenure_fence".to_owned(),
            (None, Dialect::Postgres) => format!("{PUBLIC}.tenure_fence"),
            (None, Dialect::Sqlite) => "main.tenure_fence".to_owned(),
        }
    }
}

/// Admits this token for this resource in the transaction that `query` runs in, and from now on
/// none below it. For the first contact of a work in several transactions, run it in none: see
/// [the module](self).
///
/// `query` is given a statement with two parameters, and the two values to bind, the resource and
/// the token. It returns the one number of the one row that comes back; with [`Dialect::MySql`]
/// no row comes, and the number is the client's *last insert id* (or `SELECT LAST_INSERT_ID()` on
/// the same connection). In MySQL the token then stays the connection's `LAST_INSERT_ID()`: read
/// that of an insert of your own right after that insert.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, [`Refused::Store`] with what `query`
/// says. Roll back in any case.
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

/// What the result of [`Table::statement`] means for the token that was sent.
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
    // A row that was never fenced has 0; a negative number is not a token and refuses none.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_that_no_fence_returns_is_refused() {
        let token = FencingToken::new(7).unwrap();
        assert!(judge::<()>(token, 7).is_ok());
        assert!(matches!(judge::<()>(token, 8), Err(Refused::Stale(_))));
        for garbage in [-1, 0, 6] {
            assert!(matches!(judge::<()>(token, garbage), Err(Refused::Garbage(_))), "{garbage}");
        }
        assert_eq!(unchanged(token, Some(0)), Unchanged::Unmatched);
    }
}
