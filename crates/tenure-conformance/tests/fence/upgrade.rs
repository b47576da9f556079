//! A table of fences of before readers had tokens: it gets their column, and keeps its fences.

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder};
use rusqlite::Connection;
use sqlx::{Connection as _, MySqlConnection, PgConnection};
use tenure::fence;
use tenure::fence::sqlx::FenceTable;

use crate::registers::{connect_postgres, sqlx_url};
use crate::{cases, token, unique};

cases! {
    an_old_table_gets_the_column_of_readers_in_mysql on &["mysql"];
    an_old_table_gets_the_column_of_readers_in_postgres on &["postgres"];
    an_old_table_gets_the_column_of_readers_in_sqlite on &["sqlite"];
    an_old_table_gets_the_column_of_readers_by_sqlx_in_mysql on &["sqlx-mysql"];
    an_old_table_gets_the_column_of_readers_by_sqlx_in_postgres on &["sqlx-postgres"];
}

/// The statements that an older version executed, and a fence that has seen 8.
fn old_mysql(schema: &str) -> [String; 3] {
    [
        format!("CREATE DATABASE {schema}"),
        format!(
            "CREATE TABLE {schema}.tenure_fence (resource VARBINARY(255) PRIMARY KEY, \
             token BIGINT NOT NULL CHECK (token > 0), touched DATE NOT NULL) ENGINE = InnoDB"
        ),
        format!("INSERT INTO {schema}.tenure_fence VALUES ('stock', 8, UTC_DATE())"),
    ]
}

fn old_postgres(schema: &str) -> String {
    format!(
        "CREATE SCHEMA {schema};
         CREATE TABLE {schema}.tenure_fence (resource text PRIMARY KEY,
         token bigint NOT NULL CHECK (token > 0), touched date NOT NULL) WITH (fillfactor = 50);
         INSERT INTO {schema}.tenure_fence VALUES ('stock', 8, current_date)"
    )
}

fn schema() -> String {
    unique("fence_old").replace('-', "_")
}

async fn an_old_table_gets_the_column_of_readers_in_mysql(url: String) -> Result<()> {
    let schema = schema();
    let mut db = Conn::new(Opts::from_url(&url)?).await?;
    for statement in old_mysql(&schema) {
        db.query_drop(statement).await?;
    }
    let opts = OptsBuilder::from_opts(Opts::from_url(&url)?).db_name(Some(&schema));
    let mut old = Conn::new(opts).await?;
    let error = fence::mysql_async::contact(&mut old, "stock", token(9)).await.err();
    let error = error.context("the column is missing")?.to_string();
    ensure!(error.contains("shared"), "{error}");
    for _ in 0..2 {
        fence::mysql_async::create(&mut old).await?;
    }
    ensure!(fence::mysql_async::contact(&mut old, "stock", token(7)).await.is_err());
    fence::mysql_async::contact_shared(&mut old, "stock", token(9)).await?;
    ensure!(fence::mysql_async::contact(&mut old, "stock", token(8)).await.is_err());
    Ok(db.query_drop(format!("DROP DATABASE {schema}")).await?)
}

async fn an_old_table_gets_the_column_of_readers_in_postgres(url: String) -> Result<()> {
    let schema = schema();
    let mut db = connect_postgres(&url).await?;
    db.batch_execute(&old_postgres(&schema)).await?;
    // The one of the other cases is not to be in sight.
    db.batch_execute("SET search_path = nowhere").await?;
    let table = fence::tokio_postgres::Table::in_schema(&schema);
    let error = table.contact(&mut db, "stock", token(9)).await.err();
    let error = format!("{:?}", error.context("the column is missing")?);
    ensure!(error.contains("shared"), "{error}");
    for _ in 0..2 {
        table.create(&db).await?;
    }
    ensure!(table.contact(&mut db, "stock", token(7)).await.is_err());
    table.contact_shared(&mut db, "stock", token(9)).await?;
    ensure!(table.contact(&mut db, "stock", token(8)).await.is_err());
    Ok(db.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?)
}

async fn an_old_table_gets_the_column_of_readers_in_sqlite(_: String) -> Result<()> {
    let mut db = Connection::open_in_memory()?;
    db.execute_batch(
        "CREATE TABLE tenure_fence (resource TEXT PRIMARY KEY NOT NULL,
         token INTEGER NOT NULL CHECK (typeof(token) = 'integer' AND token > 0),
         touched TEXT NOT NULL) WITHOUT ROWID;
         INSERT INTO tenure_fence VALUES ('stock', 8, date('now'))",
    )?;
    let error = fence::rusqlite::contact(&mut db, "stock", token(9)).err();
    let error = error.context("the column is missing")?.to_string();
    ensure!(error.contains("shared"), "{error}");
    for _ in 0..2 {
        fence::rusqlite::create(&db)?;
    }
    ensure!(fence::rusqlite::contact(&mut db, "stock", token(7)).is_err());
    fence::rusqlite::contact_shared(&mut db, "stock", token(9))?;
    ensure!(fence::rusqlite::contact(&mut db, "stock", token(8)).is_err());
    Ok(())
}

async fn an_old_table_gets_the_column_of_readers_by_sqlx_in_mysql(url: String) -> Result<()> {
    let schema = schema();
    let mut admin = Conn::new(Opts::from_url(sqlx_url(&url))?).await?;
    for statement in old_mysql(&schema) {
        admin.query_drop(statement).await?;
    }
    let mut db = MySqlConnection::connect(sqlx_url(&url)).await?;
    let table = FenceTable::in_schema(&schema);
    for _ in 0..2 {
        table.create(&mut db).await?;
    }
    ensure!(table.contact(&mut db, "stock", token(7)).await.is_err());
    table.contact_shared(&mut db, "stock", token(9)).await?;
    ensure!(table.contact(&mut db, "stock", token(8)).await.is_err());
    Ok(admin.query_drop(format!("DROP DATABASE {schema}")).await?)
}

async fn an_old_table_gets_the_column_of_readers_by_sqlx_in_postgres(url: String) -> Result<()> {
    let schema = schema();
    let admin = connect_postgres(sqlx_url(&url)).await?;
    admin.batch_execute(&old_postgres(&schema)).await?;
    let mut db = PgConnection::connect(sqlx_url(&url)).await?;
    sqlx::query("SET search_path = nowhere").execute(&mut db).await?;
    let table = FenceTable::in_schema(&schema);
    for _ in 0..2 {
        table.create(&mut db).await?;
    }
    ensure!(table.contact(&mut db, "stock", token(7)).await.is_err());
    table.contact_shared(&mut db, "stock", token(9)).await?;
    ensure!(table.contact(&mut db, "stock", token(8)).await.is_err());
    Ok(admin.batch_execute(&format!("DROP SCHEMA {schema} CASCADE")).await?)
}
