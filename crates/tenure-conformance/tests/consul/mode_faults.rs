//! Lost responses, late requests and a killed leader, for shared locks, downgrades and permits.

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Mode};
use tenure::backends::Consul;
use tenure::{Attempt, ErrorKind};
use tenure_conformance::context::{acquire_free, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Direction};

use super::{SECOND, claim, connect, keys, url};

server_cases! {
    downgrade_after_a_lost_response_is_found Consul;
    release_after_a_lost_downgrade_leaves_nothing Consul;
    late_downgrade_of_a_released_lock_leaves_nothing Consul;
    late_request_of_a_cancelled_reader_or_permit_acquires_nothing Consul;
    acquire_of_a_reader_after_a_lost_response_finds_its_own_grant Consul;
    killed_leader_loses_no_reader_and_no_permit Consul3;
}

/// Acquires with a claim, and makes it the request of its downgrade.
async fn locked(consul: &Consul, key: &str) -> Result<Claim> {
    let mut claim = claim(key)?;
    let grant = consul.try_acquire(&claim).await?.granted()?;
    (claim.mode, claim.token) = (Mode::Shared, Some(grant.token));
    Ok(claim)
}

async fn downgrade_after_a_lost_response_is_found(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let consul = Consul::open(&url(&proxy.address(), "")).await?;
    let mut claim = locked(&consul, "k").await?;
    proxy.drop_response(1);
    ensure!(consul.try_acquire(&claim).await.is_err(), "the response was not lost");
    // The renewer goes on meanwhile.
    consul.renew(std::slice::from_ref(&claim)).await.remove(0)?;
    let again = consul.try_acquire(&claim).await?.granted()?;
    ensure!(Some(again.token) == claim.token, "{again:?}");
    acquire_free(&connect(cluster).await?.lock("k").shared()).await?.release().await?;
    claim.unconfirmed = true;
    ensure!(consul.release(&claim).await?, "it was held");
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

/// The lock is shared at the server, and the client does not know it.
async fn release_after_a_lost_downgrade_leaves_nothing(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let consul = Consul::open(&url(&proxy.address(), "")).await?;
    let claim = locked(&consul, "k").await?;
    proxy.drop_response(1);
    ensure!(consul.try_acquire(&claim).await.is_err(), "the response was not lost");
    ensure!(consul.release(&claim).await?, "it was held");
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

async fn late_downgrade_of_a_released_lock_leaves_nothing(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let hosts = format!("{},{}", proxy.address(), cluster.node().address());
    let consul = Consul::open(&url(&hosts, "")).await?;
    let kept = claim("kept")?;
    consul.try_acquire(&kept).await?.granted()?;
    let claim = locked(&consul, "k").await?;
    proxy.cut_one_way(Direction::ToServer);
    let hung = tokio::time::timeout(SECOND, consul.try_acquire(&claim)).await;
    ensure!(hung.is_err(), "the connection was not cut: {hung:?}");
    ensure!(consul.release(&claim).await?, "it was held");
    proxy.heal();
    until_arrived(&proxy.address(), "k").await?;
    let late = consul.try_acquire(&claim).await.map(drop).unwrap_err();
    ensure!(late.kind() == ErrorKind::Lost, "{late}");
    ensure!(consul.release(&kept).await?);
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

/// A request that was held up has arrived when a later one through the same proxy has its response.
/// It must not acquire the key, then or a moment later.
async fn until_arrived(proxy: &str, key: &str) -> Result<()> {
    let probe = tenure::connect(&url(proxy, "")).await?;
    acquire_free(&probe.lock("probe")).await?.release().await?;
    for _ in 0..50 {
        let holding = probe.lock(key).status().await?;
        ensure!(holding.is_none(), "a late request acquired the lock: {holding:?}");
        tokio::time::sleep(SECOND / 50).await;
    }
    Ok(())
}

async fn late_request_of_a_cancelled_reader_or_permit_acquires_nothing(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let hosts = format!("{},{}", proxy.address(), cluster.node().address());
    for (key, mode) in [("reader", Mode::Shared), ("permit", Mode::permits(1, 2)?)] {
        let consul = Consul::open(&url(&hosts, "")).await?;
        // Creates the session, and a connection that is kept.
        let (first, mut late) = (claim("other")?, claim(key)?);
        late.mode = mode;
        consul.try_acquire(&first).await?.granted()?;
        if mode.is_lock() {
            proxy.cut_one_way(Direction::ToServer);
        } else {
            // The permits are read first; then the write is held up.
            proxy.delay(SECOND / 5);
        }
        let hung = tokio::time::timeout(SECOND / 2, consul.try_acquire(&late)).await;
        ensure!(hung.is_err(), "the connection was not cut: {hung:?}");
        late.unconfirmed = true;
        consul.release(&late).await?;
        proxy.heal();
        until_arrived(&proxy.address(), key).await?;
        ensure!(consul.release(&first).await?);
        ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    }
    Ok(())
}

async fn acquire_of_a_reader_after_a_lost_response_finds_its_own_grant(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&url(&proxy.address(), "")).await?;
    acquire_free(&client.lock("warm")).await?.release().await?;
    for round in 0..5 {
        let key = format!("k{round}");
        let lock = client.lock(&key).shared();
        proxy.drop_response(1);
        let guard = soon("acquire", lock.acquire()).await??;
        let seen = lock.status().await?.context("it is held")?;
        ensure!(seen.holders.len() == 1, "acquired twice: {seen:?}");
        ensure!(seen.holder().token == Some(guard.token()), "{seen:?}");
        guard.release().await?;
        client.flush().await?;
        ensure!(lock.status().await?.is_none());
    }
    Ok(())
}

async fn killed_leader_loses_no_reader_and_no_permit(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(&cluster.hosts(), "outage=60s&ttl=30s")).await?;
    let mut writer = acquire_free(&client.lock("k")).await?;
    writer.downgrade().await?;
    let reader = acquire_free(&client.lock("k").shared()).await?;
    let semaphore = client.semaphore("p", 3);
    let permits = semaphore.clone().permits(3).acquire().await?;
    let next = tokio::spawn(client.lock("k").acquire());
    until_waiters(&client.lock("k"), 1).await?;
    tokio::task::block_in_place(|| -> Result<()> {
        let leader = cluster.leader()?.context("there is a leader")?;
        leader.kill()?;
        cluster.wait_leader(|node| node.name() != leader.name())?;
        Ok(())
    })?;
    let token = reader.token();
    for guard in [writer, reader] {
        guard.check()?;
        ensure!(!next.is_finished(), "a writer was granted beside a reader");
        guard.release().await?;
    }
    let next = soon("the writer's grant", next).await???;
    ensure!(next.token() > token);
    let attempt = semaphore.clone().try_acquire().await?;
    ensure!(matches!(attempt, Attempt::Busy(_)), "more permits than there are");
    permits.check()?;
    permits.release().await?;
    next.release().await?;
    Ok(())
}
