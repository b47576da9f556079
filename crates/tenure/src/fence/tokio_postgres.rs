//! The fence in PostgreSQL, in a transaction of `tokio_postgres`.
//!
//! Read and write in one transaction:
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
//!
//! With a computation between the read and the write:
//!
//! ```no_run
//! use tenure::{fence, FencingToken};
//!
//! # async fn example(db: &mut tokio_postgres::Client, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! fence::tokio_postgres::contact(db, "stock/42", token).await?; // committed when it returns
//! let row = db.query_one("SELECT n FROM stock WHERE item = 42", &[]).await?;
//! let left = row.get::<_, i32>(0) - 1; // may take its time
//!
//! let tx = db.transaction().await?;
//! fence::tokio_postgres::admit(&tx, "stock/42", token).await?; // and again with the write
//! tx.execute("UPDATE stock SET n = $1 WHERE item = 42", &[&left]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

use ::tokio_postgres::types::{ToSql, Type};
use ::tokio_postgres::{Client, Error, Transaction};

use super::refused::Refused;
use super::sql::{self, Dialect};
use crate::token::FencingToken;

/// The table in `public`, which the functions of this module use.
const PUBLIC: Table = Table(sql::Table::new(Dialect::Postgres));

/// The table of fences in a schema other than `public`, which the functions of this module use.
///
/// All clients that share a resource have to use the same table, whatever their role and
/// `search_path`.
///
/// # Examples
///
/// ```no_run
/// use tenure::{fence::tokio_postgres::Table, FencingToken};
///
/// # async fn example(db: &mut tokio_postgres::Client, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let fences = Table::in_schema("shop");
/// fences.create(db).await?; // once, among the migrations
/// fences.contact(db, "stock/42", token).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table(sql::Table);

impl Table {
    /// The table in this schema, which has to exist already.
    pub fn in_schema(schema: impl Into<String>) -> Table {
        Table(sql::Table::new(Dialect::Postgres).schema(schema))
    }

    /// As the function [`create`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`create`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future does not stop the statement.
    pub async fn create(&self, client: &Client) -> Result<(), Error> {
        client.batch_execute(&self.0.create()).await
    }

    /// As the function [`contact`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`contact`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** The token may have been seen; to send it again is safe.
    pub async fn contact(
        &self,
        client: &mut Client,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        contact_with(client, self.0.statement(), resource, token).await
    }

    /// As the function [`contact_shared`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`contact_shared`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** The token may have been seen; to send it again is safe.
    pub async fn contact_shared(
        &self,
        client: &mut Client,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        contact_with(client, self.0.statement_shared(), resource, token).await
    }

    /// As the function [`admit`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`admit`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future does not stop the statement; dropping the
    /// transaction rolls it back.
    pub async fn admit(
        &self,
        transaction: &Transaction<'_>,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        send_token(transaction, &self.0.statement(), resource, token).await
    }

    /// As the function [`admit_shared`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`admit_shared`].
    ///
    /// # Cancel safety
    ///
    /// As for [`admit`](Table::admit).
    pub async fn admit_shared(
        &self,
        transaction: &Transaction<'_>,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        send_token(transaction, &self.0.statement_shared(), resource, token).await
    }

    /// As the function [`sweep`], for this table.
    ///
    /// # Errors
    ///
    /// What PostgreSQL says.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future does not stop the statement.
    pub async fn sweep(&self, client: &Client, days: u16) -> Result<u64, Error> {
        let days = i64::from(days);
        client.execute_typed(&self.0.sweep(), &[(&days, Type::INT8)]).await
    }
}

/// Creates the table of fences `public.tenure_fence`, if it is missing; one of before readers had
/// tokens gets the column `shared`.
///
/// # Errors
///
/// What PostgreSQL says; it refuses if `search_path` shows another table of that name (see
/// [`sql::Table::create`]). It can also fail if two clients create the table at the same moment.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement.
pub async fn create(client: &Client) -> Result<(), Error> {
    PUBLIC.create(client).await
}

/// The first contact, in a transaction of its own: admits this token for this resource, and from
/// now on none below it. It is committed and on the disk when this returns, so that no stale holder
/// can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with what PostgreSQL says. Read nothing then.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to send it again is safe.
pub async fn contact(
    client: &mut Client,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    PUBLIC.contact(client, resource, token).await
}

/// The first contact of a reader, in a transaction of its own: as [`contact`], but other readers
/// are admitted whatever their order. So no stale writer can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// what PostgreSQL says. Read nothing then.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to send it again is safe.
///
/// # Examples
///
/// ```no_run
/// use tenure::{fence, FencingToken};
///
/// # async fn example(db: &mut tokio_postgres::Client, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// fence::tokio_postgres::contact_shared(db, "stock/42", token).await?; // before the first read
/// let row = db.query_one("SELECT n FROM stock WHERE item = 42", &[]).await?;
/// # Ok(()) }
/// ```
pub async fn contact_shared(
    client: &mut Client,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    PUBLIC.contact_shared(client, resource, token).await
}

/// Admits this token for this resource in this transaction, and from now on none below it. One
/// round trip and no prepared statement, so that it works behind a pooler.
///
/// **If the transaction is not committed, nothing was fenced**, and what was read in it must not be
/// used. Where the write comes in a later transaction, begin with [`contact`].
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with what PostgreSQL says. Roll back in any case.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement; dropping the transaction
/// rolls it back.
pub async fn admit(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    PUBLIC.admit(transaction, resource, token).await
}

/// Admits this token of a reader for this resource in this transaction, and from now on no lower
/// one of a writer. As for [`admit`], the transaction has to be committed.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// what PostgreSQL says. Roll back in any case.
///
/// # Cancel safety
///
/// As for [`admit`].
pub async fn admit_shared(
    transaction: &Transaction<'_>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    PUBLIC.admit_shared(transaction, resource, token).await
}

/// Deletes the fences that no client used for so many whole days, and returns how many.
/// [`sql::Table::sweep`] says when that is safe.
///
/// # Errors
///
/// What PostgreSQL says.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement.
///
/// # Examples
///
/// ```no_run
/// # async fn example(db: &tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
/// let forgotten = tenure::fence::tokio_postgres::sweep(db, 30).await?;
/// # Ok(()) }
/// ```
pub async fn sweep(client: &Client, days: u16) -> Result<u64, Error> {
    PUBLIC.sweep(client, days).await
}

async fn contact_with(
    client: &mut Client,
    statement: String,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let transaction = client.transaction().await.map_err(Refused::Store)?;
    // Durable for this transaction only: `sql` says what a first contact has to survive.
    let statement = statement + sql::POSTGRES_DURABLE;
    send_token(&transaction, &statement, resource, token).await?;
    transaction.commit().await.map_err(Refused::Store)
}

async fn send_token(
    transaction: &Transaction<'_>,
    statement: &str,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let number = token.as_i64();
    let values: [(&(dyn ToSql + Sync), Type); 2] = [(&resource, Type::TEXT), (&number, Type::INT8)];
    let rows = transaction.query_typed(statement, &values).await;
    // An upsert with RETURNING returns one row, or fails. 0 is refused as garbage.
    let highest = rows.and_then(|rows| rows.first().map_or(Ok(0), |row| row.try_get(0)));
    sql::judge(token, highest.map_err(Refused::Store)?)
}
