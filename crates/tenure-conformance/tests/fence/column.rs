//! The fence as a column of the caller's own table.

use anyhow::{Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};
use rusqlite::{Connection, OptionalExtension};
use tenure::FencingToken;
use tenure::fence::sql::{
    Dialect, Table, Unchanged, admit, admit_shared, unchanged, unchanged_beside_readers,
};

use crate::registers::connect_postgres;
use crate::{cases, token, unique};

cases! {
    a_row_with_a_fence_column_is_stale_missing_or_unmatched on &["sqlite"];
    a_row_with_a_fence_column_is_stale_or_missing_in_postgres on &["postgres"];
    a_row_with_a_fence_column_is_stale_or_missing_in_mysql on &["mysql"];
    a_row_with_two_columns_admits_readers_in_any_order on &["sqlite"];
    any_client_can_admit_with_a_closure on &["postgres"];
}

async fn a_row_with_a_fence_column_is_stale_missing_or_unmatched(url: String) -> Result<()> {
    let db = Connection::open(url.trim_start_matches("sqlite://"))?;
    db.execute_batch(
        "CREATE TABLE stock (item PRIMARY KEY, n, fence INTEGER NOT NULL DEFAULT 0);
         INSERT INTO stock (item, n) VALUES (42, 1)",
    )?;
    let sell = |item: i64, token: FencingToken| -> rusqlite::Result<Option<Unchanged>> {
        let sql = "UPDATE stock SET n = n - 1, fence = ?2 \
                   WHERE item = ?1 AND fence <= ?2 AND n > 0";
        if db.execute(sql, (item, token.as_i64()))? > 0 {
            return Ok(None);
        }
        let sql = "SELECT fence FROM stock WHERE item = ?1";
        let fence = db.query_row(sql, [item], |row| row.get(0)).optional()?;
        Ok(Some(unchanged(token, fence)))
    };
    ensure!(sell(42, token(8))?.is_none());
    ensure!(sell(42, token(8))? == Some(Unchanged::Unmatched));
    ensure!(sell(43, token(8))? == Some(Unchanged::Missing));
    let Some(Unchanged::Stale(stale)) = sell(42, token(7))? else { anyhow::bail!("7 after 8") };
    ensure!((stale.token(), stale.seen()) == (token(7), token(8)));
    Ok(())
}

/// The statements of the page, with a first contact that reads in one step.
async fn a_row_with_a_fence_column_is_stale_or_missing_in_postgres(url: String) -> Result<()> {
    let table = unique("stock").replace('-', "_");
    let db = connect_postgres(&url).await?;
    let create = format!(
        "CREATE TABLE {table} (item int PRIMARY KEY, n int, fence bigint NOT NULL DEFAULT 0);
         INSERT INTO {table} VALUES (42, 10)"
    );
    db.batch_execute(&create).await?;
    let contact =
        format!("UPDATE {table} SET fence = $2 WHERE item = $1 AND fence <= $2 RETURNING n");
    let write = format!("UPDATE {table} SET n = $3, fence = $2 WHERE item = $1 AND fence <= $2");
    let read_fence = format!("SELECT fence FROM {table} WHERE item = $1");
    let why = async |item: i32, token: FencingToken| {
        let row = db.query_opt(&read_fence, &[&item]).await?;
        anyhow::Ok(unchanged(token, row.map(|row| row.get(0))))
    };
    let read = db.query_one(&contact, &[&42_i32, &7_i64]).await?.get::<_, i32>(0);
    ensure!(read == 10);
    ensure!(db.query_opt(&contact, &[&42_i32, &8_i64]).await?.is_some());
    ensure!(db.execute(&write, &[&42_i32, &7_i64, &9_i32]).await? == 0, "7 wrote after 8 had read");
    let Unchanged::Stale(stale) = why(42, token(7)).await? else { anyhow::bail!("7 after 8") };
    ensure!((stale.token(), stale.seen()) == (token(7), token(8)));
    ensure!(db.execute(&write, &[&42_i32, &8_i64, &9_i32]).await? == 1);
    ensure!(db.execute(&write, &[&43_i32, &8_i64, &9_i32]).await? == 0);
    ensure!(why(43, token(8)).await? == Unchanged::Missing);
    Ok(())
}

async fn a_row_with_a_fence_column_is_stale_or_missing_in_mysql(url: String) -> Result<()> {
    let table = unique("stock").replace('-', "_");
    let mut db = Conn::new(Opts::from_url(&url)?).await?;
    db.query_drop(format!(
        "CREATE TABLE {table} (item INT PRIMARY KEY, n INT, fence BIGINT NOT NULL DEFAULT 0)"
    ))
    .await?;
    db.query_drop(format!("INSERT INTO {table} (item, n) VALUES (42, 10)")).await?;
    let mut write = async |item: i32, n: i32, token: FencingToken| -> Result<Option<Unchanged>> {
        let number = token.as_i64();
        let sql = format!("UPDATE {table} SET n = ?, fence = ? WHERE item = ? AND fence <= ?");
        db.exec_drop(sql, (n, number, item, number)).await?;
        if db.affected_rows() > 0 {
            return Ok(None);
        }
        let sql = format!("SELECT fence FROM {table} WHERE item = ?");
        Ok(Some(unchanged(token, db.exec_first(sql, (item,)).await?)))
    };
    ensure!(write(42, 9, token(8)).await?.is_none());
    let Some(Unchanged::Stale(stale)) = write(42, 8, token(7)).await? else {
        anyhow::bail!("7 after 8")
    };
    ensure!((stale.token(), stale.seen()) == (token(7), token(8)));
    ensure!(write(43, 8, token(8)).await? == Some(Unchanged::Missing));
    ensure!(write(42, 7, token(8)).await?.is_none());
    Ok(())
}

/// The statements of the page, with `max` for `greatest`.
async fn a_row_with_two_columns_admits_readers_in_any_order(url: String) -> Result<()> {
    let db = Connection::open(url.trim_start_matches("sqlite://"))?;
    db.execute_batch(
        "CREATE TABLE stock (item PRIMARY KEY, n, fence INTEGER NOT NULL DEFAULT 0,
         shared INTEGER NOT NULL DEFAULT 0);
         INSERT INTO stock (item, n) VALUES (42, 10)",
    )?;
    let read = "UPDATE stock SET shared = max(shared, ?1) WHERE item = 42 AND fence <= ?1";
    let write = "UPDATE stock SET n = n - 1, fence = ?1 \
                 WHERE item = 42 AND fence <= ?1 AND shared <= ?1";
    let why = |number: u64| -> Result<Unchanged> {
        let sql = "SELECT fence, shared FROM stock WHERE item = 42";
        let found = db.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        Ok(unchanged_beside_readers(token(number), found))
    };
    for (sql, number, admitted) in
        [(write, 7, 1), (read, 9, 1), (read, 8, 1), (write, 7, 0), (write, 10, 1), (read, 9, 0)]
    {
        let changed = db.execute(sql, [number])?;
        ensure!(changed == admitted, "{number}: {sql}");
        if sql == write && changed == 0 {
            let Unchanged::Stale(stale) = why(7)? else { anyhow::bail!("7 after 9") };
            ensure!((stale.seen(), stale.is_by_reader()) == (token(9), true));
        }
    }
    ensure!(matches!(why(9)?, Unchanged::Stale(stale) if !stale.is_by_reader()));
    ensure!(why(10)? == Unchanged::Unmatched);
    Ok(())
}

async fn any_client_can_admit_with_a_closure(url: String) -> Result<()> {
    let name = unique("closure");
    let db = connect_postgres(&url).await?;
    let table = Table::new(Dialect::Postgres);
    let query = async |statement: String, resource: &str, token: i64| {
        db.query_one(&statement, &[&resource, &token]).await?.try_get(0)
    };
    admit(&table, &name, token(8), query).await?;
    admit(&table, &name, token(8), query).await?;
    let refused = admit(&table, &name, token(7), query).await.unwrap_err();
    ensure!(refused.to_string() == "token 7 is stale: 8 was here before", "{refused}");
    admit_shared(&table, &name, token(10), query).await?;
    admit_shared(&table, &name, token(9), query).await?;
    let refused = admit(&table, &name, token(9), query).await.unwrap_err();
    let text = "token 9 is stale: 10 was here before, as a reader";
    ensure!(refused.to_string() == text, "{refused}");
    Ok(())
}
