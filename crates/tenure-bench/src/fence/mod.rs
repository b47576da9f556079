//! What a fence costs: a write of the application, without and with a fence. The fences of etcd,
//! ZooKeeper and Consul are measured in the files of their locks.

pub(crate) mod http;

use std::fs;
use std::sync::Mutex;

use anyhow::Result;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, TxOpts};
use rusqlite::{Connection, TransactionBehavior};
use tenure::{FencingToken, fence};
use tenure_servers::{Options, Topology};
use tokio::net::TcpStream;
use tokio_postgres::NoTls;

use crate::compare::Comparison;
use crate::runtime;

fn token() -> FencingToken {
    FencingToken::new(7).expect("7 is a token")
}

/// A transaction with one update, in WAL mode with `synchronous = NORMAL`.
pub(crate) fn compare_sqlite(rounds: usize) -> Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let connect = || -> Result<Connection> {
        let db = Connection::open(folder.path().join("shop.db"))?;
        db.execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;
             CREATE TABLE IF NOT EXISTS stock (item INTEGER PRIMARY KEY, n);
             INSERT INTO stock VALUES (42, 0) ON CONFLICT DO NOTHING",
        )?;
        fence::rusqlite::create(&db)?;
        Ok(db)
    };
    let (mut plain, mut fenced) = (connect()?, connect()?);
    let update = "UPDATE stock SET n = n + 1 WHERE item = 42";
    Comparison::run(
        rounds,
        10,
        vec![
            (
                "sqlite: begin, update, commit",
                Box::new(|| {
                    let tx = plain.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    tx.execute(update, [])?;
                    Ok(tx.commit()?)
                }),
            ),
            (
                "sqlite: begin, admit, update, commit",
                Box::new(|| {
                    let tx = fenced.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    fence::rusqlite::admit(&tx, "stock/42", token())?;
                    tx.execute(update, [])?;
                    Ok(tx.commit()?)
                }),
            ),
        ],
    )
}

pub(crate) fn compare_postgres(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Postgres, &Options::default())?;
    let runtime = runtime()?;
    let connect = || {
        runtime.block_on(async {
            let config: tokio_postgres::Config = cluster.url().parse()?;
            let stream = TcpStream::connect(("127.0.0.1", cluster.node().port())).await?;
            stream.set_nodelay(true)?;
            let (client, connection) = config.connect_raw(stream, NoTls).await?;
            drop(tokio::spawn(connection));
            let table = "CREATE TABLE IF NOT EXISTS stock (item int PRIMARY KEY, n int);
                         INSERT INTO stock VALUES (42, 0) ON CONFLICT DO NOTHING";
            client.batch_execute(table).await?;
            fence::tokio_postgres::create(&client).await?;
            anyhow::Ok(client)
        })
    };
    let (mut plain, mut fenced) = (connect()?, connect()?);
    let update = "UPDATE stock SET n = n + 1 WHERE item = 42";
    Comparison::run(
        rounds,
        1,
        vec![
            (
                "postgres: begin, update, commit",
                Box::new(|| {
                    runtime.block_on(async {
                        let tx = plain.transaction().await?;
                        tx.batch_execute(update).await?;
                        Ok(tx.commit().await?)
                    })
                }),
            ),
            (
                "postgres: begin, admit, update, commit",
                Box::new(|| {
                    runtime.block_on(async {
                        let tx = fenced.transaction().await?;
                        fence::tokio_postgres::admit(&tx, "stock/42", token()).await?;
                        tx.batch_execute(update).await?;
                        Ok(tx.commit().await?)
                    })
                }),
            ),
        ],
    )
}

pub(crate) fn compare_mysql(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Mariadb, &Options::default())?;
    let runtime = runtime()?;
    let connect = || {
        runtime.block_on(async {
            let mut db = Conn::new(Opts::from_url(&cluster.url())?).await?;
            db.query_drop("CREATE TABLE IF NOT EXISTS stock (item INT PRIMARY KEY, n INT)").await?;
            db.query_drop("INSERT IGNORE INTO stock VALUES (42, 0)").await?;
            fence::mysql_async::create(&mut db).await?;
            anyhow::Ok(db)
        })
    };
    let (mut plain, mut fenced) = (connect()?, connect()?);
    let update = "UPDATE stock SET n = n + 1 WHERE item = 42";
    Comparison::run(
        rounds,
        1,
        vec![
            (
                "mariadb: begin, update, commit",
                Box::new(|| {
                    runtime.block_on(async {
                        let mut tx = plain.start_transaction(TxOpts::default()).await?;
                        tx.query_drop(update).await?;
                        Ok(tx.commit().await?)
                    })
                }),
            ),
            (
                "mariadb: begin, admit, update, commit",
                Box::new(|| {
                    runtime.block_on(async {
                        let mut tx = fenced.start_transaction(TxOpts::default()).await?;
                        fence::mysql_async::admit(&mut tx, "stock/42", token()).await?;
                        tx.query_drop(update).await?;
                        Ok(tx.commit().await?)
                    })
                }),
            ),
        ],
    )
}

pub(crate) fn compare_redis(rounds: usize) -> Result<Comparison> {
    let cluster = tenure_servers::start(Topology::Redis, &Options::default())?;
    let runtime = runtime()?;
    let client = redis::Client::open(cluster.url())?;
    let connect = || runtime.block_on(client.get_multiplexed_async_connection());
    let (mut plain, mut fenced) = (connect()?, connect()?);
    Comparison::run(
        rounds,
        10,
        vec![
            (
                "redis: SET",
                Box::new(|| {
                    let mut set = redis::cmd("SET");
                    let set = set.arg("stock/42").arg(7).exec_async(&mut plain);
                    Ok(runtime.block_on(set)?)
                }),
            ),
            (
                "redis: fence::redis::set",
                Box::new(|| {
                    let set = fence::redis::set(&mut fenced, "stock/42", token(), 7);
                    Ok(runtime.block_on(set)?)
                }),
            ),
        ],
    )
}

/// A number in memory, behind a mutex and behind a fence.
pub(crate) fn compare_memory(rounds: usize) -> Result<Comparison> {
    let plain = Mutex::new(0_i64);
    let fenced = fence::Fenced::new(0_i64);
    Comparison::run(
        rounds,
        10_000,
        vec![
            (
                "memory: lock a mutex, add",
                Box::new(|| {
                    *plain.lock().map_err(|_| anyhow::anyhow!("the mutex is poisoned"))? += 1;
                    Ok(())
                }),
            ),
            (
                "memory: admit, add",
                Box::new(|| {
                    *fenced.admit(token())? += 1;
                    Ok(())
                }),
            ),
        ],
    )
}

/// Two subjects that replace a file and wait for the disk.
pub(crate) fn compare_file(rounds: usize) -> Result<Comparison> {
    let folder = tempfile::tempdir()?;
    let (plain, fenced) = (folder.path().join("plain"), folder.path().join("fenced"));
    let new = folder.path().join("plain.new");
    Comparison::run(
        rounds,
        1,
        vec![
            (
                "file: write, sync, rename, sync",
                Box::new(|| {
                    fs::write(&new, "7")?;
                    fs::File::open(&new)?.sync_all()?;
                    fs::rename(&new, &plain)?;
                    Ok(fs::File::open(folder.path())?.sync_all()?)
                }),
            ),
            (
                "file: admit, replace",
                Box::new(|| Ok(fence::file::admit(&fenced, token())?.replace("7")?)),
            ),
        ],
    )
}
