//! A resource that was deleted stays fenced: a stale holder does not create it again.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use redis::cmd;
use rusqlite::{Connection, OptionalExtension};
use tenure::fence;
use tenure::fence::sql::{Unchanged, unchanged};

use crate::{cases, token, unique};

cases! {
    a_deleted_file_is_not_created_again_by_a_stale_holder on &["file"];
    a_deleted_key_is_not_created_again_by_a_stale_holder on &["redis"];
    a_deleted_row_is_not_created_again_by_a_stale_holder on &["sqlite"];
    a_row_that_is_flagged_as_gone_refuses_a_stale_holder on &["sqlite"];
}

async fn a_deleted_file_is_not_created_again_by_a_stale_holder(url: String) -> Result<()> {
    let path = Path::new(url.trim_start_matches("file://")).join(unique("report"));
    fence::file::admit(&path, token(7))?.replace("100")?;
    let admitted = fence::file::admit(&path, token(8))?;
    fs::remove_file(admitted.path())?;
    drop(admitted);
    ensure!(!fence::file::forget(&path, 30)?, "it was forgotten at once");
    ensure!(fence::file::admit(&path, token(7)).is_err(), "7 creates it again");
    // As if the last admission were long ago.
    let lock = fs::File::options().write(true).open(format!("{}.fence.lock", path.display()))?;
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(31 * 86_400);
    lock.set_modified(long_ago)?;
    drop(lock);
    ensure!(!fence::file::forget(&path, 32)?);
    // Each admission starts the count of days again, whatever its token is.
    drop(fence::file::admit(&path, token(8))?);
    ensure!(!fence::file::forget(&path, 30)?);
    ensure!(fence::file::forget(&path, 0)?);
    Ok(())
}

async fn a_deleted_key_is_not_created_again_by_a_stale_holder(url: String) -> Result<()> {
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let name = unique("deleted");
    fence::redis::set(&mut db, &name, token(7), 100).await?;
    ensure!(fence::redis::delete(&mut db, &name, token(8)).await?);
    ensure!(fence::redis::set(&mut db, &name, token(7), 99).await.is_err(), "7 created it again");
    ensure!(cmd("GET").arg(&name).query_async::<Option<i64>>(&mut db).await?.is_none());
    Ok(())
}

async fn a_deleted_row_is_not_created_again_by_a_stale_holder(url: String) -> Result<()> {
    let mut db = Connection::open(url.trim_start_matches("sqlite://"))?;
    let name = unique("deleted");
    db.execute("INSERT INTO register VALUES (?1, 100)", [&name])?;
    fence::rusqlite::contact(&mut db, &name, token(7))?;
    let tx = db.transaction()?;
    fence::rusqlite::admit(&tx, &name, token(8))?;
    // As the page says, without the row of the fence.
    tx.execute("DELETE FROM register WHERE name = ?1", [&name])?;
    tx.commit()?;
    let tx = db.transaction()?;
    let refused = fence::rusqlite::admit(&tx, &name, token(7)).err().context("7 after 8")?;
    ensure!(refused.stale().is_some(), "{refused}");
    Ok(())
}

async fn a_row_that_is_flagged_as_gone_refuses_a_stale_holder(url: String) -> Result<()> {
    let db = Connection::open(url.trim_start_matches("sqlite://"))?;
    db.execute_batch(
        "CREATE TABLE stock (item PRIMARY KEY, n, gone DEFAULT 0, fence NOT NULL DEFAULT 0);
         INSERT INTO stock (item, n) VALUES (42, 100)",
    )?;
    let run = |sql: &str, token: i64| db.execute(sql, [token]);
    ensure!(run("UPDATE stock SET fence = ?1 WHERE item = 42 AND fence <= ?1", 7)? == 1);
    ensure!(run("UPDATE stock SET gone = 1, fence = ?1 WHERE item = 42 AND fence <= ?1", 8)? == 1);
    let write = "UPDATE stock SET n = 99, gone = 0, fence = ?1 WHERE item = 42 AND fence <= ?1";
    ensure!(run(write, 7)? == 0, "7 brought it back");
    let fence = db.query_row("SELECT fence FROM stock WHERE item = 42", [], |row| row.get(0));
    ensure!(matches!(unchanged(token(7), fence.optional()?), Unchanged::Stale(_)));
    Ok(())
}
