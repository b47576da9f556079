//! A shop in SQLite.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tenure::{FencingToken, fence};

use super::{Shop, admitted, resource};

struct Sqlite(Connection);

pub(super) fn open(path: &str) -> Result<impl Shop + use<>> {
    let db = Connection::open(path)?;
    db.busy_timeout(Duration::from_secs(30))?;
    db.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
         CREATE TABLE IF NOT EXISTS stock (article INTEGER PRIMARY KEY, pieces INTEGER);
         CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, article INTEGER);",
    )?;
    fence::rusqlite::create(&db)?;
    Ok(Sqlite(db))
}

impl Sqlite {
    /// Begins a transaction with the fencing check. `None` if the token is refused.
    fn begin(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<Transaction<'_>>> {
        let tx = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let Some(token) = token else { return Ok(Some(tx)) };
        let admitted = admitted(fence::rusqlite::admit(&tx, &resource(article), token))?;
        Ok(admitted.then_some(tx))
    }
}

#[async_trait]
impl Shop for Sqlite {
    async fn stock_up(&mut self, articles: u32, pieces: i64) -> Result<()> {
        self.0.execute_batch("DELETE FROM stock; DELETE FROM orders")?;
        for article in 0..articles {
            self.0.execute("INSERT INTO stock VALUES (?1, ?2)", (article, pieces))?;
        }
        Ok(())
    }

    async fn read_stock(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<i64>> {
        if let Some(token) = token
            && !admitted(fence::rusqlite::contact(&mut self.0, &resource(article), token))?
        {
            return Ok(None);
        }
        let sql = "SELECT pieces FROM stock WHERE article = ?1";
        Ok(Some(self.0.query_row(sql, [article], |row| row.get(0))?))
    }

    async fn sell(&mut self, article: u32, left: i64, token: Option<FencingToken>) -> Result<bool> {
        let Some(tx) = self.begin(article, token)? else { return Ok(false) };
        tx.execute("UPDATE stock SET pieces = ?2 WHERE article = ?1", (article, left))?;
        tx.execute("INSERT INTO orders (article) VALUES (?1)", [article])?;
        tx.commit()?;
        Ok(true)
    }

    async fn sold(&mut self) -> Result<u32> {
        Ok(self.0.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))?)
    }

    /// Does nothing: the folder with the file is removed.
    async fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
