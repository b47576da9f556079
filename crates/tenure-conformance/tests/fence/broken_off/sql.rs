//! Holders of a row, in the two ways of the page: all in one transaction, or a first contact, and
//! later the write.

use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use rusqlite::{Connection, TransactionBehavior};
use tenure::FencingToken;
use tenure::fence;
use tokio_postgres::Client;

use super::grounds::{Way, scheme};
use super::play::{Ground, Holder, Outcome, Steps};
use crate::registers::{self, admitted, connect_postgres};

/// A row of the table `register`.
pub(super) struct Database {
    url: String,
    name: String,
    way: Way,
}

impl Database {
    pub(super) async fn new(url: &str, name: &str, way: Way) -> Result<Database> {
        // Makes the row.
        drop(registers::open(url, name).await?);
        Ok(Database { url: url.to_owned(), name: name.to_owned(), way })
    }
}

impl Ground for Database {
    fn open(&self) -> LocalBoxFuture<'_, Result<Box<dyn Holder>>> {
        async move {
            let (name, way) = (self.name.clone(), self.way);
            Ok(match scheme(&self.url) {
                "mysql" => {
                    let db = Conn::new(Opts::from_url(&self.url)?).await?;
                    Box::new(Mysql { db, name, way }) as Box<dyn Holder>
                }
                "postgres" => {
                    Box::new(Postgres { db: connect_postgres(&self.url).await?, name, way })
                }
                _ => {
                    let db = Connection::open(self.url.trim_start_matches("sqlite://"))?;
                    db.busy_timeout(Duration::from_secs(30))?;
                    Box::new(Sqlite { db, name, way })
                }
            })
        }
        .boxed_local()
    }
}

struct Postgres {
    db: Client,
    name: String,
    way: Way,
}

impl Postgres {
    async fn first_contact(&mut self, token: FencingToken) -> Result<bool> {
        admitted(fence::tokio_postgres::contact(&mut self.db, &self.name, token).await)
    }
}

impl Holder for Postgres {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            let mut number = None;
            if self.way != Way::OneTransaction {
                steps.rest().await;
                if self.way == Way::FirstContact && !self.first_contact(token).await? {
                    return Ok(Outcome::Refused);
                }
                steps.rest().await;
                let row = self.db.query_one(READ_DOLLAR, &[&self.name]).await?;
                number = Some(row.get(0));
            }
            loop {
                steps.rest().await;
                let tx = self.db.transaction().await?;
                if steps.breaks().await {
                    continue;
                }
                if !admitted(fence::tokio_postgres::admit(&tx, &self.name, token).await)? {
                    return Ok(Outcome::Refused);
                }
                if steps.breaks().await {
                    continue;
                }
                let number: i64 = match number {
                    Some(number) => number,
                    None => tx.query_one(READ_DOLLAR, &[&self.name]).await?.get(0),
                };
                if steps.breaks().await {
                    continue;
                }
                let sql = "UPDATE register SET n = $2 WHERE name = $1";
                tx.execute(sql, &[&self.name, &(number + by)]).await?;
                if steps.breaks().await {
                    continue;
                }
                tx.commit().await?;
                return Ok(Outcome::Wrote);
            }
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move {
            let tx = self.db.transaction().await?;
            fence::tokio_postgres::admit(&tx, &self.name, token).await?;
            Ok(tx.query_one(READ_DOLLAR, &[&self.name]).await?.get(0))
        }
        .boxed_local()
    }
}

struct Mysql {
    db: Conn,
    name: String,
    way: Way,
}

impl Mysql {
    async fn first_contact(&mut self, token: FencingToken) -> Result<bool> {
        admitted(fence::mysql_async::contact(&mut self.db, &self.name, token).await)
    }
}

impl Holder for Mysql {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            let mut number: Option<i64> = None;
            if self.way != Way::OneTransaction {
                steps.rest().await;
                if self.way == Way::FirstContact && !self.first_contact(token).await? {
                    return Ok(Outcome::Refused);
                }
                steps.rest().await;
                number = Some(self.db.exec_first(READ, (&self.name,)).await?.context("a row")?);
            }
            loop {
                steps.rest().await;
                let mut tx = self.db.start_transaction(TxOpts::default()).await?;
                if steps.breaks().await {
                    tx.rollback().await?;
                    continue;
                }
                if !admitted(fence::mysql_async::admit(&mut tx, &self.name, token).await)? {
                    tx.rollback().await?;
                    return Ok(Outcome::Refused);
                }
                if steps.breaks().await {
                    tx.rollback().await?;
                    continue;
                }
                let number: i64 = match number {
                    Some(number) => number,
                    None => tx.exec_first(READ, (&self.name,)).await?.context("a row")?,
                };
                if steps.breaks().await {
                    tx.rollback().await?;
                    continue;
                }
                tx.exec_drop("UPDATE register SET n = ? WHERE name = ?", (number + by, &self.name))
                    .await?;
                if steps.breaks().await {
                    tx.rollback().await?;
                    continue;
                }
                tx.commit().await?;
                return Ok(Outcome::Wrote);
            }
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move {
            let mut tx = self.db.start_transaction(TxOpts::default()).await?;
            fence::mysql_async::admit(&mut tx, &self.name, token).await?;
            let number = tx.exec_first(READ, (&self.name,)).await?.context("a row")?;
            tx.rollback().await?;
            Ok(number)
        }
        .boxed_local()
    }
}

struct Sqlite {
    db: Connection,
    name: String,
    way: Way,
}

impl Sqlite {
    fn first_contact(&mut self, token: FencingToken) -> Result<bool> {
        admitted(fence::rusqlite::contact(&mut self.db, &self.name, token))
    }
}

impl Holder for Sqlite {
    fn change<'a>(
        &'a mut self,
        token: FencingToken,
        by: i64,
        steps: &'a Steps,
    ) -> LocalBoxFuture<'a, Result<Outcome>> {
        async move {
            let mut number: Option<i64> = None;
            if self.way != Way::OneTransaction {
                steps.rest().await;
                if self.way == Way::FirstContact && !self.first_contact(token)? {
                    return Ok(Outcome::Refused);
                }
                steps.rest().await;
                number = Some(self.db.query_row(READ, [&self.name], |row| row.get(0))?);
            }
            loop {
                steps.rest().await;
                let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                if steps.breaks().await {
                    continue;
                }
                if !admitted(fence::rusqlite::admit(&tx, &self.name, token))? {
                    return Ok(Outcome::Refused);
                }
                if steps.breaks().await {
                    continue;
                }
                let number = match number {
                    Some(number) => number,
                    None => tx.query_row(READ, [&self.name], |row| row.get(0))?,
                };
                if steps.breaks().await {
                    continue;
                }
                tx.execute("UPDATE register SET n = ? WHERE name = ?", (number + by, &self.name))?;
                if steps.breaks().await {
                    continue;
                }
                tx.commit()?;
                return Ok(Outcome::Wrote);
            }
        }
        .boxed_local()
    }

    fn settle(&mut self, token: FencingToken) -> LocalBoxFuture<'_, Result<i64>> {
        async move {
            let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            fence::rusqlite::admit(&tx, &self.name, token)?;
            Ok(tx.query_row(READ, [&self.name], |row| row.get(0))?)
        }
        .boxed_local()
    }
}

const READ: &str = "SELECT n FROM register WHERE name = ?";
const READ_DOLLAR: &str = "SELECT n FROM register WHERE name = $1";
