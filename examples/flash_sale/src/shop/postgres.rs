//! A shop in PostgreSQL, in the schema `flash_sale`.

use anyhow::{Context, Result, bail};
use async_trait::async_trait;
use tenure::FencingToken;
use tenure::fence::tokio_postgres::Table;
use tokio::net::TcpStream;
use tokio_postgres::config::Host;
use tokio_postgres::{Client, Config, NoTls, Transaction};

use super::{Shop, admitted, resource};

struct Postgres {
    db: Client,
    fences: Table,
}

pub(super) async fn open(url: &str) -> Result<impl Shop + use<>> {
    let config: Config = url.parse()?;
    let Some(Host::Tcp(host)) = config.get_hosts().first() else { bail!("no host in the URL") };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let stream = TcpStream::connect((host.as_str(), port)).await.context("PostgreSQL")?;
    let (client, connection) = config.connect_raw(stream, NoTls).await?;
    drop(tokio::spawn(connection));
    client.batch_execute("SET search_path TO flash_sale").await?;
    Ok(Postgres { db: client, fences: Table::in_schema("flash_sale") })
}

impl Postgres {
    /// Begins a transaction with the fencing check. `None` if the token is refused.
    async fn begin(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<Transaction<'_>>> {
        let tx = self.db.transaction().await?;
        let Some(token) = token else { return Ok(Some(tx)) };
        let admitted = admitted(self.fences.admit(&tx, &resource(article), token).await)?;
        Ok(admitted.then_some(tx))
    }
}

#[async_trait]
impl Shop for Postgres {
    async fn stock_up(&mut self, articles: u32, pieces: i64) -> Result<()> {
        let tables = "DROP SCHEMA IF EXISTS flash_sale CASCADE; CREATE SCHEMA flash_sale;
            CREATE TABLE stock (article bigint PRIMARY KEY, pieces bigint);
            CREATE TABLE orders (article bigint)";
        self.db.batch_execute(tables).await?;
        self.fences.create(&self.db).await?;
        let fill =
            "INSERT INTO stock SELECT article, $2 FROM generate_series(0, $1::bigint) article";
        self.db.execute(fill, &[&(i64::from(articles) - 1), &pieces]).await?;
        Ok(())
    }

    async fn read_stock(
        &mut self,
        article: u32,
        token: Option<FencingToken>,
    ) -> Result<Option<i64>> {
        if let Some(token) = token {
            let resource = resource(article);
            if !admitted(self.fences.contact(&mut self.db, &resource, token).await)? {
                return Ok(None);
            }
        }
        let sql = "SELECT pieces FROM stock WHERE article = $1";
        let row = self.db.query_one(sql, &[&i64::from(article)]).await?;
        Ok(Some(row.try_get(0)?))
    }

    async fn sell(&mut self, article: u32, left: i64, token: Option<FencingToken>) -> Result<bool> {
        let Some(tx) = self.begin(article, token).await? else { return Ok(false) };
        let article = i64::from(article);
        let sql = "UPDATE stock SET pieces = $2 WHERE article = $1";
        tx.execute(sql, &[&article, &left]).await?;
        tx.execute("INSERT INTO orders VALUES ($1)", &[&article]).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn sold(&mut self) -> Result<u32> {
        let row = self.db.query_one("SELECT count(*) FROM orders", &[]).await?;
        Ok(u32::try_from(row.try_get::<_, i64>(0)?)?)
    }

    async fn close(&mut self) -> Result<()> {
        Ok(self.db.batch_execute("DROP SCHEMA IF EXISTS flash_sale CASCADE").await?)
    }
}
