//! The fence in SQLite, in a transaction of `rusqlite`.
//!
//! Begin it with [`TransactionBehavior::Immediate`]: SQLite then waits for its turn at the
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
//! Or with something between the read and the write:
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

/// Makes the table of fences, if it is not there.
///
/// # Errors
///
/// What SQLite says.
pub fn create(connection: &Connection) -> Result<(), Error> {
    connection.execute_batch(&TABLE.create())
}

/// The first contact, in a transaction of its own: admits this token for this resource, and from
/// now on none below it. It is committed and on the disk when this returns, whatever the
/// connection's `synchronous` is, so that whatever is read afterwards no stale holder can change
/// any more.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] with what SQLite says;
/// it refuses in a transaction. Read nothing then.
pub fn contact(
    connection: &mut Connection,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let before: i64 = connection
        .pragma_query_value(None, "synchronous", |row| row.get(0))
        .map_err(Refused::Store)?;
    // `FULL`: with less a commit can be lost with the power, and what was read under it cannot.
    synchronous(connection, before.max(2)).map_err(Refused::Store)?;
    let shown = contact_as_set(connection, resource, token);
    synchronous(connection, before).map_err(Refused::Store)?;
    shown
}

fn contact_as_set(
    connection: &mut Connection,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let started = connection.transaction_with_behavior(TransactionBehavior::Immediate);
    let transaction = started.map_err(Refused::Store)?;
    admit(&transaction, resource, token)?;
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
/// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] with what SQLite says.
/// Roll back in any case.
pub fn admit(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let mut statement = transaction.prepare_cached(&TABLE.statement()).map_err(Refused::Store)?;
    let highest = statement.query_row((resource, token.as_i64()), |row| row.get(0));
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Deletes the fences that nobody touched for so many whole days; says how many. When that is safe
/// stands at [`sql::Table::sweep`].
///
/// # Errors
///
/// What SQLite says.
///
/// # Examples
///
/// ```
/// use tenure::fence;
///
/// let db = rusqlite::Connection::open_in_memory()?;
/// fence::rusqlite::create(&db)?;
/// let forgotten = fence::rusqlite::sweep(&db, 30)?;
/// # assert_eq!(forgotten, 0);
/// # Ok::<(), rusqlite::Error>(())
/// ```
pub fn sweep(connection: &Connection, days: u16) -> Result<u64, Error> {
    let deleted = connection.execute(&TABLE.sweep(), [days])?;
    Ok(deleted as u64)
}
