//! The fence in MySQL and MariaDB, in a transaction of `mysql_async`.
//!
//! Two transactions that are the first ever to touch a resource can meet in a deadlock, which
//! InnoDB solves by failing one of them: begin again, as with every transaction of InnoDB.
//!
//! ```no_run
//! use mysql_async::{prelude::Queryable, TxOpts};
//! use tenure::{fence, FencingToken};
//!
//! # async fn example(db: &mut mysql_async::Conn, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! fence::mysql_async::create(db).await?; // once, among the migrations
//!
//! let mut tx = db.start_transaction(TxOpts::default()).await?;
//! fence::mysql_async::admit(&mut tx, "stock/42", token).await?; // first, before any read
//! tx.query_drop("UPDATE stock SET n = n - 1 WHERE item = 42").await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

use ::mysql_async::prelude::Queryable;
use ::mysql_async::{Conn, Error, Transaction};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

/// Makes the table of fences, if it is not there.
///
/// # Errors
///
/// What the server says.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way.
pub async fn create(connection: &mut Conn) -> Result<(), Error> {
    connection.query_drop(sql::schema(Dialect::MySql)).await
}

/// Admits this token for this resource in this transaction, and from now on none below it.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] with what the server
/// says. Roll back in any case.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way; dropping the transaction
/// rolls it back.
pub async fn admit(
    transaction: &mut Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let highest = ask(transaction, resource, token.as_i64()).await;
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Deletes the fences that nobody touched for so many whole days; says how many. When that is safe
/// stands at [`sql::sweep`].
///
/// # Errors
///
/// What the server says; a deadlock with somebody's admission is to be tried again.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future leaves the statement on its way.
///
/// # Examples
///
/// ```no_run
/// # async fn example(db: &mut mysql_async::Conn) -> Result<(), mysql_async::Error> {
/// let forgotten = tenure::fence::mysql_async::sweep(db, 30).await?;
/// # Ok(()) }
/// ```
pub async fn sweep(connection: &mut Conn, days: u16) -> Result<u64, Error> {
    connection.exec_drop(sql::sweep(Dialect::MySql), (days,)).await?;
    Ok(connection.affected_rows())
}

async fn ask(transaction: &mut Transaction<'_>, resource: &str, token: i64) -> Result<i64, Error> {
    let statement = sql::statement(Dialect::MySql);
    let answer = transaction.exec_iter(statement, (resource, token)).await?;
    let highest = answer.last_insert_id();
    answer.drop_result().await?;
    // The client takes 0 for "none"; a fence never has it.
    Ok(highest.and_then(|highest| i64::try_from(highest).ok()).unwrap_or(0))
}
