//! Clients that connect at their first use.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{Attempt, Client, ErrorKind};
use tenure_conformance::context::{acquire_free, soon, until};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

server_cases! {
    a_lazy_client_waits_for_a_server_that_starts_later Redis;
    a_lazy_client_waits_for_a_server_that_starts_later Postgres;
    a_server_that_is_not_there_is_an_error_at_each_use Redis;
    what_is_wrong_with_a_url_is_said_at_the_first_use Redis;
    a_lazy_client_that_never_connected_ends_at_once Redis;
    two_lazy_clients_exclude_each_other Etcd;
    two_lazy_clients_exclude_each_other Mariadb;
    a_dropped_acquire_leaves_nothing_when_the_server_comes Redis;
    a_program_without_a_runtime_connects_lazily_too Redis;
}

fn connect(cluster: &Cluster, options: &str) -> Result<Client> {
    Ok(tenure::connect_lazy(&cluster.url_with(options))?)
}

async fn a_lazy_client_waits_for_a_server_that_starts_later(cluster: &Cluster) -> Result<()> {
    cluster.node().stop()?;
    let client = connect(cluster, "outage=60s")?;
    let waiting = tokio::spawn(client.lock("k").acquire());
    // It has begun: a second request fails while the first goes on.
    let error = client.lock("k").try_acquire().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(!waiting.is_finished(), "the acquire did not wait");
    cluster.node().restart()?;
    let guard = soon("the grant", waiting).await???;
    ensure!(client.lock("k").status().await?.is_some());
    guard.release().await?;
    client.shutdown(Duration::ZERO).await?;
    Ok(())
}

async fn a_server_that_is_not_there_is_an_error_at_each_use(cluster: &Cluster) -> Result<()> {
    cluster.node().stop()?;
    let client = connect(cluster, "")?;
    let lock = client.lock("k");
    for _ in 0..3 {
        let errors = [
            lock.try_acquire().await.map(drop).unwrap_err(),
            lock.status().await.map(drop).unwrap_err(),
            client.list("").await.map(drop).unwrap_err(),
            client.doctor().await.map(drop).unwrap_err(),
        ];
        for error in errors {
            ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
            ensure!(error.to_string().contains("not connected yet"), "{error}");
        }
    }
    // Nothing was ever sent, so that there is nothing to wait for.
    soon("flush", client.flush()).await??;
    cluster.node().restart()?;
    until(Duration::from_secs(20), "the lock", || async {
        match lock.try_acquire().await {
            Ok(Attempt::Granted(guard)) => Ok(Some(guard.release().await?)),
            Ok(Attempt::Busy(busy)) => anyhow::bail!("{busy}"),
            Err(_) => Ok(None),
        }
    })
    .await
}

async fn what_is_wrong_with_a_url_is_said_at_the_first_use(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "pool=3")?;
    let error = client.lock("k").acquire().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(error.to_string().contains("unknown option `pool`"), "{error}");
    let wrong = super::without_password(cluster);
    let error = tenure::connect_lazy(&wrong)?.lock("k").acquire().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Denied, "{error:?}");
    // A ttl that this server does not keep: the client does not know it before.
    let client = connect(cluster, "")?;
    let lock = client.lock("k").ttl(Duration::from_millis(2));
    let error = lock.acquire().await.map(drop).unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    for wrong in ["nothing://h", "redis"] {
        ensure!(tenure::connect_lazy(wrong).is_err_and(|error| error.kind() == ErrorKind::Invalid));
    }
    Ok(())
}

async fn a_lazy_client_that_never_connected_ends_at_once(cluster: &Cluster) -> Result<()> {
    cluster.node().pause()?;
    let client = connect(cluster, "")?;
    let asked = tokio::time::timeout(Duration::from_millis(100), client.lock("k").acquire()).await;
    ensure!(asked.is_err(), "a paused server responded");
    soon("shutdown", client.shutdown(Duration::ZERO)).await??;
    cluster.node().resume()?;
    let other = connect(cluster, "")?;
    acquire_free(&other.lock("k")).await?.release().await?;
    Ok(())
}

async fn two_lazy_clients_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "")?, connect(cluster, "")?);
    let guard = acquire_free(&one.lock("k")).await?;
    ensure!(matches!(two.lock("k").try_acquire().await?, Attempt::Busy(_)));
    let waiting = tokio::spawn(two.lock("k").acquire());
    guard.release().await?;
    let next = soon("the grant", waiting).await???;
    ensure!(one.info() == two.info(), "what the server promises is known now");
    next.release().await?;
    Ok(())
}

/// The acquire is dropped while the client connects. When the server is there at last, no claim of
/// it may come.
async fn a_dropped_acquire_leaves_nothing_when_the_server_comes(cluster: &Cluster) -> Result<()> {
    cluster.node().pause()?;
    let client = connect(cluster, "connect=30s&response=30s")?;
    let lock = client.lock("k").ttl(Duration::from_secs(60));
    for _ in 0..5 {
        let dropped = tokio::time::timeout(Duration::from_millis(30), lock.acquire()).await;
        ensure!(dropped.is_err(), "a paused server responded");
    }
    cluster.node().resume()?;
    soon("flush", client.flush()).await??;
    let other = connect(cluster, "")?;
    acquire_free(&other.lock("k")).await?.release().await?;
    Ok(())
}

async fn a_program_without_a_runtime_connects_lazily_too(cluster: &Cluster) -> Result<()> {
    let url = cluster.url();
    let thread = std::thread::spawn(move || -> Result<()> {
        let locks = tenure::blocking::connect_lazy(&url)?;
        let guard = locks.lock("k").acquire()?;
        ensure!(locks.list("")?.len() == 1);
        guard.release()?;
        Ok(locks.shutdown(Duration::ZERO)?)
    });
    tokio::task::spawn_blocking(move || thread.join().unwrap()).await?
}
