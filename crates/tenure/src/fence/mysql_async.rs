//! The fence in MySQL and MariaDB, in a transaction of `mysql_async`.
//!
//! Two transactions that are the first ever to touch a resource can deadlock. InnoDB then fails one
//! of them: begin it again, as any transaction of InnoDB.
//!
//! The table is that of the connection's own database: all clients that share a resource have to
//! use the same one, or [`sql::Table::schema`].
//!
//! Check, read and write in one transaction:
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
//!
//! Or with work between the read and the write:
//!
//! ```no_run
//! use mysql_async::{prelude::Queryable, TxOpts};
//! use tenure::{fence, FencingToken};
//!
//! # async fn example(db: &mut mysql_async::Conn, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! fence::mysql_async::contact(db, "stock/42", token).await?; // committed when it returns
//! let n: Option<i64> = db.query_first("SELECT n FROM stock WHERE item = 42").await?;
//! let left = n.unwrap_or(0) - 1; // may take long
//!
//! let mut tx = db.start_transaction(TxOpts::default()).await?;
//! fence::mysql_async::admit(&mut tx, "stock/42", token).await?; // and again with the write
//! tx.exec_drop("UPDATE stock SET n = ? WHERE item = 42", (left,)).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

use ::mysql_async::prelude::Queryable;
use ::mysql_async::{Conn, Error, Transaction, TxOpts};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

const TABLE: sql::Table = sql::Table::new(Dialect::MySql);

/// Creates the table of fences, if it does not exist; one of before readers had tokens gets the
/// column `shared`.
///
/// # Errors
///
/// The error of the server. It can also fail if two clients add the column at the same moment.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop a statement that was sent.
pub async fn create(connection: &mut Conn) -> Result<(), Error> {
    connection.query_drop(TABLE.create()).await?;
    let columns: Option<i64> = connection.query_first(TABLE.count_shared()).await?;
    if columns == Some(0) { connection.query_drop(TABLE.add_shared()).await } else { Ok(()) }
}

/// The first contact, in a transaction of its own: admits this token for this resource, and from
/// now on none below it. It is committed when this returns, so that no stale holder can change what
/// is read afterwards. A server with `innodb_flush_log_at_trx_commit` below 1 can still lose it in
/// a power failure.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with the error of the server. Do not read the resource then.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been admitted; calling this again with it is safe.
pub async fn contact(
    connection: &mut Conn,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    contact_with(connection, TABLE.statement(), resource, token).await
}

/// The first contact of a reader, in a transaction of its own: as [`contact`], but other readers
/// are admitted whatever their order. So no stale writer can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// the error of the server. Do not read the resource then.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been admitted; calling this again with it is safe.
///
/// # Examples
///
/// ```no_run
/// use mysql_async::prelude::Queryable;
/// use tenure::{fence, FencingToken};
///
/// # async fn example(db: &mut mysql_async::Conn, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// fence::mysql_async::contact_shared(db, "stock/42", token).await?; // before the first read
/// let n: Option<i64> = db.query_first("SELECT n FROM stock WHERE item = 42").await?;
/// # Ok(()) }
/// ```
pub async fn contact_shared(
    connection: &mut Conn,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    contact_with(connection, TABLE.statement_shared(), resource, token).await
}

async fn contact_with(
    connection: &mut Conn,
    statement: String,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let started = connection.start_transaction(TxOpts::default()).await;
    let mut transaction = started.map_err(Refused::Store)?;
    match send_token(&mut transaction, statement, resource, token).await {
        Ok(()) => transaction.commit().await.map_err(Refused::Store),
        Err(refused) => {
            transaction.rollback().await.map_err(Refused::Store)?;
            Err(refused)
        }
    }
}

/// Admits this token for this resource in this transaction, and from now on none below it.
///
/// **If the transaction is not committed, nothing was fenced**, and what was read in it must not be
/// used. If the write comes in a later transaction, begin with [`contact`].
///
/// The token remains the connection's `LAST_INSERT_ID()`: read that of your own insert right after
/// the insert.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with the error of the server. Roll back in any case.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop a statement that was sent. A dropped
/// transaction is rolled back when its connection is used again or closed; until then, other
/// transactions wait for it.
pub async fn admit(
    transaction: &mut Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    send_token(transaction, TABLE.statement(), resource, token).await
}

/// Admits this token of a reader for this resource in this transaction, and from now on no lower
/// one of a writer. As for [`admit`], the transaction has to be committed.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// the error of the server. Roll back in any case.
///
/// # Cancel safety
///
/// As for [`admit`].
pub async fn admit_shared(
    transaction: &mut Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    send_token(transaction, TABLE.statement_shared(), resource, token).await
}

/// Deletes the fences that were not used for so many whole days, and returns how many. When this is
/// safe is described at [`sql::Table::sweep`].
///
/// # Errors
///
/// The error of the server; try again after a deadlock with the admission of a token.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop a statement that was sent.
///
/// # Examples
///
/// ```no_run
/// # async fn example(db: &mut mysql_async::Conn) -> Result<(), mysql_async::Error> {
/// let deleted = tenure::fence::mysql_async::sweep(db, 30).await?;
/// # Ok(()) }
/// ```
pub async fn sweep(connection: &mut Conn, days: u16) -> Result<u64, Error> {
    connection.exec_drop(TABLE.sweep(), (days,)).await?;
    Ok(connection.affected_rows())
}

async fn send_token(
    transaction: &mut Transaction<'_>,
    statement: String,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let highest = highest_token(transaction, statement, resource, token.as_i64()).await;
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Executes a statement of the table; returns its one number.
async fn highest_token(
    transaction: &mut Transaction<'_>,
    statement: String,
    resource: &str,
    token: i64,
) -> Result<i64, Error> {
    let result = transaction.exec_iter(statement, (resource, token)).await?;
    let highest = result.last_insert_id();
    result.drop_result().await?;
    // The client library returns `None` for 0, which is no fencing token. It has no sign for the
    // number of a reader.
    Ok(highest.unwrap_or(0).cast_signed())
}
