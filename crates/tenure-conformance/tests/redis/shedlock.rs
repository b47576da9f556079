//! ShedLock itself, with its provider for Redis, in a Java process.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test redis -- shedlock::`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use tenure::Attempt;
use tenure_conformance::context::{SOON, soon, until_waiters, within};
use tenure_conformance::program::{ORDERS, Peer};
use tenure_conformance::server_cases;
use tenure_peers::{Language, Recipe};
use tenure_servers::Cluster;

use crate::{LONG, SECOND, acquire, connect, number, texts, wait_for};

/// ShedLock writes the lock `nightly` of its environment `default` under this prefix.
const OPTIONS: &str = "layout=plain&prefix=job-lock:default:";
const KEY: &str = "job-lock:default:nightly";

server_cases! {
    shedlock_and_tenure_exclude_each_other Redis;
    what_shedlock_keeps_at_least_is_busy_until_then Redis;
    a_shedlock_job_that_overran_deletes_the_lock_of_tenure_which_learns_it Redis;
    without_its_prefix_shedlock_and_tenure_hold_together Redis;
}

const SHEDLOCK: Recipe = Recipe {
    name: "shedlock",
    language: Language::Java,
    sources: &[ORDERS, ("Peer.java", include_str!("shedlock/Peer.java"))],
    packages: &["net.javacrumbs.shedlock:shedlock-provider-redis-jedis4:5.12.0"],
};

async fn shedlock_and_tenure_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, OPTIONS).await?;
    let lock = client.lock("nightly");
    let mut java = start(cluster)?;
    for _ in 0..3 {
        java.execute("try a nightly 30000 0", "a locked").await?;
        let Attempt::Busy(busy) = lock.try_acquire().await? else {
            anyhow::bail!("two holders");
        };
        let holder = busy.holder.context("the holder is known")?;
        let value = texts(cluster.node(), &["GET", KEY])?.concat();
        ensure!(value.starts_with("ADDED:") && holder.owner == value, "{holder:?}, {value}");
        let left = number(cluster.node(), &["PTTL", KEY])?;
        ensure!((1..=30_000).contains(&left), "expires in {left} ms");
        let waiter = wait_for(&client, "nightly", LONG);
        until_waiters(&lock, 1).await?;
        java.execute("unlock a nightly", "a unlocked").await?;
        let guard = soon("tenure's grant", waiter).await???;
        java.execute("try a nightly 30000 0", "a busy").await?;
        guard.release().await?;
        java.execute("try a nightly 30000 0", "a locked").await?;
        ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
        java.execute("unlock a nightly", "a unlocked").await?;
    }
    Ok(())
}

/// `lockAtLeastFor`: the release only shortens the expiry of the key.
async fn what_shedlock_keeps_at_least_is_busy_until_then(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, OPTIONS).await?;
    let mut java = start(cluster)?;
    java.execute("try a nightly 60000 3000", "a locked").await?;
    java.execute("unlock a nightly", "a unlocked").await?;
    let left = number(cluster.node(), &["PTTL", KEY])?;
    ensure!((1..=3000).contains(&left), "expires in {left} ms");
    let lock = client.lock("nightly");
    ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
    soon("the grant after that", lock.acquire()).await??.release().await?;
    Ok(())
}

/// ShedLock releases by DEL, without a comparison: after `lockAtMostFor` it deletes the lock of the
/// next holder. tenure learns it by its next renewal.
async fn a_shedlock_job_that_overran_deletes_the_lock_of_tenure_which_learns_it(
    cluster: &Cluster,
) -> Result<()> {
    let client = connect(cluster, OPTIONS).await?;
    let mut java = start(cluster)?;
    java.execute("try a nightly 500 0", "a locked").await?;
    let lock = client.lock("nightly").ttl(SECOND * 6);
    let guard = soon("the grant after lockAtMostFor", lock.acquire()).await??;
    java.execute("unlock a nightly", "a unlocked").await?;
    ensure!(number(cluster.node(), &["EXISTS", KEY])? == 0, "it compares by now: say so");
    within(SOON, "the notice", guard.lost()).await?;
    Ok(())
}

async fn without_its_prefix_shedlock_and_tenure_hold_together(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "layout=plain").await?;
    let mut java = start(cluster)?;
    java.execute("try a nightly 30000 0", "a locked").await?;
    let guard = acquire(&client, "nightly", LONG).await?;
    guard.release().await?;
    Ok(())
}

fn start(cluster: &Cluster) -> Result<Peer> {
    Peer::start(&SHEDLOCK, Path::new(env!("CARGO_TARGET_TMPDIR")), &cluster.node().url())
}
