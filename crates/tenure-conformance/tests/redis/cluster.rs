//! A cluster of which a part is dead, silent, or being moved.

use anyhow::{Context, Result, ensure};
use tenure::{Client, ErrorKind, Guard};
use tenure_conformance::context::{SOON, soon, until};
use tenure_conformance::server_cases;
use tenure_servers::wire::redis::{Value, execute as request};
use tenure_servers::{Cluster, Node, wait_until};

use crate::{LONG, SECOND, acquire, connect, execute, number, texts, wait_for};

server_cases! {
    a_frozen_master_loses_only_its_own_locks RedisCluster;
    a_silent_failover_is_followed_with_a_short_lease RedisCluster;
    a_new_client_needs_one_master RedisCluster;
    a_slot_that_is_being_moved_delays_requests_and_loses_no_lock RedisCluster;
}

/// A key whose slot this node has.
fn key_of(node: &Node) -> Result<String> {
    for number in 0..1000 {
        let key = format!("k{number}");
        if !matches!(request(node.port(), &["GET", &key])?, Value::Error(_)) {
            return Ok(key);
        }
    }
    anyhow::bail!("{} has none of a thousand keys", node.name())
}

/// Lets the nodes serve what they have when others are gone.
fn serve_without_the_others(cluster: &Cluster) -> Result<()> {
    for node in cluster.nodes() {
        execute(node, &["CONFIG", "SET", "cluster-require-full-coverage", "no"])?;
    }
    Ok(())
}

/// The renewals of both locks go together.
async fn a_frozen_master_loses_only_its_own_locks(cluster: &Cluster) -> Result<()> {
    serve_without_the_others(cluster)?;
    let client = connect(cluster, "").await?;
    let frozen = &cluster.nodes()[0];
    let ttl = SECOND * 4;
    let lost = acquire(&client, &key_of(frozen)?, ttl).await?;
    let kept: Vec<Guard> = acquire_on(&client, &cluster.nodes()[1..], ttl).await?;
    frozen.pause()?;
    soon("the loss", lost.lost()).await?;
    for guard in &kept {
        let lost = tokio::time::timeout(ttl, guard.lost()).await;
        ensure!(lost.is_err(), "its own master was well: {lost:?}");
    }
    frozen.resume()?;
    for guard in kept {
        guard.release().await?;
    }
    Ok(())
}

async fn acquire_on(
    client: &Client,
    nodes: &[Node],
    ttl: std::time::Duration,
) -> Result<Vec<Guard>> {
    let mut guards = Vec::new();
    for node in nodes {
        guards.push(acquire(client, &key_of(node)?, ttl).await?);
    }
    Ok(guards)
}

/// All slots at the first node, which the others follow.
fn one_master(cluster: &Cluster) -> Result<(&Node, &Node)> {
    let [master, heir, third] = cluster.nodes() else { anyhow::bail!("three nodes") };
    let slots_moved = || {
        for node in [heir, third, master] {
            // Not all of them may have them any more.
            request(node.port(), &["CLUSTER", "DELSLOTSRANGE", "5461", "16383"])?;
        }
        execute(master, &["CLUSTER", "ADDSLOTSRANGE", "5461", "16383"])?;
        // An earlier message of the others must not count for more.
        execute(master, &["CLUSTER", "BUMPEPOCH"])
    };
    wait_until(SOON, slots_moved)?;
    let id = texts(master, &["CLUSTER", "MYID"])?.concat();
    for node in [heir, third] {
        let follow = || execute(node, &["CLUSTER", "REPLICATE", &id]);
        wait_until(SOON, follow).context("a replica")?;
    }
    wait_until(SOON, || match number(master, &["WAIT", "2", "100"])? {
        2 => Ok(()),
        few => Err(anyhow::anyhow!("{few} replicas")),
    })?;
    // The heir can take over only what it knows its master to have.
    for node in cluster.nodes() {
        let known = || {
            let slots = format!("{:?}", execute(node, &["CLUSTER", "SLOTS"])?);
            ensure!(slots.matches("Int(16383)").count() == 1, "{slots}");
            let first = slots.matches("Int(0)").count() == 1;
            ensure!(first && !slots.contains("Int(5461)"), "{slots}");
            Ok(())
        };
        wait_until(SOON, known)?;
    }
    Ok((master, heir))
}

/// The master is silent, as a dead host is, and only the nodes of the URL can be queried for the
/// new map. A quarter of this lease is less than it takes to find one of them dead.
async fn a_silent_failover_is_followed_with_a_short_lease(cluster: &Cluster) -> Result<()> {
    let (master, heir) = one_master(cluster)?;
    let client = connect(cluster, "").await?;
    let ttl = SECOND * 2;
    let guard = acquire(&client, "k", ttl).await?;
    let waiter = wait_for(&connect(cluster, "").await?, "k", ttl);
    master.pause()?;
    execute(heir, &["CLUSTER", "FAILOVER", "TAKEOVER"])?;
    let has_taken_over = || match request(heir.port(), &["SET", "probe", "1"])? {
        Value::Error(error) => Err(anyhow::anyhow!("{error}")),
        _ => Ok(()),
    };
    wait_until(SOON, has_taken_over)?;
    // It may have been lost while there was no master.
    drop(guard);
    let guard = soon("the waiter's grant", waiter).await???;
    guard.release().await?;
    soon("a grant", client.lock("k").ttl(ttl).acquire()).await??.release().await?;
    master.resume()?;
    Ok(())
}

/// One master is dead, and the cluster serves the rest.
async fn a_new_client_needs_one_master(cluster: &Cluster) -> Result<()> {
    serve_without_the_others(cluster)?;
    for (dead, alive) in [(0, 1), (1, 0)] {
        let (dead, alive) = (&cluster.nodes()[dead], &cluster.nodes()[alive]);
        let key = key_of(alive)?;
        dead.kill()?;
        let state = || {
            let info = texts(alive, &["CLUSTER", "INFO"])?.concat();
            ensure!(info.contains("cluster_state:ok"), "{info}");
            Ok::<_, anyhow::Error>(())
        };
        wait_until(SOON, state)?;
        let client = soon("a connection", connect(cluster, "")).await??;
        let guard = acquire(&client, &key, LONG).await?;
        let other = connect(cluster, "").await?;
        let waiter = wait_for(&other, &key, LONG);
        tenure_conformance::context::until_waiters(&client.lock(&key), 1).await?;
        guard.release().await?;
        soon("the waiter's grant", waiter).await???.release().await?;
        dead.restart()?;
        cluster.wait_ready()?;
    }
    Ok(())
}

/// A lock that is held while its slot moves goes on; what needs keys that may be on either side
/// says so, and is done when the slot has moved.
async fn a_slot_that_is_being_moved_delays_requests_and_loses_no_lock(
    cluster: &Cluster,
) -> Result<()> {
    let [from, to, ..] = cluster.nodes() else { anyhow::bail!("three nodes") };
    let client = connect(cluster, "").await?;
    let key = key_of(from)?;
    let ttl = SECOND * 3;
    let slot = number(from, &["CLUSTER", "KEYSLOT", &key])?.to_string();
    let guard = acquire(&client, &key, ttl).await?;
    let id = |node: &Node| anyhow::Ok(texts(node, &["CLUSTER", "MYID"])?.concat());
    execute(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)?])?;
    execute(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)?])?;
    let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed: {lost:?}");
    let error = connect(cluster, "").await?.lock(&key).ttl(LONG).try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains("on its way to another node"), "{error}");
    let other = connect(cluster, "").await?;
    let waiter = wait_for(&other, &key, LONG);
    let error = guard.release().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    let port = to.port().to_string();
    let password = to.password().unwrap_or_default();
    for name in texts(from, &["CLUSTER", "GETKEYSINSLOT", &slot, "100"])? {
        execute(from, &["MIGRATE", "127.0.0.1", &port, &name, "0", "5000", "AUTH", &password])?;
    }
    for node in [to, from] {
        execute(node, &["CLUSTER", "SETSLOT", &slot, "NODE", &id(to)?])?;
    }
    soon("the waiter's grant", waiter).await???.release().await?;
    let left = async || Ok((number(to, &["EXISTS", &key])? == 0).then_some(()));
    until(SOON, "the release", left).await
}
