//! Sentinel and Cluster: the server changes, the promises do not.

use anyhow::{Context, Result, ensure};
use tenure::ErrorKind;
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Role, wait_until};

use crate::{LONG, SECOND, acquire, connect, execute, texts, wait_for};

server_cases! {
    a_lock_on_a_replica_survives_a_failover RedisSentinel;
    a_lock_survives_the_replacement_of_a_killed_master RedisSentinel;
    a_grant_that_no_replica_has_is_released RedisSentinel;
    a_renewal_that_no_replica_has_is_not_believed RedisSentinel;
    silent_sentinels_do_not_delay_a_connection RedisSentinel;
    a_slot_that_moved_is_followed RedisCluster;
    a_restarted_node_of_a_cluster_is_used_again RedisCluster;
}

async fn a_lock_on_a_replica_survives_a_failover(cluster: &Cluster) -> Result<()> {
    // Both of them have it, so that it does not matter which one is promoted.
    let (one, two) = (connect(cluster, "replicas=2").await?, connect(cluster, "").await?);
    let guard = acquire(&one, "k", SECOND * 20).await?;
    let waiter = wait_for(&two, "k", SECOND * 20);
    until_waiters(&one.lock("k"), 1).await?;
    let old = cluster.leader()?.context("a master")?.name().to_owned();
    cluster.failover()?;
    ensure!(cluster.leader()?.context("a master")?.name() != old);
    ensure!(guard.check().is_ok(), "lost by the failover");
    let token = guard.token();
    soon("release", guard.release()).await??;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn a_lock_survives_the_replacement_of_a_killed_master(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "replicas=2").await?;
    let guard = acquire(&client, "k", SECOND * 20).await?;
    let old = cluster.leader()?.context("a master")?;
    old.kill()?;
    let new = cluster.wait_leader(|node| node.name() != old.name())?;
    let renewed = async {
        // Sentinels wait for a second before they replace a master: more than nineteen are left
        // only of a lease that was renewed on the new one.
        wait_until(SECOND * 30, || match crate::number(new, &["PTTL", "k"]) {
            Ok(left) if left > 19_200 => Ok(()),
            other => Err(other),
        })
        .map_err(|last| anyhow::anyhow!("not renewed on the new master: {last:?}"))
    };
    renewed.await?;
    ensure!(guard.check().is_ok());
    guard.release().await?;
    Ok(())
}

async fn a_grant_that_no_replica_has_is_released(cluster: &Cluster) -> Result<()> {
    // Half of the limit is waited for the replica; the other half is for a slow machine.
    let client = connect(cluster, "replicas=1&response=2s").await?;
    let master = cluster.leader()?.context("a master")?;
    acquire(&client, "k", LONG).await?.release().await?;
    for node in cluster.members().filter(|node| node.name() != master.name()) {
        node.pause()?;
    }
    let error = client.lock("k").ttl(LONG).try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains("replicas"), "{error}");
    client.flush().await?;
    ensure!(crate::number(master, &["EXISTS", "k"])? == 0, "it was not released");
    for node in cluster.nodes().iter().filter(|node| node.role() == Role::Member) {
        node.resume()?;
    }
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    Ok(())
}

/// The master goes on to extend the lease, but a failover to a replica that has the grant would let
/// the next one in at the end of the lease that was granted.
async fn a_renewal_that_no_replica_has_is_not_believed(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "replicas=1").await?;
    let ttl = SECOND * 4;
    let master = cluster.leader()?.context("a master")?;
    let guard = acquire(&client, "k", ttl).await?;
    let lost = tokio::time::timeout(ttl * 3 / 2, guard.lost()).await;
    ensure!(lost.is_err(), "replicas were there: {lost:?}");
    let cut = std::time::Instant::now();
    for node in cluster.members().filter(|node| node.name() != master.name()) {
        node.pause()?;
    }
    let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
    ensure!(lost.is_ok(), "renewed by a master alone, {:?} after its replicas went", cut.elapsed());
    for node in cluster.nodes().iter().filter(|node| node.role() == Role::Member) {
        node.resume()?;
    }
    // What the master alone extended was released.
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    Ok(())
}

/// Hosts that are gone accept nothing and refuse nothing. There are more of them than would
/// fit one after another into the time for a connection.
async fn silent_sentinels_do_not_delay_a_connection(cluster: &Cluster) -> Result<()> {
    let silent = (0..6).map(|_| std::net::TcpListener::bind("127.0.0.1:0"));
    let silent = silent.collect::<std::io::Result<Vec<_>>>()?;
    let mut hosts = Vec::new();
    for listener in &silent {
        hosts.push(listener.local_addr()?.to_string());
    }
    hosts.push(cluster.hosts());
    let url = cluster.url().replacen(&cluster.hosts(), &hosts.join(","), 1);
    let client = soon("a connection", tenure::connect(&url)).await??;
    acquire(&client, "k", LONG).await?.release().await?;
    Ok(())
}

/// An empty slot is moved to another master without the client's knowledge.
async fn a_slot_that_moved_is_followed(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    client.lock("k").acquire().await?.release().await?;
    let slot = crate::number(cluster.node(), &["CLUSTER", "KEYSLOT", "moved"])?.to_string();
    let mut owner = None;
    for node in cluster.nodes() {
        let response = tenure_servers::wire::redis::execute(node.port(), &["GET", "moved"])?;
        if !format!("{response:?}").contains("MOVED") {
            owner = Some(node);
        }
    }
    let owner = owner.context("some node has the slot")?;
    let heir = cluster.nodes().iter().find(|node| node.name() != owner.name());
    let heir = heir.context("another node")?;
    let id = texts(heir, &["CLUSTER", "MYID"])?.concat();
    for node in [heir, owner] {
        execute(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id])?;
    }
    let guard = soon("acquire", client.lock("moved").acquire()).await??;
    ensure!(crate::number(heir, &["EXISTS", "moved"])? == 1);
    let other = connect(cluster, "").await?;
    let waiter = wait_for(&other, "moved", LONG);
    until_waiters(&client.lock("moved"), 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn a_restarted_node_of_a_cluster_is_used_again(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let names: Vec<_> = (0..12).map(|number| format!("k{number}")).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(acquire(&client, name, SECOND * 20).await?);
    }
    let node = cluster.node();
    node.kill()?;
    node.restart()?;
    cluster.wait_ready()?;
    for guard in guards {
        soon("release", guard.release()).await??;
    }
    let lists = client.list("").await?;
    ensure!(lists.is_empty(), "{lists:?}");
    for name in &names {
        soon("acquire", client.lock(name).acquire()).await??.release().await?;
    }
    Ok(())
}
