//! Agents that accept connections but cannot serve: stopped, or without a leader.

use anyhow::{Context, Result, ensure};
use tenure_conformance::context::acquire_free;
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Options, Topology, start};

use super::{SECOND, put, url};

server_cases! {
    client_skips_an_agent_without_a_leader Consul3;
    client_leaves_a_stopped_agent_within_a_short_lease Consul3;
}

/// The agent belongs to a cluster whose other servers were killed.
async fn client_skips_an_agent_without_a_leader(cluster: &Cluster) -> Result<()> {
    let alone = tokio::task::block_in_place(|| start(Topology::Consul3, &Options::default()))?;
    let (first, others) = alone.nodes().split_first().context("three servers")?;
    others.iter().try_for_each(|node| node.kill())?;
    let hosts = format!("{},{}", first.address(), cluster.hosts());
    let client = tenure::connect(&url(&hosts, "")).await?;
    acquire_free(&client.lock("k")).await?.release().await?;
    Ok(())
}

async fn client_leaves_a_stopped_agent_within_a_short_lease(cluster: &Cluster) -> Result<()> {
    let leader = cluster.leader()?.context("there is a leader")?.name();
    let follower = cluster.nodes().iter().find(|node| node.name() != leader);
    let follower = follower.context("there is a follower")?;
    let node = r#"{"Node":"locks","Address":"127.0.0.1","NodeMeta":{"external-node":"true"}}"#;
    put(cluster.node(), "/v1/catalog/register", node)?;
    let others = cluster.nodes().iter().filter(|node| node.name() != follower.name());
    let others: Vec<_> = others.map(|node| node.address()).collect();
    let hosts = format!("{},{}", follower.address(), others.join(","));
    let client = tenure::connect(&url(&hosts, "ttl=4s&node=locks")).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    follower.pause()?;
    let lost = tokio::time::timeout(SECOND * 10, guard.lost()).await;
    follower.resume()?;
    ensure!(lost.is_err(), "{lost:?}");
    // The follower that comes back may start an election: a release during it may fail.
    match guard.release().await {
        Err(error) if error.kind() != tenure::ErrorKind::Unavailable => Err(error.into()),
        _ => Ok(()),
    }
}
