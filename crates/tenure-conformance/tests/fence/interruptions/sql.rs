//! Holders of a row of a SQL database, in two procedures: all in one transaction, or a first
//! contact, and later the write. The steps are the same for every client; [`SqlClient`] is what
//! differs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use rusqlite::TransactionBehavior;
use sqlx::{Connection as _, MySqlConnection, PgConnection};
use tenure::FencingToken;
use tenure::fence;
use tokio_postgres::Client;

use super::schedule::{Holder, Outcome, SharedResource, Steps};
use super::stores::{Procedure, scheme};
use crate::registers::{self, admitted, connect_postgres, sqlx_url};

pub(super) const READ: &str = "SELECT n FROM register WHERE name = ?";
pub(super) const WRITE: &str = "UPDATE register SET n = ? WHERE name = ?";
pub(super) const READ_DOLLAR: &str = "SELECT n FROM register WHERE name = $1";
const WRITE_DOLLAR: &str = "UPDATE register SET n = $2 WHERE name = $1";
pub(super) const WRITE_DOLLAR_NUMBER_FIRST: &str = "UPDATE register SET n = $1 WHERE name = $2";

/// A row of the table `register`.
pub(super) struct Row {
    url: String,
    name: String,
    procedure: Procedure,
}

impl Row {
    pub(super) async fn new(url: &str, name: &str, procedure: Procedure) -> Result<Row> {
        // Creates the row.
        drop(registers::open(url, name).await?);
        Ok(Row { url: url.to_owned(), name: name.to_owned(), procedure })
    }

    fn holder_with<C: SqlClient + 'static>(&self, client: C) -> Box<dyn Holder> {
        Box::new(SqlHolder { client, name: self.name.clone(), procedure: self.procedure })
    }
}

#[async_trait(?Send)]
impl SharedResource for Row {
    async fn holder(&self) -> Result<Box<dyn Holder>> {
        Ok(match scheme(&self.url) {
            "mysql" => self.holder_with(Conn::new(Opts::from_url(&self.url)?).await?),
            "postgres" => self.holder_with(connect_postgres(&self.url).await?),
            "sqlx+mysql" => self.holder_with(MySqlConnection::connect(sqlx_url(&self.url)).await?),
            "sqlx+postgres" => self.holder_with(PgConnection::connect(sqlx_url(&self.url)).await?),
            _ => {
                let db = rusqlite::Connection::open(self.url.trim_start_matches("sqlite://"))?;
                db.busy_timeout(Duration::from_secs(30))?;
                self.holder_with(db)
            }
        })
    }
}

/// What a holder does with a SQL database, by one of its clients.
pub(super) trait SqlClient {
    type Transaction<'a>
    where
        Self: 'a;

    /// A first contact. Whether it was admitted.
    async fn contact(&mut self, name: &str, token: FencingToken) -> Result<bool>;
    /// Reads the number, in no transaction.
    async fn read(&mut self, name: &str) -> Result<i64>;

    async fn begin(&mut self) -> Result<Self::Transaction<'_>>;
    /// Whether the token was admitted.
    async fn admit(tx: &mut Self::Transaction<'_>, name: &str, token: FencingToken)
    -> Result<bool>;
    async fn read_in(tx: &mut Self::Transaction<'_>, name: &str) -> Result<i64>;
    async fn write_in(tx: &mut Self::Transaction<'_>, name: &str, number: i64) -> Result<()>;
    async fn commit(tx: Self::Transaction<'_>) -> Result<()>;
    async fn rollback(tx: Self::Transaction<'_>) -> Result<()>;
}

struct SqlHolder<C> {
    client: C,
    name: String,
    procedure: Procedure,
}

#[async_trait(?Send)]
impl<C: SqlClient> Holder for SqlHolder<C> {
    async fn add(&mut self, token: FencingToken, by: i64, steps: &Steps) -> Result<Outcome> {
        let SqlHolder { client, name, procedure } = self;
        let mut first_read = None;
        if *procedure != Procedure::OneTransaction {
            steps.idle().await;
            if *procedure == Procedure::FirstContact && !client.contact(name, token).await? {
                return Ok(Outcome::Refused);
            }
            steps.idle().await;
            first_read = Some(client.read(name).await?);
        }
        loop {
            steps.idle().await;
            let mut tx = client.begin().await?;
            if steps.is_rolled_back().await {
                C::rollback(tx).await?;
                continue;
            }
            if !C::admit(&mut tx, name, token).await? {
                C::rollback(tx).await?;
                return Ok(Outcome::Refused);
            }
            if steps.is_rolled_back().await {
                C::rollback(tx).await?;
                continue;
            }
            let number = match first_read {
                Some(number) => number,
                None => C::read_in(&mut tx, name).await?,
            };
            if steps.is_rolled_back().await {
                C::rollback(tx).await?;
                continue;
            }
            C::write_in(&mut tx, name, number + by).await?;
            if steps.is_rolled_back().await {
                C::rollback(tx).await?;
                continue;
            }
            C::commit(tx).await?;
            return Ok(Outcome::Wrote);
        }
    }

    async fn settle(&mut self, token: FencingToken) -> Result<i64> {
        let mut tx = self.client.begin().await?;
        ensure!(C::admit(&mut tx, &self.name, token).await?, "the highest token is refused");
        let number = C::read_in(&mut tx, &self.name).await?;
        C::rollback(tx).await?;
        Ok(number)
    }
}

impl SqlClient for Client {
    type Transaction<'a> = tokio_postgres::Transaction<'a>;

    async fn contact(&mut self, name: &str, token: FencingToken) -> Result<bool> {
        admitted(fence::tokio_postgres::contact(self, name, token).await)
    }

    async fn read(&mut self, name: &str) -> Result<i64> {
        Ok(self.query_one(READ_DOLLAR, &[&name]).await?.get(0))
    }

    async fn begin(&mut self) -> Result<Self::Transaction<'_>> {
        Ok(self.transaction().await?)
    }

    async fn admit(
        tx: &mut Self::Transaction<'_>,
        name: &str,
        token: FencingToken,
    ) -> Result<bool> {
        admitted(fence::tokio_postgres::admit(tx, name, token).await)
    }

    async fn read_in(tx: &mut Self::Transaction<'_>, name: &str) -> Result<i64> {
        Ok(tx.query_one(READ_DOLLAR, &[&name]).await?.get(0))
    }

    async fn write_in(tx: &mut Self::Transaction<'_>, name: &str, number: i64) -> Result<()> {
        tx.execute(WRITE_DOLLAR, &[&name, &number]).await?;
        Ok(())
    }

    async fn commit(tx: Self::Transaction<'_>) -> Result<()> {
        Ok(tx.commit().await?)
    }

    /// By dropping it, as a caller does whose future is dropped.
    async fn rollback(tx: Self::Transaction<'_>) -> Result<()> {
        drop(tx);
        Ok(())
    }
}

impl SqlClient for Conn {
    type Transaction<'a> = mysql_async::Transaction<'a>;

    async fn contact(&mut self, name: &str, token: FencingToken) -> Result<bool> {
        admitted(fence::mysql_async::contact(self, name, token).await)
    }

    async fn read(&mut self, name: &str) -> Result<i64> {
        self.exec_first(READ, (name,)).await?.context("a row")
    }

    async fn begin(&mut self) -> Result<Self::Transaction<'_>> {
        Ok(self.start_transaction(TxOpts::default()).await?)
    }

    async fn admit(
        tx: &mut Self::Transaction<'_>,
        name: &str,
        token: FencingToken,
    ) -> Result<bool> {
        admitted(fence::mysql_async::admit(tx, name, token).await)
    }

    async fn read_in(tx: &mut Self::Transaction<'_>, name: &str) -> Result<i64> {
        tx.exec_first(READ, (name,)).await?.context("a row")
    }

    async fn write_in(tx: &mut Self::Transaction<'_>, name: &str, number: i64) -> Result<()> {
        Ok(tx.exec_drop(WRITE, (number, name)).await?)
    }

    async fn commit(tx: Self::Transaction<'_>) -> Result<()> {
        Ok(tx.commit().await?)
    }

    async fn rollback(tx: Self::Transaction<'_>) -> Result<()> {
        Ok(tx.rollback().await?)
    }
}

impl SqlClient for rusqlite::Connection {
    type Transaction<'a> = rusqlite::Transaction<'a>;

    async fn contact(&mut self, name: &str, token: FencingToken) -> Result<bool> {
        admitted(fence::rusqlite::contact(self, name, token))
    }

    async fn read(&mut self, name: &str) -> Result<i64> {
        Ok(self.query_row(READ, [name], |row| row.get(0))?)
    }

    async fn begin(&mut self) -> Result<Self::Transaction<'_>> {
        Ok(self.transaction_with_behavior(TransactionBehavior::Immediate)?)
    }

    async fn admit(
        tx: &mut Self::Transaction<'_>,
        name: &str,
        token: FencingToken,
    ) -> Result<bool> {
        admitted(fence::rusqlite::admit(tx, name, token))
    }

    async fn read_in(tx: &mut Self::Transaction<'_>, name: &str) -> Result<i64> {
        Ok(tx.query_row(READ, [name], |row| row.get(0))?)
    }

    async fn write_in(tx: &mut Self::Transaction<'_>, name: &str, number: i64) -> Result<()> {
        tx.execute(WRITE, (number, name))?;
        Ok(())
    }

    async fn commit(tx: Self::Transaction<'_>) -> Result<()> {
        Ok(tx.commit()?)
    }

    /// By dropping it, as a caller does whose future is dropped.
    async fn rollback(tx: Self::Transaction<'_>) -> Result<()> {
        drop(tx);
        Ok(())
    }
}
