//! What a holder does with a SQL database, by sqlx.

use anyhow::Result;
use sqlx::{Connection, MySql, MySqlConnection, PgConnection, Postgres, Transaction};
use tenure::FencingToken;
use tenure::fence;

use super::sql::{READ, READ_DOLLAR, SqlClient, WRITE, WRITE_DOLLAR_NUMBER_FIRST};
use crate::registers::admitted;

macro_rules! clients {
    ($($connection:ty, $server:ty, $read:expr, $write:expr;)+) => {$(
        impl SqlClient for $connection {
            type Transaction<'a> = Transaction<'a, $server>;

            async fn contact(&mut self, name: &str, token: FencingToken) -> Result<bool> {
                admitted(fence::sqlx::contact(self, name, token).await)
            }

            async fn read(&mut self, name: &str) -> Result<i64> {
                Ok(sqlx::query_scalar($read).bind(name).fetch_one(self).await?)
            }

            async fn begin(&mut self) -> Result<Self::Transaction<'_>> {
                Ok(Connection::begin(self).await?)
            }

            async fn admit(
                tx: &mut Self::Transaction<'_>,
                name: &str,
                token: FencingToken,
            ) -> Result<bool> {
                admitted(fence::sqlx::admit(tx, name, token).await)
            }

            async fn read_in(tx: &mut Self::Transaction<'_>, name: &str) -> Result<i64> {
                Ok(sqlx::query_scalar($read).bind(name).fetch_one(&mut **tx).await?)
            }

            async fn write_in(
                tx: &mut Self::Transaction<'_>,
                name: &str,
                number: i64,
            ) -> Result<()> {
                sqlx::query($write).bind(number).bind(name).execute(&mut **tx).await?;
                Ok(())
            }

            async fn commit(tx: Self::Transaction<'_>) -> Result<()> {
                Ok(tx.commit().await?)
            }

            /// Not by dropping it: the row stays locked until the connection is used again.
            async fn rollback(tx: Self::Transaction<'_>) -> Result<()> {
                Ok(tx.rollback().await?)
            }
        }
    )+};
}

clients! {
    MySqlConnection, MySql, READ, WRITE;
    PgConnection, Postgres, READ_DOLLAR, WRITE_DOLLAR_NUMBER_FIRST;
}
