//! Servers that a session has to leave: stopped, or cut off from their ensemble.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::{Attempt, Client, Config, ErrorKind};
use tenure_conformance::context::{soon, until, until_waiters, within};
use tenure_conformance::oracle::{Ledger, Oracle};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node, Proxy};

use crate::{acquire_free, claim, open};

server_cases! {
    session_leaves_a_stopped_server_within_the_lease Zookeeper3;
    session_leaves_a_server_cut_off_from_its_ensemble Zookeeper3;
    dropped_backend_ends_its_session Zookeeper3;
    unreachable_server_is_named_at_once Zookeeper;
    waiters_of_every_mode_follow_their_session_to_another_server Zookeeper3;
    modes_never_mix_while_leaders_are_killed Zookeeper3;
}

/// A client whose session is at this server, with a URL that names all servers. The proxies have to
/// be kept for as long as the client is used.
async fn attached(cluster: &Cluster, wanted: &Node) -> Result<(Client, Vec<Proxy>)> {
    for _ in 0..50 {
        let proxies = cluster.nodes().iter().map(Node::proxy).collect::<Result<Vec<_>, _>>()?;
        let hosts: Vec<_> = proxies.iter().map(Proxy::address).collect();
        let client = tenure::connect(&format!("zk://{}/locks?session=6s", hosts.join(","))).await?;
        acquire_free(&client.lock("warm")).await?.release().await?;
        let used =
            |(node, proxy): (&Node, &Proxy)| proxy.requests() == 0 || node.name() == wanted.name();
        if cluster.nodes().iter().zip(&proxies).all(used) {
            return Ok((client, proxies));
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
    let guard = acquire_free(&client.lock("k")).await?;
    fault()?;
    let lost = tokio::time::timeout(Duration::from_secs(12), guard.lost()).await;
    ensure!(lost.is_err(), "lost although two other servers serve: {lost:?}");
    soon("release", guard.release()).await??;
    soon("acquire", client.lock("k").acquire()).await??.release().await?;
    Ok(())
}

async fn session_leaves_a_stopped_server_within_the_lease(cluster: &Cluster) -> Result<()> {
    let follower = follower(cluster)?;
    let (client, _proxies) = attached(cluster, follower).await?;
    let held = holds_through(&client, || Ok(follower.pause()?)).await;
    follower.resume()?;
    held
}

/// The server responds to the pings of the client library for five more seconds, and the lease is
/// four.
async fn session_leaves_a_server_cut_off_from_its_ensemble(cluster: &Cluster) -> Result<()> {
    let follower = follower(cluster)?;
    let ensemble_proxies = tokio::task::block_in_place(|| through_proxies(cluster, follower))?;
    let (client, _proxies) = attached(cluster, follower).await?;
    holds_through(&client, || {
        ensemble_proxies.iter().for_each(Proxy::cut);
        Ok(())
    })
    .await
}

/// Restarts a server so that it reaches the others through proxies: a follower gets everything from
/// its leader over a connection that it opens itself.
fn through_proxies(cluster: &Cluster, node: &Node) -> Result<Vec<Proxy>> {
    node.kill()?;
    let file = node.dir().join("zoo.cfg");
    let mut proxies = Vec::new();
    let mut lines = Vec::new();
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

async fn dropped_backend_ends_its_session(cluster: &Cluster) -> Result<()> {
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

async fn unreachable_server_is_named_at_once(cluster: &Cluster) -> Result<()> {
    let address = cluster.node().address();
    cluster.node().kill()?;
    let connect = tenure::connect(&format!("zk://{address}/locks"));
    let error = within(Duration::from_secs(4), "an error", connect).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(error.to_string().contains(&address), "{error}");
    ensure!(error.to_string().contains("refused"), "{error}");
    Ok(())
}

/// Their watches are at a server that is stopped when the locks become free.
async fn waiters_of_every_mode_follow_their_session_to_another_server(
    cluster: &Cluster,
) -> Result<()> {
    let follower = follower(cluster)?;
    let (client, _proxies) = attached(cluster, follower).await?;
    let leader = cluster.wait_leader(|_| true)?;
    let near = tenure::connect(&format!("{}/locks?session=6s", leader.url())).await?;
    let holders = [acquire_free(&near.lock("s")).await?, acquire_free(&near.lock("x")).await?];
    let all = soon("all permits", near.semaphore("p", 2).permits(2).acquire()).await??;
    let reader = tokio::spawn(client.lock("s").shared().acquire());
    let writer = tokio::spawn(client.lock("x").acquire());
    let first = tokio::spawn(client.semaphore("p", 2).acquire());
    until_waiters(&near.lock("p"), 1).await?;
    let second = tokio::spawn(client.semaphore("p", 2).acquire());
    for (key, count) in [("s", 1), ("x", 1), ("p", 2)] {
        until_waiters(&near.lock(key), count).await?;
    }
    follower.pause()?;
    let granted = async {
        for holder in holders {
            holder.release().await?;
        }
        all.release().await?;
        reader.await??.release().await?;
        writer.await??.release().await?;
        let permits = [first.await??, second.await??];
        for permit in permits {
            permit.release().await?;
        }
        anyhow::Ok(())
    };
    let granted = within(Duration::from_secs(25), "the grants", granted).await;
    follower.resume()?;
    granted?
}

/// Eight clients acquire in all modes by turns; the oracle compares what they believe.
async fn modes_never_mix_while_leaders_are_killed(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/locks?session=3s", cluster.url());
    let config: Config = url.parse()?;
    // What the servers show is not compared: they are killed.
    let ledger = Ledger::new(Box::new(|_| Box::pin(async { None })), Duration::ZERO);
    let (stop, grants) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..8_u64 {
        let backend = Oracle::new(config.clone().open().await?, ledger.clone());
        let client = Config::default().with_backend(backend);
        let (stop, grants) = (stop.clone(), grants.clone());
        tasks.spawn(async move {
            for round in number.. {
                if stop.load(Ordering::SeqCst) > 0 {
                    return;
                }
                if one_turn(&client, round).await.is_ok() {
                    grants.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
    for _ in 0..2 {
        let leader = cluster.wait_leader(|_| true)?;
        go_on(&grants).await?;
        leader.kill()?;
        go_on(&grants).await?;
        leader.restart()?;
        cluster.wait_ready()?;
        go_on(&grants).await?;
    }
    stop.store(1, Ordering::SeqCst);
    while let Some(done) = within(Duration::from_secs(60), "the end", tasks.join_next()).await? {
        done?;
    }
    println!("{} grants", grants.load(Ordering::SeqCst));
    ledger.verdict().await
}

/// Waits for forty more grants.
async fn go_on(grants: &AtomicU64) -> Result<()> {
    let goal = grants.load(Ordering::SeqCst) + 40;
    let reached = async || Ok((grants.load(Ordering::SeqCst) >= goal).then_some(()));
    until(Duration::from_secs(60), "forty more grants", reached).await
}

/// What a killed server makes fail fails; the oracle judges what did not.
async fn one_turn(client: &Client, round: u64) -> tenure::Result<()> {
    let longest = Duration::from_secs(20);
    if round.is_multiple_of(3) {
        let take = u32::try_from(round % 2).unwrap_or_default() + 1;
        let permits = client.semaphore("p", 3).permits(take);
        return permits.acquire_within(longest).await?.granted()?.release().await;
    }
    let lock = client.lock("k");
    if round.is_multiple_of(2) {
        return lock.shared().acquire_within(longest).await?.granted()?.release().await;
    }
    let mut writer = lock.acquire_within(longest).await?.granted()?;
    if round % 3 == 1 {
        writer.downgrade().await?;
    }
    writer.release().await
}
