//! In a PostgreSQL database.

use anyhow::{Context, Result};
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence;
use tokio::net::TcpStream;
use tokio_postgres::{Client, NoTls, Transaction};

use super::{FenceResult, Register, split_stale};

struct Postgres {
    db: Client,
    name: String,
}

pub(super) async fn prepare(url: &str) -> Result<()> {
    let db = connect(url).await?;
    db.batch_execute("CREATE TABLE IF NOT EXISTS register (name text PRIMARY KEY, n bigint)")
        .await?;
    Ok(fence::tokio_postgres::create(&db).await?)
}

pub(super) async fn open(url: &str, name: &str) -> Result<impl Register + use<>> {
    let db = connect(url).await?;
    db.execute("INSERT INTO register VALUES ($1, 0) ON CONFLICT DO NOTHING", &[&name]).await?;
    Ok(Postgres { db, name: name.to_owned() })
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    let config: tokio_postgres::Config = url.parse()?;
    let port = config.get_ports().first().context("a port")?;
    let stream = TcpStream::connect(("127.0.0.1", *port)).await?;
    stream.set_nodelay(true)?;
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    drop(tokio::spawn(connection));
    Ok(client)
}

#[async_trait]
impl Register for Postgres {
    async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
        if let Some(token) = token {
            let contact = fence::tokio_postgres::contact(&mut self.db, &self.name, token);
            if let Err(stale) = split_stale(contact.await)? {
                return Ok(Err(stale));
            }
        }
        let sql = "SELECT n FROM register WHERE name = $1";
        Ok(Ok(self.db.query_one(sql, &[&self.name]).await?.get(0)))
    }

    async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
        let contact = fence::tokio_postgres::contact_shared(&mut self.db, &self.name, token);
        if let Err(stale) = split_stale(contact.await)? {
            return Ok(Err(stale));
        }
        let tx = self.db.transaction().await?;
        let admitted = fence::tokio_postgres::admit_shared(&tx, &self.name, token).await;
        if let Err(stale) = split_stale(admitted)? {
            return Ok(Err(stale));
        }
        let sql = "SELECT n FROM register WHERE name = $1";
        let number = tx.query_one(sql, &[&self.name]).await?.get(0);
        tx.commit().await?;
        Ok(Ok(number))
    }

    async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
        let tx = self.db.transaction().await?;
        if let Err(stale) = admit(&tx, &self.name, token).await? {
            return Ok(Err(stale));
        }
        // Without a prepared statement: one round trip.
        let name = self.name.replace('\'', "''");
        let sql = format!("UPDATE register SET n = {number} WHERE name = '{name}'");
        tx.batch_execute(&sql).await?;
        tx.commit().await?;
        Ok(Ok(()))
    }

    async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
        let sql = match fence {
            None => "DELETE FROM tenure_fence WHERE resource = $1".to_owned(),
            Some(text) => format!("UPDATE tenure_fence SET token = '{text}' WHERE resource = $1"),
        };
        self.db.execute(&sql, &[&self.name]).await?;
        Ok(())
    }
}

async fn admit(tx: &Transaction<'_>, name: &str, token: Option<FencingToken>) -> FenceResult<()> {
    let Some(token) = token else { return Ok(Ok(())) };
    split_stale(fence::tokio_postgres::admit(tx, name, token).await)
}
