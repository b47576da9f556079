//! How many requests locks cost, as the server counts them.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::{Claim, Owner};
use tenure::{Attempt, Config, Key};
use tenure_conformance::context::{acquire_free, expect_busy, soon};
use tenure_conformance::server_cases;
use tenure_servers::wire::http::{get, json_field};
use tenure_servers::{Cluster, Node};

use super::{gateway, name};

server_cases! {
    an_acquire_and_its_release_are_two_proposals Etcd;
    a_refused_try_acquire_writes_nothing Etcd;
    keep_alives_do_not_grow_with_the_number_of_locks Etcd;
    a_compacted_watch_is_not_opened_again_and_again Etcd;
    a_waiter_is_not_delayed_by_watches_that_begin_in_the_past Etcd;
}

/// The sum of a counter of the server.
pub(crate) fn metric(node: &Node, start: &str) -> Result<f64> {
    let text = get(node.port(), "/metrics")?;
    let lines = text.lines().filter(|line| line.starts_with(start));
    let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(values.sum())
}

fn proposals(node: &Node) -> Result<f64> {
    metric(node, "etcd_server_proposals_applied_total")
}

pub(crate) fn revision(node: &Node) -> Result<String> {
    let response = gateway(node, "/v3/kv/range", r#"{"key":"eA=="}"#)?;
    json_field(&response, "revision").context("a revision")
}

async fn an_acquire_and_its_release_are_two_proposals(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let lock = client.lock(name());
    acquire_free(&lock).await?.release().await?;
    let before = proposals(cluster.node())?;
    let rounds = 50;
    for round in 0..rounds {
        match round % 2 {
            0 => acquire_free(&lock).await?.release().await?,
            _ => lock.acquire().await?.release().await?,
        }
    }
    let each = (proposals(cluster.node())? - before) / f64::from(rounds);
    // The lease of the opening ends meanwhile, by a proposal of the server.
    ensure!((1.9..2.2).contains(&each), "{each} proposals for an acquire and a release");
    Ok(())
}

async fn a_refused_try_acquire_writes_nothing(cluster: &Cluster) -> Result<()> {
    let one = tenure::connect(&cluster.url()).await?;
    let two = tenure::connect(&cluster.url()).await?;
    let name = name();
    let guard = acquire_free(&one.lock(&name)).await?;
    expect_busy(&two.lock(&name)).await?;
    two.flush().await?;
    let before = revision(cluster.node())?;
    for _ in 0..20 {
        expect_busy(&two.lock(&name)).await?;
    }
    two.flush().await?;
    let after = revision(cluster.node())?;
    ensure!(before == after, "twenty refused tries changed revision {before} to {after}");
    guard.release().await?;
    Ok(())
}

async fn keep_alives_do_not_grow_with_the_number_of_locks(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&cluster.url()).await?;
    let name = name();
    let ttl = Duration::from_secs(3);
    let mut guards = Vec::new();
    for number in 0..300 {
        guards.push(acquire_free(&client.lock(format!("{name}/{number}")).ttl(ttl)).await?);
    }
    let leases = gateway(cluster.node(), "/v3/lease/leases", "{}")?;
    // One of the opening, which may be over, and one for all locks.
    let leases = leases.matches("\"ID\"").count();
    ensure!(leases <= 2, "{leases} leases for 300 locks");
    let received = "grpc_server_msg_received_total{grpc_method=\"LeaseKeepAlive\"";
    let before = metric(cluster.node(), received)?;
    // This is what is measured: three leases' worth of keeping alive.
    tokio::time::sleep(ttl * 3).await;
    let kept = metric(cluster.node(), received)? - before;
    ensure!((3.0..40.0).contains(&kept), "{kept} keep-alives for 300 locks in 9 s");
    for guard in guards {
        guard.check()?;
        drop(guard);
    }
    client.flush().await?;
    ensure!(client.list(&name).await?.is_empty());
    Ok(())
}

/// The watch for a lock's end begins at an old revision. When it has to be opened again, that
/// revision is compacted away.
async fn a_compacted_watch_is_not_opened_again_and_again(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&format!("etcd://{}", proxy.address())).await?;
    let guard = acquire_free(&client.lock(name())).await?;
    acquire_free(&client.lock(name())).await?.release().await?;
    let now = revision(cluster.node())?;
    let body = format!(r#"{{"revision":"{now}","physical":true}}"#);
    gateway(cluster.node(), "/v3/kv/compaction", &body)?;
    proxy.reset();
    let reads = "grpc_server_started_total{grpc_method=\"Txn\"";
    let before = metric(cluster.node(), reads)?;
    // This is what is measured.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let reads = metric(cluster.node(), reads)? - before;
    ensure!(reads < 8.0, "{reads} reads of one lock within 4 s");
    guard.check()?;
    guard.release().await?;
    Ok(())
}

/// The server serves a watch from a past revision only ten times a second: fifty milliseconds late,
/// on average. Other clients write all the time, so that most watches would be of that kind.
async fn a_waiter_is_not_delayed_by_watches_that_begin_in_the_past(
    cluster: &Cluster,
) -> Result<()> {
    let backend = cluster.url().parse::<Config>()?.open().await?;
    let claim = |key: &Key| Claim::new(key.clone(), Owner::random(), Duration::from_secs(20));
    let (mut alone, mut late) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..40 {
        let key = Key::new(name())?;
        let (holder, mut waiter) = (claim(&key), claim(&key));
        waiter.waits = true;
        let began = Instant::now();
        backend.try_acquire(&holder).await?.granted()?;
        alone += began.elapsed();
        ensure!(matches!(backend.try_acquire(&waiter).await?, Attempt::Busy(_)));
        gateway(cluster.node(), "/v3/kv/put", r#"{"key":"eA==","value":"eA=="}"#)?;
        let hint = async { backend.until_free(&waiter).await };
        let began = Instant::now();
        let (_, released) = tokio::join!(soon("a hint", hint), backend.release(&holder));
        late += began.elapsed();
        ensure!(released?);
        backend.release(&waiter).await?;
    }
    // In the same run and by what one request takes, so that a busy machine does not matter.
    ensure!(
        late < alone * 10 + Duration::from_secs(1),
        "{late:?}, where an acquire takes {alone:?}"
    );
    Ok(())
}
