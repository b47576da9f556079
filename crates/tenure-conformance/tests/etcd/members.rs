//! Members that a client has to move on from: stopped, without a leader, or not there at all.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::backends::Etcd;
use tenure::{Attempt, ErrorKind, Key};
use tenure_conformance::context::{acquire_free, until, within};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node, Options, Topology, start};

use super::name;

server_cases! {
    a_client_skips_a_member_without_a_leader Etcd3;
    a_client_moves_on_from_a_stopped_member_within_a_short_lease Etcd3;
    locks_survive_a_quorum_that_is_back_within_the_lease Etcd3;
    a_failed_release_is_repeated_when_the_network_heals Etcd;
    an_unreachable_server_is_named_at_once Etcd;
}

/// The member belongs to a cluster whose other members were killed.
async fn a_client_skips_a_member_without_a_leader(cluster: &Cluster) -> Result<()> {
    let alone = tokio::task::block_in_place(|| start(Topology::Etcd3, &Options::default()))?;
    let (first, others) = alone.nodes().split_first().context("three members")?;
    others.iter().try_for_each(Node::kill)?;
    let url = format!("etcd://{},{}", first.address(), cluster.hosts());
    let client = tenure::connect(&url).await?;
    acquire_free(&client.lock(name())).await?.release().await?;
    Ok(())
}

/// The client is connected to the member that is stopped, and has three in its URL.
async fn a_client_moves_on_from_a_stopped_member_within_a_short_lease(
    cluster: &Cluster,
) -> Result<()> {
    let first = cluster.nodes().first().context("three members")?;
    let others = cluster.nodes()[1..].iter().map(Node::address).collect::<Vec<_>>();
    let client =
        tenure::connect(&format!("etcd://{},{}", first.address(), others.join(","))).await?;
    // The shortest, a middle one, and one that is longer than any limit of a call.
    for ttl in [3, 8, 40].map(Duration::from_secs) {
        let guard = acquire_free(&client.lock(name()).ttl(ttl)).await?;
        first.pause()?;
        let lost = tokio::time::timeout(ttl.min(Duration::from_secs(12)) * 2, guard.lost()).await;
        first.resume()?;
        ensure!(lost.is_err(), "ttl {ttl:?}: {lost:?}");
        guard.release().await?;
    }
    Ok(())
}

/// Two of three members are stopped for a third of the lease.
async fn locks_survive_a_quorum_that_is_back_within_the_lease(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let ttl = Duration::from_secs(15);
    let lock = client.lock(name()).ttl(ttl);
    let guard = acquire_free(&lock).await?;
    let stopped = &cluster.nodes()[..2];
    stopped.iter().try_for_each(Node::pause)?;
    let lost = tokio::time::timeout(ttl / 3, guard.lost()).await;
    stopped.iter().try_for_each(Node::resume)?;
    ensure!(lost.is_err(), "{lost:?}");
    let lost = tokio::time::timeout(ttl * 4 / 3, guard.lost()).await;
    ensure!(lost.is_err(), "after the quorum was back: {lost:?}");
    guard.release().await?;
    Ok(())
}

/// Another claim keeps the lease alive that it shares with the released one.
async fn a_failed_release_is_repeated_when_the_network_heals(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let ttl = Duration::from_secs(4);
    let far = Etcd::open(&format!("etcd://{}", proxy.address())).await?;
    let near = Etcd::open(&cluster.url()).await?;
    let claim =
        |name: &str| Ok::<_, anyhow::Error>(Claim::new(Key::new(name)?, Owner::random(), ttl));
    let (kept, mine, other) = (claim("kept")?, claim("k")?, claim("k")?);
    far.try_acquire(&kept).await?.granted()?;
    far.try_acquire(&mine).await?.granted()?;
    proxy.refuse();
    ensure!(far.release(&mine).await.is_err(), "released without a network");
    proxy.heal();
    until(ttl * 2, "a free key", async || {
        far.renew(std::slice::from_ref(&kept)).await.remove(0).ok();
        let attempt = near.try_acquire(&other).await?;
        Ok(matches!(attempt, Attempt::Granted(_)).then_some(()))
    })
    .await
}

async fn an_unreachable_server_is_named_at_once(cluster: &Cluster) -> Result<()> {
    let address = cluster.node().address();
    cluster.node().kill()?;
    let connect = tenure::connect(&format!("etcd://{address}"));
    let error = within(Duration::from_secs(2), "an error", connect).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&address), "{error}");
    ensure!(error.to_string().contains("refused"), "{error}");
    Ok(())
}
