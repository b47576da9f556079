//! Members are killed, frozen, and without a leader. By that alone no lock is lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::Client;
use tenure_conformance::context::{acquire_free, soon, until_waiters, within};
use tenure_conformance::load::{Harm, Load};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};

use super::{gateway, name};

server_cases! {
    locks_survive_a_killed_leader Etcd3;
    holders_survive_a_killed_follower Etcd3;
    a_client_moves_on_from_a_frozen_member Etcd3;
    locks_survive_a_leader_change Etcd3;
    locks_survive_a_restart_of_the_server Etcd;
    a_waiter_survives_a_compaction Etcd;
}

/// Four clients that acquire the same lock by turns.
async fn load(cluster: &Cluster) -> Result<Load> {
    let name = name();
    let mut locks = Vec::new();
    for _ in 0..4 {
        let client = tenure::connect(&cluster.url()).await?;
        locks.push(client.lock(&name).ttl(Duration::from_secs(8)));
    }
    Ok(Load::start(locks, Harm::Time))
}

/// Holds a lock for longer than its lease while something happens.
async fn hold_through<T>(
    client: &Client,
    ttl: Duration,
    fault: impl Future<Output = Result<T>>,
) -> Result<T> {
    let guard = acquire_free(&client.lock(name()).ttl(ttl)).await?;
    let done = fault.await?;
    let lost = tokio::time::timeout(ttl + ttl / 2, guard.lost()).await;
    ensure!(lost.is_err(), "lost by a fault that should not matter: {lost:?}");
    guard.release().await?;
    Ok(done)
}

async fn kill(node: &Node) -> Result<()> {
    Ok(node.kill()?)
}

async fn locks_survive_a_killed_leader(cluster: &Cluster) -> Result<()> {
    let load = load(cluster).await?;
    load.go_on(20).await?;
    let client = tenure::connect(&cluster.url()).await?;
    let leader = cluster.wait_leader(|_| true)?;
    hold_through(&client, Duration::from_secs(8), async {
        kill(leader).await?;
        load.go_on(20).await
    })
    .await?;
    leader.restart()?;
    load.go_on(20).await?;
    load.finish().await
}

async fn holders_survive_a_killed_follower(cluster: &Cluster) -> Result<()> {
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let follower = follower.context("there are three")?;
    // The client connects to the follower first.
    let url = format!("etcd://{},{}", follower.address(), leader.address());
    let client = tenure::connect(&url).await?;
    hold_through(&client, Duration::from_secs(4), kill(follower)).await?;
    soon("acquire", client.lock(name()).acquire()).await??.release().await?;
    Ok(())
}

async fn a_client_moves_on_from_a_frozen_member(cluster: &Cluster) -> Result<()> {
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let follower = follower.context("there are three")?;
    let url = format!("etcd://{},{}", follower.address(), leader.address());
    let client = tenure::connect(&url).await?;
    hold_through(&client, Duration::from_secs(4), async { Ok(follower.pause()?) }).await?;
    let lock = client.lock(name()).ttl(Duration::from_secs(4));
    soon("acquire", lock.acquire()).await??.release().await?;
    follower.resume()?;
    Ok(())
}

async fn locks_survive_a_leader_change(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let other = tenure::connect(&cluster.url()).await?;
    let name = name();
    let ttl = Duration::from_secs(6);
    let lock = client.lock(&name).ttl(ttl);
    let guard = acquire_free(&lock).await?;
    let waiter = tokio::spawn(other.lock(&name).ttl(ttl).acquire());
    until_waiters(&lock, 1).await?;
    hold_through(&client, ttl, async { Ok(cluster.failover().map(drop)?) }).await?;
    guard.check()?;
    ensure!(!waiter.is_finished(), "two holders");
    let first = guard.token();
    guard.release().await?;
    let next = soon("the waiter's grant", waiter).await???;
    ensure!(next.token() > first);
    next.release().await?;
    Ok(())
}

async fn locks_survive_a_restart_of_the_server(cluster: &Cluster) -> Result<()> {
    let load = load(cluster).await?;
    let client = tenure::connect(&cluster.url()).await?;
    load.go_on(20).await?;
    hold_through(&client, Duration::from_secs(8), async {
        cluster.node().kill()?;
        cluster.node().restart()?;
        load.go_on(20).await
    })
    .await?;
    load.finish().await
}

/// The revision that a watch would begin with is compacted away.
async fn a_waiter_survives_a_compaction(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    let name = name();
    let guard = acquire_free(&one.lock(&name)).await?;
    let waiter = tokio::spawn(two.lock(&name).acquire());
    until_waiters(&one.lock(&name), 1).await?;
    for _ in 0..5 {
        acquire_free(&one.lock(format!("{name}-other"))).await?.release().await?;
    }
    let last = acquire_free(&one.lock(format!("{name}-other"))).await?.token().get() / 1024;
    gateway(
        cluster.node(),
        "/v3/kv/compaction",
        &format!(r#"{{"revision":"{last}","physical":true}}"#),
    )?;
    guard.release().await?;
    // The next poll would come after 10 s.
    within(Duration::from_secs(5), "the waiter's grant", waiter).await???.release().await?;
    Ok(())
}
