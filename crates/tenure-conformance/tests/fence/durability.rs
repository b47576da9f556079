//! A first contact survives what the store may lose.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, cmd};
use rusqlite::Connection;
use sqlx::Connection as _;
use tenure::fence;
use tenure::fence::redis::{Copies, admit, admit_durable, set};
use tenure_conformance::context::{SOON, until};
use tenure_servers::{Cluster, Durability, Flavor, Options, Topology, require, start};

use crate::registers::connect_postgres;
use crate::{cases, token, unique};

const COPIES: Copies = Copies::replicas(1).within(SOON);

cases! {
    a_failover_of_redis_does_not_lose_a_first_contact_that_was_copied on &["redis"];
    a_first_contact_that_is_not_copied_in_time_is_refused on &["redis"];
    a_first_contact_that_waited_for_the_disk_survives_a_crash on &["redis"];
    a_first_contact_waits_for_the_disk_where_the_session_does_not on
        &["postgres", "sqlx-postgres"];
    a_first_contact_is_synced_and_the_connection_stays_as_it_was on &["sqlite"];
}

async fn connect(server: &Cluster) -> Result<MultiplexedConnection> {
    let client = redis::Client::open(server.url())?;
    // A server that was just started on a busy machine may take its time.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// A master and its replica.
async fn pair() -> Result<[Cluster; 2]> {
    let servers = || start(Topology::Redis, &Options::default());
    let both = tokio::task::spawn_blocking(move || anyhow::Ok([servers()?, servers()?]));
    let [master, replica] = both.await??;
    let mut db = connect(&replica).await?;
    let port = master.node().port();
    let password = master.node().password().unwrap_or_default();
    cmd("CONFIG").arg("SET").arg("masterauth").arg(password).exec_async(&mut db).await?;
    cmd("REPLICAOF").arg("127.0.0.1").arg(port).exec_async(&mut db).await?;
    until(SOON, "a replica in step", || {
        let mut db = db.clone();
        async move {
            let text: String = cmd("INFO").arg("replication").query_async(&mut db).await?;
            Ok(text.contains("master_link_status:up").then_some(()))
        }
    })
    .await?;
    Ok([master, replica])
}

/// 8 has read, the master is killed, and 7 resumes.
async fn a_failover_of_redis_does_not_lose_a_first_contact_that_was_copied(
    _: String,
) -> Result<()> {
    let [master, replica] = pair().await?;
    let mut db = connect(&master).await?;
    set(&mut db, "stock", token(6), 100).await?;
    admit_durable(&mut db, "stock", token(7), COPIES).await?;
    admit_durable(&mut db, "stock", token(8), COPIES).await?;
    let stale =
        admit_durable(&mut db, "stock", token(7), COPIES).await.err().context("7 after 8")?;
    ensure!(stale.stale().is_some(), "{stale}");
    master.node().kill()?;
    let mut db = connect(&replica).await?;
    cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut db).await?;
    let refused =
        set(&mut db, "stock", token(7), 99).await.err().context("7 after the failover")?;
    ensure!(refused.stale().is_some_and(|stale| stale.seen() == token(8)), "{refused}");
    set(&mut db, "stock", token(8), 99).await?;
    Ok(())
}

async fn a_first_contact_that_is_not_copied_in_time_is_refused(_: String) -> Result<()> {
    let [master, replica] = pair().await?;
    let mut db = connect(&master).await?;
    replica.node().pause()?;
    // This alone is not enough: the master admits it.
    admit(&mut db, "stock", token(8)).await?;
    let copies = COPIES.within(Duration::from_millis(100));
    let refused = admit_durable(&mut db, "stock", token(8), copies).await.err();
    let text = refused.context("there is no copy")?.to_string();
    ensure!(text.contains("not made in time"), "{text}");
    replica.node().resume()?;
    until(SOON, "the replica", || {
        let mut db = db.clone();
        async move { Ok(admit_durable(&mut db, "stock", token(8), copies).await.ok()) }
    })
    .await
}

/// Redis 7.0 cannot wait for the disk, and reports that.
async fn a_first_contact_that_waited_for_the_disk_survives_a_crash(url: String) -> Result<()> {
    let mut old = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
    let name = unique("disk");
    let version: String = cmd("INFO").arg("server").query_async(&mut old).await?;
    let refused = admit_durable(&mut old, &name, token(8), Copies::disk()).await;
    ensure!(refused.is_err() || !version.contains("redis_version:7.0"), "it does not have WAITAOF");
    let options = Options::default().flavor(Flavor::Redis8).durability(Durability::Fast);
    let server = tokio::task::spawn_blocking(move || start(Topology::Redis, &options)).await?;
    let server = match server {
        Err(error) if error.is_missing() && !require("redis8") => return Ok(()),
        server => server?,
    };
    let mut db = connect(&server).await?;
    // This one never syncs by itself.
    ensure!(admit_durable(&mut db, &name, token(8), Copies::disk()).await.is_err());
    cmd("CONFIG").arg("SET").arg("appendfsync").arg("everysec").exec_async(&mut db).await?;
    admit_durable(&mut db, &name, token(8), Copies::disk().within(SOON)).await?;
    server.node().kill()?;
    let node = tokio::task::spawn_blocking(move || server.node().restart().map(|()| server));
    let mut db = connect(&node.await??).await?;
    ensure!(set(&mut db, &name, token(7), 99).await.is_err(), "it was lost");
    Ok(())
}

/// The session does not wait, and the server is killed: an admission that was only committed is
/// lost.
async fn a_first_contact_waits_for_the_disk_where_the_session_does_not(url: String) -> Result<()> {
    let server = || start(Topology::Postgres, &Options::default());
    let server = tokio::task::spawn_blocking(server).await??;
    let mut db = connect_postgres(&server.url()).await?;
    fence::tokio_postgres::create(&db).await?;
    // Else the server would write its log by itself a moment later.
    db.batch_execute("ALTER SYSTEM SET wal_writer_delay = '10s'").await?;
    db.batch_execute("SELECT pg_reload_conf()").await?;
    db.batch_execute("SET synchronous_commit = off").await?;
    if url.starts_with("sqlx+") {
        let mut db = sqlx::PgConnection::connect(&server.url()).await?;
        sqlx::query("SET synchronous_commit = off").execute(&mut db).await?;
        fence::sqlx::contact(&mut db, "contact", token(8)).await?;
    } else {
        fence::tokio_postgres::contact(&mut db, "contact", token(8)).await?;
    }
    let tx = db.transaction().await?;
    fence::tokio_postgres::admit(&tx, "committed", token(8)).await?;
    tx.commit().await?;
    server.node().kill()?;
    let restart = move || server.node().restart().map(|()| server);
    let server = tokio::task::spawn_blocking(restart).await??;
    let mut db = connect_postgres(&server.url()).await?;
    let refused = fence::tokio_postgres::contact(&mut db, "contact", token(7)).await.err();
    ensure!(refused.context("7 after 8")?.stale().is_some());
    let lost = fence::tokio_postgres::contact(&mut db, "committed", token(7)).await.is_ok();
    ensure!(lost, "inconclusive: the server lost nothing");
    Ok(())
}

async fn a_first_contact_is_synced_and_the_connection_stays_as_it_was(url: String) -> Result<()> {
    let mut db = Connection::open(url.trim_start_matches("sqlite://"))?;
    let name = unique("synced");
    for level in [0_i64, 1, 2, 3] {
        db.pragma_update(None, "synchronous", level)?;
        fence::rusqlite::contact(&mut db, &name, token(8))?;
        ensure!(fence::rusqlite::contact(&mut db, &name, token(7)).is_err());
        let found: i64 = db.pragma_query_value(None, "synchronous", |row| row.get(0))?;
        ensure!(found == level, "{level} is {found} now");
    }
    // In a transaction it would not be committed.
    db.execute_batch("BEGIN")?;
    ensure!(fence::rusqlite::contact(&mut db, &name, token(9)).is_err());
    Ok(())
}
