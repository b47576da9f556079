//! In a PostgreSQL or MariaDB database, by sqlx: `sqlx+postgres://…`, `sqlx+mysql://…`.

use anyhow::Result;
use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection, MySqlConnection, PgConnection};
use tenure::FencingToken;
use tenure::fence;

use super::{FenceResult, Register, split_stale};

struct SqlxRegister<C> {
    db: C,
    name: String,
}

/// The URL as sqlx knows it.
pub(crate) fn url(url: &str) -> &str {
    url.trim_start_matches("sqlx+")
}

/// The two servers differ in how they write parameters, and in what a register is made of.
macro_rules! registers {
    ($(
        $module:ident: $connection:ty, $one:literal, $two:literal,
        $create:literal, $insert:literal;
    )+) => {$(
        pub(super) mod $module {
            use super::*;

            pub(in super::super) async fn prepare(url: &str) -> Result<()> {
                let mut db = <$connection>::connect(super::url(url)).await?;
                sqlx::query($create).execute(&mut db).await?;
                Ok(fence::sqlx::create(&mut db).await?)
            }

            pub(in super::super) async fn open(
                url: &str,
                name: &str,
            ) -> Result<impl Register + use<>> {
                let mut db = <$connection>::connect(super::url(url)).await?;
                sqlx::query($insert).bind(name).execute(&mut db).await?;
                Ok(SqlxRegister { db, name: name.to_owned() })
            }
        }

        #[async_trait]
        impl Register for SqlxRegister<$connection> {
            async fn read(&mut self, token: Option<FencingToken>) -> FenceResult<i64> {
                if let Some(token) = token {
                    let contact = fence::sqlx::contact(&mut self.db, &self.name, token);
                    if let Err(stale) = split_stale(contact.await)? {
                        return Ok(Err(stale));
                    }
                }
                let read = concat!("SELECT n FROM register WHERE name = ", $one);
                let read = sqlx::query_scalar(read).bind(&self.name);
                Ok(Ok(read.fetch_one(&mut self.db).await?))
            }

            async fn read_shared(&mut self, token: FencingToken) -> FenceResult<i64> {
                let contact = fence::sqlx::contact_shared(&mut self.db, &self.name, token);
                if let Err(stale) = split_stale(contact.await)? {
                    return Ok(Err(stale));
                }
                let mut tx = self.db.begin().await?;
                let admitted = fence::sqlx::admit_shared(&mut tx, &self.name, token).await;
                if let Err(stale) = split_stale(admitted)? {
                    tx.rollback().await?;
                    return Ok(Err(stale));
                }
                let read = concat!("SELECT n FROM register WHERE name = ", $one);
                let read = sqlx::query_scalar(read).bind(&self.name);
                let number = read.fetch_one(&mut *tx).await?;
                tx.commit().await?;
                Ok(Ok(number))
            }

            async fn write(&mut self, number: i64, token: Option<FencingToken>) -> FenceResult<()> {
                let mut tx = self.db.begin().await?;
                if let Some(token) = token {
                    let admitted = fence::sqlx::admit(&mut tx, &self.name, token).await;
                    if let Err(stale) = split_stale(admitted)? {
                        tx.rollback().await?;
                        return Ok(Err(stale));
                    }
                }
                let sql = concat!("UPDATE register SET n = ", $one, " WHERE name = ", $two);
                sqlx::query(sql).bind(number).bind(&self.name).execute(&mut *tx).await?;
                tx.commit().await?;
                Ok(Ok(()))
            }

            async fn spoil(&mut self, fence: Option<&str>) -> Result<()> {
                let sql = match fence {
                    None => concat!("DELETE FROM tenure_fence WHERE resource = ", $one).to_owned(),
                    Some(text) => format!(
                        "UPDATE tenure_fence SET token = '{text}' WHERE resource = {}", $one
                    ),
                };
                sqlx::query(AssertSqlSafe(sql)).bind(&self.name).execute(&mut self.db).await?;
                Ok(())
            }
        }
    )+};
}

registers! {
    mysql: MySqlConnection, "?", "?",
        "CREATE TABLE IF NOT EXISTS register (name VARCHAR(99) PRIMARY KEY, n BIGINT)",
        "INSERT IGNORE INTO register VALUES (?, 0)";
    postgres: PgConnection, "$1", "$2",
        "CREATE TABLE IF NOT EXISTS register (name text PRIMARY KEY, n bigint)",
        "INSERT INTO register VALUES ($1, 0) ON CONFLICT DO NOTHING";
}
