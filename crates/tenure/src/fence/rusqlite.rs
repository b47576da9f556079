//! The fence in SQLite, in a transaction of `rusqlite`.
//!
//! Begin it with [`TransactionBehavior::Immediate`]: SQLite then waits for its turn at the
//! beginning, and does not have to refuse a reader that wants to write.
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

#[cfg(doc)]
use ::rusqlite::TransactionBehavior;
use ::rusqlite::{Connection, Error, Transaction};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

/// Makes the table of fences, if it is not there.
///
/// # Errors
///
/// What SQLite says.
pub fn create(connection: &Connection) -> Result<(), Error> {
    connection.execute_batch(sql::schema(Dialect::Sqlite))
}

/// Admits this token for this resource in this transaction, and from now on none below it.
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
    let mut statement =
        transaction.prepare_cached(sql::statement(Dialect::Sqlite)).map_err(Refused::Store)?;
    let highest = statement.query_row((resource, token.as_i64()), |row| row.get(0));
    sql::judge(token, highest.map_err(Refused::Store)?)
}

/// Deletes the fences that nobody touched for so many whole days; says how many. When that is safe
/// stands at [`sql::sweep`].
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
    let deleted = connection.execute(sql::sweep(Dialect::Sqlite), [days])?;
    Ok(deleted as u64)
}
