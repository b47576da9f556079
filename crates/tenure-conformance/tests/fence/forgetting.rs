//! Fences do not pile up: those without an admission for long can be forgotten, and no others.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use rusqlite::Connection;
use sqlx::{Connection as _, MySqlConnection, PgConnection};
use tenure::fence;

use crate::registers::{connect_postgres, open, sqlx_url};
use crate::{cases, lock_waits, token, unique};

/// A sweep deletes the rows of all cases on that server.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// How often each holder is admitted; each admission waits for the disk.
const ROUNDS: u32 = 100;

cases! {
    fences_without_an_admission_for_so_many_days_are_swept_and_no_others on
        &["mysql", "postgres", "sqlite", "sqlx-mysql", "sqlx-postgres"];
    a_sweep_does_not_forget_a_holder_that_is_being_admitted_in_postgres on &["postgres"];
    a_sweep_does_not_forget_a_holder_that_is_being_admitted_in_mysql on &["mysql"];
    a_fence_in_redis_ends_a_week_after_the_last_admission on &["redis"];
    a_forgotten_file_leaves_nothing_behind on &["file"];
    no_two_holders_are_admitted_to_a_file_while_it_is_forgotten on &["file"];
}

async fn fences_without_an_admission_for_so_many_days_are_swept_and_no_others(
    url: String,
) -> Result<()> {
    let _alone = ALONE.lock().await;
    let names = ["fresh", "old", "older", "renewed", "read"].map(unique);
    for name in &names {
        open(&url, name).await?.write(1, Some(token(8))).await??;
    }
    let [fresh, old, older, renewed, read] = &names;
    // One day more than the limit, and one less: the test may run over midnight.
    for (name, days) in [(old, 29), (older, 31), (renewed, 31), (read, 31)] {
        age(&url, name, days).await?;
    }
    open(&url, renewed).await?.write(2, Some(token(8))).await??;
    // A reader counts too.
    open(&url, read).await?.read_shared(token(8)).await??;
    ensure!(sweep(&url, 30).await? >= 1);
    for name in [fresh, old, renewed, read] {
        let refused = open(&url, name).await?.write(3, Some(token(7))).await?.is_err();
        ensure!(refused, "{name} was forgotten");
    }
    // As at first use, and closed again by the next token.
    let mut register = open(&url, older).await?;
    register.write(4, Some(token(7))).await??;
    register.write(5, Some(token(9))).await??;
    ensure!(register.write(6, Some(token(8))).await?.is_err());
    Ok(())
}

/// Makes the last admission so many days old.
async fn age(url: &str, name: &str, days: u32) -> Result<()> {
    let change = match url.split_once("://").context("a scheme")?.0 {
        "mysql" | "sqlx+mysql" => format!("UTC_DATE() - INTERVAL {days} DAY"),
        "postgres" | "sqlx+postgres" => format!("(now() AT TIME ZONE 'UTC')::date - {days}"),
        _ => format!("date('now', '-{days} days')"),
    };
    let sql = format!("UPDATE tenure_fence SET touched = {change} WHERE resource = '{name}'");
    match url.split_once("://").context("a scheme")?.0 {
        "mysql" | "sqlx+mysql" => {
            Conn::new(Opts::from_url(sqlx_url(url))?).await?.query_drop(sql).await?;
        }
        "postgres" | "sqlx+postgres" => {
            connect_postgres(sqlx_url(url)).await?.batch_execute(&sql).await?
        }
        _ => sqlite(url)?.execute_batch(&sql)?,
    }
    Ok(())
}

async fn sweep(url: &str, days: u16) -> Result<u64> {
    Ok(match url.split_once("://").context("a scheme")?.0 {
        "mysql" => {
            let mut db = Conn::new(Opts::from_url(url)?).await?;
            fence::mysql_async::sweep(&mut db, days).await?
        }
        "postgres" => fence::tokio_postgres::sweep(&connect_postgres(url).await?, days).await?,
        "sqlx+mysql" => {
            let mut db = MySqlConnection::connect(sqlx_url(url)).await?;
            fence::sqlx::sweep(&mut db, days).await?
        }
        "sqlx+postgres" => {
            let mut db = PgConnection::connect(sqlx_url(url)).await?;
            fence::sqlx::sweep(&mut db, days).await?
        }
        _ => fence::rusqlite::sweep(&sqlite(url)?, days)?,
    })
}

fn sqlite(url: &str) -> Result<Connection> {
    let db = Connection::open(url.trim_start_matches("sqlite://"))?;
    db.busy_timeout(Duration::from_secs(60))?;
    Ok(db)
}

/// The sweep meets the row in an open transaction, waits, and finds it touched.
async fn a_sweep_does_not_forget_a_holder_that_is_being_admitted_in_postgres(
    url: String,
) -> Result<()> {
    let _alone = ALONE.lock().await;
    let name = unique("swept");
    let mut db = connect_postgres(&url).await?;
    open(&url, &name).await?.write(1, Some(token(8))).await??;
    age(&url, &name, 99).await?;
    let tx = db.transaction().await?;
    fence::tokio_postgres::admit(&tx, &name, token(8)).await?;
    let sweeper = connect_postgres(&url).await?;
    let pid: i32 = sweeper.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    let swept = tokio::spawn(async move { fence::tokio_postgres::sweep(&sweeper, 90).await });
    lock_waits::in_postgres(&url, &swept, &format!("pid = {pid}")).await?;
    tx.commit().await?;
    swept.await??;
    ensure!(open(&url, &name).await?.write(2, Some(token(7))).await?.is_err());
    Ok(())
}

async fn a_sweep_does_not_forget_a_holder_that_is_being_admitted_in_mysql(
    url: String,
) -> Result<()> {
    let _alone = ALONE.lock().await;
    let name = unique("swept");
    let mut db = Conn::new(Opts::from_url(&url)?).await?;
    open(&url, &name).await?.write(1, Some(token(8))).await??;
    age(&url, &name, 99).await?;
    let mut tx = db.start_transaction(TxOpts::default()).await?;
    fence::mysql_async::admit(&mut tx, &name, token(8)).await?;
    let mut sweeper = Conn::new(Opts::from_url(&url)?).await?;
    let id = sweeper.id();
    let swept = tokio::spawn(async move { fence::mysql_async::sweep(&mut sweeper, 90).await });
    lock_waits::in_mysql(&url, &swept, &format!("trx_mysql_thread_id = {id}")).await?;
    tx.commit().await?;
    swept.await??;
    ensure!(open(&url, &name).await?.write(2, Some(token(7))).await?.is_err());
    Ok(())
}

async fn a_fence_in_redis_ends_a_week_after_the_last_admission(url: String) -> Result<()> {
    let name = unique("week");
    let mut register = open(&url, &name).await?;
    register.write(1, Some(token(8))).await??;
    let mut db = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let fence = fence::redis::key(&name);
    let week = 7 * 24 * 60 * 60;
    redis::cmd("EXPIRE").arg(&fence).arg(600).exec_async(&mut db).await?;
    ensure!(register.read(Some(token(8))).await?.is_ok());
    let left: i64 = redis::cmd("TTL").arg(&fence).query_async(&mut db).await?;
    ensure!((week - 600..=week).contains(&left), "{left} s are left");
    Ok(())
}

async fn a_forgotten_file_leaves_nothing_behind(url: String) -> Result<()> {
    let folder = Path::new(url.trim_start_matches("file://"));
    let path = folder.join(unique("report"));
    drop(fence::file::admit(&path, token(8))?);
    ensure!(fence::file::admit(&path, token(7)).is_err());
    ensure!(fence::file::forget(&path, 0)?);
    ensure!(folder.read_dir()?.next().is_none(), "something is left");
    drop(fence::file::admit(&path, token(7))?);
    ensure!(fence::file::forget(&path, 0)?);
    // There is no fence any more.
    ensure!(fence::file::forget(&path, 30)?);
    Ok(())
}

/// A holder that waited for the kernel lock of a file that was removed must wait for the new one.
async fn no_two_holders_are_admitted_to_a_file_while_it_is_forgotten(url: String) -> Result<()> {
    let path = &Path::new(url.trim_start_matches("file://")).join(unique("report"));
    let [inside, met, done] = &[false, false, false].map(AtomicBool::new);
    thread::scope(|scope| {
        let holder = || {
            for _ in 0..ROUNDS {
                let admitted = fence::file::admit(path, token(8))?;
                met.fetch_or(inside.swap(true, Ordering::SeqCst), Ordering::SeqCst);
                thread::yield_now();
                inside.store(false, Ordering::SeqCst);
                drop(admitted);
            }
            anyhow::Ok(())
        };
        let holders = [(); 3].map(|()| scope.spawn(holder));
        let forgetter = scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                fence::file::forget(path, 0)?;
            }
            anyhow::Ok(())
        });
        let ends = holders.map(|holder| holder.join().unwrap());
        done.store(true, Ordering::SeqCst);
        forgetter.join().unwrap()?;
        ends.into_iter().collect::<Result<()>>()
    })?;
    ensure!(!met.load(Ordering::SeqCst), "two holders were admitted at once");
    Ok(())
}
