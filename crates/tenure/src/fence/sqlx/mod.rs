//! The fence in PostgreSQL, MySQL or MariaDB, in a transaction of `sqlx` 0.9.
//! Needs Rust 1.94, as sqlx does.
//!
//! Read and write in one transaction:
//!
//! ```no_run
//! use tenure::{fence, FencingToken};
//!
//! # #[cfg(feature = "fence-sqlx-postgres")]
//! # async fn example(pool: &sqlx::PgPool, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! fence::sqlx::create(&mut *pool.acquire().await?).await?; // once, among the migrations
//!
//! let mut tx = pool.begin().await?;
//! fence::sqlx::admit(&mut tx, "stock/42", token).await?; // first, before any read
//! sqlx::query("UPDATE stock SET n = n - 1 WHERE item = 42").execute(&mut *tx).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! With a computation between the read and the write:
//!
//! ```no_run
//! use tenure::{fence, FencingToken};
//!
//! # #[cfg(feature = "fence-sqlx-postgres")]
//! # async fn example(pool: &sqlx::PgPool, token: FencingToken)
//! #     -> Result<(), Box<dyn std::error::Error>> {
//! let mut db = pool.acquire().await?;
//! fence::sqlx::contact(&mut *db, "stock/42", token).await?; // committed when it returns
//! let n = sqlx::query_scalar("SELECT n FROM stock WHERE item = 42");
//! let left = n.fetch_one(&mut *db).await.map(|n: i64| n - 1)?; // may take its time
//!
//! let mut tx = pool.begin().await?;
//! fence::sqlx::admit(&mut tx, "stock/42", token).await?; // and again with the write
//! let write = sqlx::query("UPDATE stock SET n = $1 WHERE item = 42");
//! write.bind(left).execute(&mut *tx).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! For SQLite see the page `docs/fencing.md`: its feature of sqlx would hold back the SQLite that
//! tenure carries.

mod statements;

use ::sqlx::{Connection, Database, Error, Transaction};

use super::refused::Refused;
use super::sql;
use crate::token::FencingToken;

/// The table of fences in a schema other than `public`, or in MySQL in a database other than the
/// connection's. The functions of this module use the table that is there without it.
///
/// All clients that share a resource have to use the same table.
///
/// # Examples
///
/// ```no_run
/// use tenure::{fence::sqlx::FenceTable, FencingToken};
///
/// # #[cfg(feature = "fence-sqlx-postgres")]
/// # async fn example(db: &mut sqlx::PgConnection, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// let fences = FenceTable::in_schema("shop");
/// fences.create(db).await?; // once, among the migrations
/// fences.contact(db, "stock/42", token).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FenceTable {
    schema: Option<String>,
}

impl FenceTable {
    /// The table in this schema, which has to exist already.
    pub fn in_schema(schema: impl Into<String>) -> FenceTable {
        FenceTable { schema: Some(schema.into()) }
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
    pub async fn create<C: FenceConnection>(&self, connection: &mut C) -> Result<(), Error> {
        connection.create(&self.table::<C>()).await
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
    pub async fn contact<C: FenceConnection>(
        &self,
        connection: &mut C,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>>
    where
        <C::Database as Database>::Connection: FenceConnection,
    {
        contact_with(connection, self.table::<C>().statement(), resource, token).await
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
    pub async fn contact_shared<C: FenceConnection>(
        &self,
        connection: &mut C,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>>
    where
        <C::Database as Database>::Connection: FenceConnection,
    {
        contact_with(connection, self.table::<C>().statement_shared(), resource, token).await
    }

    /// As the function [`admit`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`admit`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future does not stop the statement; a dropped transaction is
    /// rolled back when its connection is used again or goes back to its pool.
    pub async fn admit<D: Database<Connection: FenceConnection>>(
        &self,
        transaction: &mut Transaction<'_, D>,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        let statement = self.table::<D::Connection>().statement();
        send_token(&mut **transaction, statement, resource, token).await
    }

    /// As the function [`admit_shared`], for this table.
    ///
    /// # Errors
    ///
    /// As for [`admit_shared`].
    ///
    /// # Cancel safety
    ///
    /// As for [`admit`](FenceTable::admit).
    pub async fn admit_shared<D: Database<Connection: FenceConnection>>(
        &self,
        transaction: &mut Transaction<'_, D>,
        resource: &str,
        token: FencingToken,
    ) -> Result<(), Refused<Error>> {
        let statement = self.table::<D::Connection>().statement_shared();
        send_token(&mut **transaction, statement, resource, token).await
    }

    /// As the function [`sweep`], for this table.
    ///
    /// # Errors
    ///
    /// What the server says.
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future does not stop the statement.
    pub async fn sweep<C: FenceConnection>(
        &self,
        connection: &mut C,
        days: u16,
    ) -> Result<u64, Error> {
        connection.run(self.table::<C>().sweep(), Some(i64::from(days))).await
    }

    fn table<C: FenceConnection>(&self) -> sql::Table {
        let table = sql::Table::new(C::DIALECT);
        match &self.schema {
            Some(schema) => table.schema(schema),
            None => table,
        }
    }
}

/// Creates the table of fences, if it is missing: `public.tenure_fence` in PostgreSQL, that of the
/// connection's database in MySQL. One of before readers had tokens gets the column `shared`.
///
/// # Errors
///
/// What the server says; PostgreSQL refuses if `search_path` shows another table of that name (see
/// [`sql::Table::create`]). It can also fail if two clients create the table at the same moment.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement.
pub async fn create<C: FenceConnection>(connection: &mut C) -> Result<(), Error> {
    FenceTable::default().create(connection).await
}

/// The first contact, in a transaction of its own: admits this token for this resource, and from
/// now on none below it. It is committed when this returns, so that no stale holder can change what
/// is read afterwards. In PostgreSQL it is on the disk too, whatever `synchronous_commit` says; in
/// MySQL a server with `innodb_flush_log_at_trx_commit` below 1 can lose it in a power failure.
///
/// Refused on a connection that is in a transaction: it would be a savepoint, and last no longer.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with what the server says. Read nothing then.
///
/// # Cancel safety
///
/// **Not undone.** The token may have been seen; to send it again is safe.
pub async fn contact<C: FenceConnection>(
    connection: &mut C,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>>
where
    <C::Database as Database>::Connection: FenceConnection,
{
    FenceTable::default().contact(connection, resource, token).await
}

/// The first contact of a reader, in a transaction of its own: as [`contact`], but other readers
/// are admitted whatever their order. So no stale writer can change what is read afterwards.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// what the server says. Read nothing then.
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
/// # #[cfg(feature = "fence-sqlx-postgres")]
/// # async fn example(db: &mut sqlx::PgConnection, token: FencingToken)
/// #     -> Result<(), Box<dyn std::error::Error>> {
/// fence::sqlx::contact_shared(db, "stock/42", token).await?; // before the first read
/// let n = sqlx::query_scalar("SELECT n FROM stock WHERE item = 42");
/// let n: i64 = n.fetch_one(db).await?;
/// # Ok(()) }
/// ```
pub async fn contact_shared<C: FenceConnection>(
    connection: &mut C,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>>
where
    <C::Database as Database>::Connection: FenceConnection,
{
    FenceTable::default().contact_shared(connection, resource, token).await
}

/// Admits this token for this resource in this transaction, and from now on none below it.
///
/// **If the transaction is not committed, nothing was fenced**, and what was read in it must not be
/// used. Where the write comes in a later transaction, begin with [`contact`].
///
/// In MySQL the token remains the connection's `LAST_INSERT_ID()`: read that of your own insert
/// right after the insert.
///
/// # Errors
///
/// [`Refused::Stale`] if a higher token was admitted before, of a writer or of a reader;
/// [`Refused::Store`] with what the server says. Roll back in any case.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement; a dropped transaction is rolled
/// back when its connection is used again or goes back to its pool.
pub async fn admit<D: Database<Connection: FenceConnection>>(
    transaction: &mut Transaction<'_, D>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    FenceTable::default().admit(transaction, resource, token).await
}

/// Admits this token of a reader for this resource in this transaction, and from now on no lower
/// one of a writer. As for [`admit`], the transaction has to be committed.
///
/// # Errors
///
/// [`Refused::Stale`] if a writer with a higher token was admitted before, [`Refused::Store`] with
/// what the server says. Roll back in any case.
///
/// # Cancel safety
///
/// As for [`admit`].
pub async fn admit_shared<D: Database<Connection: FenceConnection>>(
    transaction: &mut Transaction<'_, D>,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    FenceTable::default().admit_shared(transaction, resource, token).await
}

/// Deletes the fences that no client used for so many whole days, and returns how many.
/// [`sql::Table::sweep`] says when that is safe.
///
/// # Errors
///
/// What the server says; in MySQL try again after a deadlock with the admission of a token.
///
/// # Cancel safety
///
/// **Not undone.** Dropping the future does not stop the statement.
///
/// # Examples
///
/// ```no_run
/// # #[cfg(feature = "fence-sqlx-postgres")]
/// # async fn example(db: &mut sqlx::PgConnection) -> Result<(), sqlx::Error> {
/// let forgotten = tenure::fence::sqlx::sweep(db, 30).await?;
/// # Ok(()) }
/// ```
pub async fn sweep<C: FenceConnection>(connection: &mut C, days: u16) -> Result<u64, Error> {
    FenceTable::default().sweep(connection, days).await
}

/// A connection of sqlx to a server with a fence: `PgConnection` and `MySqlConnection`. Those of a
/// pool and of a transaction dereference to it: `&mut *pool.acquire().await?`.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "fence-sqlx-postgres")] {
/// fn has_a_fence<C: tenure::fence::sqlx::FenceConnection>() {}
/// has_a_fence::<sqlx::PgConnection>();
/// # }
/// ```
pub trait FenceConnection: Connection + statements::private::Statements {}

impl<C: Connection + statements::private::Statements> FenceConnection for C {}

async fn contact_with<C: FenceConnection>(
    connection: &mut C,
    statement: String,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>>
where
    <C::Database as Database>::Connection: FenceConnection,
{
    if connection.is_in_transaction() {
        let message = "a first contact in a transaction lasts no longer than that; use `admit`";
        return Err(Refused::Store(Error::Protocol(message.to_owned())));
    }
    let mut transaction = connection.begin().await.map_err(Refused::Store)?;
    // Durable for this transaction only: `sql` says what a first contact has to survive.
    let statement = statement + C::DURABLE;
    match send_token(&mut *transaction, statement, resource, token).await {
        Ok(()) => transaction.commit().await.map_err(Refused::Store),
        Err(refused) => {
            // Dropped, it would keep its row locked until the connection is used again.
            transaction.rollback().await.map_err(Refused::Store)?;
            Err(refused)
        }
    }
}

async fn send_token<C: FenceConnection>(
    connection: &mut C,
    statement: String,
    resource: &str,
    token: FencingToken,
) -> Result<(), Refused<Error>> {
    let highest = connection.highest(statement, resource, token.as_i64()).await;
    sql::judge(token, highest.map_err(Refused::Store)?)
}
