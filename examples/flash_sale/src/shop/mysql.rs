//! A shop in MySQL or MariaDB, in tables that begin with `flash_sale_`.

use anyhow::{Context, Result};
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Transaction, TxOpts};
use tenure::{FencingToken, fence};

use super::{Shop, admitted, resource};

struct Mysql(Conn);

pub(super) async fn open(url: &str) -> Result<impl Shop + use<>> {
    Ok(Mysql(Conn::new(Opts::from_url(url)?).await?))
}

impl Mysql {
    /// Begins a transaction with the fencing check. `None` if the token is refused.
    async fn begin(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<Transaction<'_>>> {
        let mut tx = self.0.start_transaction(TxOpts::default()).await?;
        let Some(token) = token else { return Ok(Some(tx)) };
        let admitted =
            admitted(fence::mysql_async::admit(&mut tx, &resource(article), token).await)?;
        if admitted {
            return Ok(Some(tx));
        }
        tx.rollback().await?;
        Ok(None)
    }
}

#[async_trait]
impl Shop for Mysql {
    async fn stock_up(&mut self, articles: u32, pieces: i64) -> Result<()> {
        for sql in [
            "CREATE TABLE IF NOT EXISTS flash_sale_stock
             (article INT PRIMARY KEY, pieces BIGINT) ENGINE = InnoDB",
            "CREATE TABLE IF NOT EXISTS flash_sale_orders
             (id BIGINT AUTO_INCREMENT PRIMARY KEY, article INT) ENGINE = InnoDB",
            "DELETE FROM flash_sale_stock",
            "DELETE FROM flash_sale_orders",
        ] {
            self.0.query_drop(sql).await?;
        }
        fence::mysql_async::create(&mut self.0).await?;
        for article in 0..articles {
            let sql = "INSERT INTO flash_sale_stock VALUES (?, ?)";
            self.0.exec_drop(sql, (article, pieces)).await?;
        }
        Ok(())
    }

    async fn read_stock(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<i64>> {
        if let Some(token) = token {
            let resource = resource(article);
            if !admitted(fence::mysql_async::contact(&mut self.0, &resource, token).await)? {
                return Ok(None);
            }
        }
        let sql = "SELECT pieces FROM flash_sale_stock WHERE article = ?";
        let left = self.0.exec_first(sql, (article,)).await?;
        Ok(Some(left.context("no such article")?))
    }

    async fn sell(&mut self, article: u32, left: i64, token: Option<FencingToken>) -> Result<bool> {
        let Some(mut tx) = self.begin(article, token).await? else { return Ok(false) };
        let sql = "UPDATE flash_sale_stock SET pieces = ? WHERE article = ?";
        tx.exec_drop(sql, (left, article)).await?;
        let sql = "INSERT INTO flash_sale_orders (article) VALUES (?)";
        tx.exec_drop(sql, (article,)).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn sold(&mut self) -> Result<u32> {
        let count = self.0.query_first("SELECT count(*) FROM flash_sale_orders").await?;
        count.context("a count")
    }

    async fn close(&mut self) -> Result<()> {
        // The table may contain fences of other programs.
        fence::mysql_async::create(&mut self.0).await?;
        for sql in [
            "DROP TABLE IF EXISTS flash_sale_stock, flash_sale_orders",
            "DELETE FROM tenure_fence WHERE resource LIKE 'flash-sale/%'",
        ] {
            self.0.query_drop(sql).await?;
        }
        Ok(())
    }
}
