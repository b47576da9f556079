//! In a MariaDB database.

use anyhow::{Context, Result};
use async_trait::async_trait;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, Transaction, TxOpts};
use tenure::FencingToken;
use tenure::fence;

use super::{FenceResult, Register, split_stale};

struct Mysql {
    db: Conn,
    name: String,
}

pub(super) async fn prepare(url: &str) -> Result<()> {
    let mut db = connect(url).await?;
    let table = "CREATE TABLE IF NOT EXISTS register (name VARCHAR(99) PRIMARY KEY, n BIGINT)";
    db.query_drop(table).await?;
    fence::mysql_async::create(&mut db).await?;
    Ok(db.disconnect().await?)
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Register + use<>> {
    let mut db = connect(url).await?;
    db.exec_drop("INSERT IGNORE INTO register VALUES (?, 0)", (name,)).await?;
    Ok(Mysql { db, name: name.to_owned() })
}

async fn connect(url: &str) -> Result<Conn> {
    Ok(Conn::new(Opts::from_url(url)?).await?)
}

#[async_trait]
impl Register for Mysql {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        if let Some(token) = token {
            let contact = fence::mysql_async::contact(&mut self.db, &self.name, token);
            if let Err(stale) = split_stale(contact.await)? {
                return Ok(Err(stale));
            }
        }
        let sql = "SELECT n FROM register WHERE name = ?";
        Ok(Ok(self.db.exec_first(sql, (&self.name,)).await?.context("a row")?))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        let contact = fence::mysql_async::contact_shared(&mut self.db, &self.name, token);
        if let Err(stale) = split_stale(contact.await)? {
            return Ok(Err(stale));
        }
        let mut tx = self.db.start_transaction(TxOpts::default()).await?;
        let admitted = fence::mysql_async::admit_shared(&mut tx, &self.name, token).await;
        if let Err(stale) = split_stale(admitted)? {
            tx.rollback().await?;
            return Ok(Err(stale));
        }
        let sql = "SELECT n FROM register WHERE name = ?";
        let number = tx.exec_first(sql, (&self.name,)).await?.context("a row")?;
        tx.commit().await?;
        Ok(Ok(number))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let mut tx = self.db.start_transaction(TxOpts::default()).await?;
        if let Err(stale) = admit(&mut tx, &self.name, token).await? {
            tx.rollback().await?;
            return Ok(Err(stale));
        }
        let sql = "UPDATE register SET n = ? WHERE name = ?";
        tx.exec_drop(sql, (number, &self.name)).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
        let sql = match fence {
            None => "DELETE FROM tenure_fence WHERE resource = ?".to_owned(),
            Some(text) => format!("UPDATE tenure_fence SET token = '{text}' WHERE resource = ?"),
        };
        Ok(self.db.exec_drop(sql, (&self.name,)).await?)
    }
}

async fn admit(
    tx: &mut Transaction<'_>,
    name: &str,
    token: Option<FencingToken>,
) -> FenceResult<()> {
    let Some(token) = token else { return Ok(Ok(())) };
    split_stale(fence::mysql_async::admit(tx, name, token).await)
}
