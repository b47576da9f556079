//! The fence in SQLite, in a transaction of `rusqlite`.
//!
//! Begin it with [`TransactionBehavior::Immediate`]: SQLite then waits for the write lock at the
//! beginning, and does not have to refuse a reader that wants to write. All in one transaction:
//!
//! ```
//! use rusqlite::{Connection, TransactionBehavior};
//! use tenure::{fence, FencingToken};
//!
//! # let token = FencingToken::new(7).unwrap();
//! let mut db = Connection::open_in_memory()?;
//! fence::rusqlite::create(&db)?;
//! db.execute_batch("CREATE TABLE stock (item, n); INSERT INTO stock VALUES (42, 10)")?;
//!
//! let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! fence::rusqlite::admit(&tx, "stock/42", token)?; // first, before any read
//! tx.execute("UPDATE stock SET n = n - 1 WHERE item = 42", [])?;
//! tx.commit()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Or with time between the read and the write:
//!
//! ```
//! use rusqlite::{Connection, TransactionBehavior};
//! use tenure::{fence, FencingToken};
//!
//! # let token = FencingToken::new(7).unwrap();
//! # let mut db = Connection::open_in_memory()?;
//! # fence::rusqlite::create(&db)?;
//! # db.execute_batch("CREATE TABLE stock (item, n); INSERT INTO stock VALUES (42, 10)")?;
//! fence::rusqlite::contact(&mut db, "stock/42", token)?; // committed when it returns
//! let n: i64 = db.query_row("SELECT n FROM stock WHERE item = 42", [], |row| row.get(0))?;
//! let left = n - 1; // may take its time
//!
//! let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! fence::rusqlite::admit(&tx, "stock/42", token)?; // and again with the write
//! tx.execute("UPDATE stock SET n = ?1 WHERE item = 42", [left])?;
//! tx.commit()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use ::rusqlite::{Connection, Error, Transaction, TransactionBehavior};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

const TABLE: sql::Table = sql::Table::new(Dialect::Sqlite);

/// Creates the table of fences, if it does not exist; one of before readers had tokens gets the
/// column `shared`.
///
/// # Errors
///
/// The error of SQLite.
pub fn create(connection: &Connection) -> Result<(), Error> {
    connection.execute_batch(&TABLE.create())?;
    let columns: i64 = connection.query_row(&TABLE.count_shared(), [], |row| row.get(0))?;
    if columns == 0 { connection.execute_batch(&TABLE.add_shared()) } else { Ok(()) }
}

/// The first contact, in a transaction of its own: admits this token for this resource, and from
/// now on none below it. It is committed and synced to the disk when this returns, whatever the
/// connection's `synchronous` is. So no stale holder can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with the error of SQLite; it fails inside a transaction. Read nothing after
/// an error.
pub fn contact(
    connection: &mut Connection,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    contact_with(connection, &TABLE.statement(), resource, token)
}

/// The first contact of a reader, in a transaction of its own: as [`contact`], but other readers
/// are admitted whatever their order. So no stale writer can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// the error of SQLite; it fails inside a transaction. Read nothing after an error.
///
/// # Examples
///
/// ```
/// use tenure::{fence, FencingToken};
///
/// let mut db = rusqlite::Connection::open_in_memory()?;
/// fence::rusqlite::create(&db)?;
/// let [writer, one, other] = [7, 8, 9].map(|number| FencingToken::new(number).unwrap());
/// fence::rusqlite::contact_shared(&mut db, "stock/42", other)?;
/// fence::rusqlite::contact_shared(&mut db, "stock/42", one)?; // both hold the lock
/// let stale = fence::rusqlite::contact(&mut db, "stock/42", writer).unwrap_err();
/// assert_eq!(stale.to_string(), "token 7 is stale: 9 was here before, as a reader");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn contact_shared(
    connection: &mut Connection,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    contact_with(connection, &TABLE.statement_shared(), resource, token)
}

fn contact_with(
    connection: &mut Connection,
    statement: &str,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let before: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .map_err(Refused::Store)?;
    // `FULL`: with less, a power cut can undo the commit, but not what was read after it.
    synchronous(connection, before.max(2)).map_err(Refused::Store)?;
    let admitted = contact_as_set(connection, statement, resource, token);
    synchronous(connection, before).map_err(Refused::Store)?;
    admitted
}

fn contact_as_set(
    connection: &mut Connection,
    statement: &str,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let started = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = started.map_err(Refused::Store)?;
    send_token(&transaction, statement, resource, token)?;
    transaction.commit().map_err(Refused::Store)
}

fn synchronous(connection: &Connection, level: i64) -> Result<(), Error> {
    connection.pragma_update(None, "synchronous", level)
}

/// Admits this token for this resource in this transaction, and from now on none below it.
///
/// **If the transaction is not committed, nothing was fenced**, and what was read in it must not be
/// used. Where the write comes in a later transaction, begin with [`contact`].
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with the error of SQLite. Roll back in any case.
pub fn admit(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    send_token(transaction, &TABLE.statement(), resource, token)
}

/// Admits this token of a reader for this resource in this transaction, and from now on no lower
/// one of a writer. As for [`admit`], the transaction has to be committed.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// the error of SQLite. Roll back in any case.
pub fn admit_shared(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    send_token(transaction, &TABLE.statement_shared(), resource, token)
}

fn send_token(
    transaction: &Transaction<'_>,
    statement: &str,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let mut statement = transaction.prepare_cached(statement).map_err(Refused::Store)?;
    let highest = statement.query_row((resource, token.as_i64()), |row| row.get(0));
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Deletes the fences that were not used for so many whole days, and returns how many. See
/// [`sql::Table::sweep`] for when that is safe.
///
/// # Errors
///
/// The error of SQLite.
///
/// # Examples
///
/// ```
/// use tenure::fence;
///
/// let db = rusqlite::Connection::open_in_memory()?;
/// fence::rusqlite::create(&db)?;
/// let deleted = fence::rusqlite::sweep(&db, 30)?;
/// # assert_eq!(deleted, 0);
/// # Ok::<(), rusqlite::Error>(())
/// ```
pub fn sweep(connection: &Connection, days: u16) -> Result<u64, Error> {
    let deleted = connection.execute(&TABLE.sweep(), [days])?;
    Ok(deleted as u64)
}
