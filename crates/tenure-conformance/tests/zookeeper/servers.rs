//! Servers that a client has to leave: stopped, or out of their ensemble.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::{Attempt, Client, ErrorKind};
use tenure_conformance::bench::{soon, until, within};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node, Proxy};

use crate::{claim, open, take};

server_cases! {
    a_stopped_server_is_left_within_the_lease Zookeeper3;
    a_server_out_of_its_ensemble_is_left_within_the_lease Zookeeper3;
    a_dropped_backend_ends_its_session Zookeeper3;
    a_server_that_is_not_there_is_named_at_once Zookeeper;
}

/// A client whose session is at this server, of a URL that names them all. It goes on if the
/// proxies do.
async fn attached(cluster: &Cluster, wanted: &Node) -> Result<(Client, Vec<Proxy>)> {
    for _ in 0..50 {
        let ways = cluster.nodes().iter().map(Node::proxy).collect::<Result<Vec<_>, _>>()?;
        let hosts: Vec<_> = ways.iter().map(Proxy::address).collect();
        let client = tenure::connect(&format!("zk://{}/locks?session=6s", hosts.join(","))).await?;
        take(&client.lock("warm")).await?.release().await?;
        let used =
            |(node, way): (&Node, &Proxy)| way.requests() == 0 || node.name() == wanted.name();
        if cluster.nodes().iter().zip(&ways).all(used) {
            return Ok((client, ways));
        }
    }
    bail!("the library never chose the server that was wanted")
}

fn follower(cluster: &Cluster) -> Result<&Node> {
    let leader = cluster.wait_leader(|_| true)?;
    let follower = cluster.nodes().iter().find(|node| node.name() != leader.name());
    follower.context("there are three")
}

async fn holds_through(client: &Client, fault: impl FnOnce() -> Result<()>) -> Result<()> {
    let guard = take(&client.lock("k")).await?;
    fault()?;
    let lost = tokio::time::timeout(Duration::from_secs(12), guard.lost()).await;
    ensure!(lost.is_err(), "lost although two other servers serve: {lost:?}");
    soon("release", guard.release()).await??;
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    Ok(())
}

async fn a_stopped_server_is_left_within_the_lease(cluster: &Cluster) -> Result<()> {
    let follower = follower(cluster)?;
    let (client, _ways) = attached(cluster, follower).await?;
    let held = holds_through(&client, || Ok(follower.pause()?)).await;
    follower.resume()?;
    held
}

/// It answers the library's pings for five seconds more, and the lease is four.
async fn a_server_out_of_its_ensemble_is_left_within_the_lease(cluster: &Cluster) -> Result<()> {
    let follower = follower(cluster)?;
    let ways_out = tokio::task::block_in_place(|| through_proxies(cluster, follower))?;
    let (client, _ways) = attached(cluster, follower).await?;
    holds_through(&client, || {
        ways_out.iter().for_each(Proxy::cut);
        Ok(())
    })
    .await
}

/// Restarts a server so that it reaches the others through proxies: a follower gets everything from
/// its leader over a connection that it opens itself.
fn through_proxies(cluster: &Cluster, node: &Node) -> Result<Vec<Proxy>> {
    node.kill()?;
    let (file, mut proxies, mut lines) = (node.dir().join("zoo.cfg"), Vec::new(), Vec::new());
    let own = format!("server.{}=", node.name().trim_start_matches('n'));
    for line in std::fs::read_to_string(&file)?.lines() {
        let mut line = line.to_owned();
        if line.starts_with("server.") && !line.starts_with(&own) {
            let port = line.split(':').nth(1).context("a port")?.to_owned();
            let proxy = Proxy::start(port.parse()?)?;
            line = line.replacen(&format!(":{port}:"), &format!(":{}:", proxy.port()), 1);
            proxies.push(proxy);
        }
        lines.push(line);
    }
    std::fs::write(&file, lines.join("\n"))?;
    node.restart()?;
    cluster.wait_ready()?;
    ensure!(proxies.len() == 2, "the file names {} others", proxies.len());
    Ok(proxies)
}

async fn a_dropped_backend_ends_its_session(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/locks?session=30s", cluster.url());
    let (near, far) = (open(&url).await?, open(&url).await?);
    let (mine, other) = (claim("k")?, claim("k")?);
    far.try_acquire(&mine).await?.granted()?;
    drop(far);
    until(Duration::from_secs(10), "the end of the session", async || {
        let attempt = near.try_acquire(&other).await?;
        Ok(matches!(attempt, Attempt::Granted(_)).then_some(()))
    })
    .await
}

async fn a_server_that_is_not_there_is_named_at_once(cluster: &Cluster) -> Result<()> {
    let address = cluster.node().address();
    cluster.node().kill()?;
    let connect = tenure::connect(&format!("zk://{address}/locks"));
    let error = within(Duration::from_secs(4), "an error", connect).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&address), "{error}");
    ensure!(error.to_string().contains("refused"), "{error}");
    Ok(())
}
