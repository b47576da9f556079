//! The fence in PostgreSQL, in a transaction of `tokio_postgres`.
//!
//! ```no_run
//! use tenure::{fence, FencingToken};
//!
//! # async fn example(db: &mut tokio_postgres::Client, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! fence::tokio_postgres::create(db).await?; // once, among the migrations
//!
//! let tx = db.transaction().await?;
//! fence::tokio_postgres::admit(&tx, "stock/42", token).await?; // first, before any read
//! tx.execute("UPDATE stock SET n = n - 1 WHERE item = 42", &[]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

use ::tokio_postgres::types::{ToSql, Type};
use ::tokio_postgres::{Client, Error, Transaction};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

/// Makes the table of fences, if it is not there.
///
/// # Errors
///
/// What PostgreSQL says. Two that make it at the same moment can get in each other's way.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way.
pub async fn create(client: &Client) -> Result<(), Error> {
    client.batch_execute(sql::schema(Dialect::Postgres)).await
}

/// Admits this token for this resource in this transaction, and from now on none below it. One
/// trip, and no prepared statement, so that a pooler may stand between.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] with what PostgreSQL
/// says. Roll back in any case.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way; dropping the transaction
/// rolls it back.
pub async fn admit(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let number = token.as_i64();
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&resource, Type::TEXT), (&number, Type::INT8)];
    let rows = transaction.query_typed(sql::statement(Dialect::Postgres), &values).await;
    // An upsert with RETURNING answers with one row, or fails. 0 is refused as garbage.
    let highest = rows.and_then(|rows| rows.first().map_or(Ok(0), |row| row.try_get(0)));
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Deletes the fences that nobody touched for so many whole days; says how many. When that is safe
/// stands at [`sql::sweep`].
///
/// # Errors
///
/// What PostgreSQL says.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way.
///
/// # Examples
///
/// ```no_run
/// # async fn example(db: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
/// let forgotten = tenure::fence::tokio_postgres::sweep(db, 30).await?;
/// # Ok(()) }
/// ```
pub async fn sweep(client: &Client, days: u16) -> Result<u64, Error> {
    let days = i64::from(days);
    client.execute_typed(sql::sweep(Dialect::Postgres), &[(&days, Type::INT8)]).await
}
