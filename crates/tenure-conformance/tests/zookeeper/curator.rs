//! Curator itself, in a Java process, on the same locks.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test zookeeper -- curator::`.

use std::path::Path;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure_conformance::bench::{soon, until_waiters};
use tenure_conformance::java::{Peer, STEPS, TOTAL};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::{stranger, take, url};

server_cases! {
    curator_and_we_queue_in_one_order Zookeeper;
    curator_and_we_count_together Zookeeper;
}

fn start(cluster: &Cluster) -> Result<Peer> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/zookeeper/curator");
    Peer::start(&source, Path::new(env!("CARGO_TARGET_TMPDIR")), &cluster.hosts())
}

/// Ours, theirs, ours: everybody is served in the order of asking.
async fn curator_and_we_queue_in_one_order(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let (lock, mut java) = (client.lock("k"), start(cluster)?);
    for _ in 0..5 {
        java.ask("lock a /locks/k", "a locked").await?;
        ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
        let first = tokio::spawn(lock.acquire());
        until_waiters(&lock, 1).await?;
        java.tell("lock b /locks/k")?;
        until_waiters(&lock, 2).await?;
        let last = tokio::spawn(lock.acquire());
        until_waiters(&lock, 3).await?;
        java.ask("unlock a /locks/k", "a unlocked").await?;
        let guard = soon("our turn", first).await???;
        java.ask("try a /locks/k", "a busy").await?;
        guard.release().await?;
        java.hear("b locked").await?;
        ensure!(!last.is_finished(), "two holders");
        java.ask("unlock b /locks/k", "b unlocked").await?;
        soon("our second turn", last).await???.release().await?;
    }
    Ok(())
}

/// Three threads of Curator and three tasks of ours each add to one number, in two steps.
async fn curator_and_we_count_together(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let mut java = start(cluster)?;
    ensure!(stranger(cluster)?.create("/total", "0", 0)?.is_ok());
    take(&client.lock("k")).await?.release().await?;
    let hosts = cluster.hosts();
    let count = || {
        let (lock, hosts) = (client.lock("k"), hosts.clone());
        async move {
            let zookeeper = zookeeper_client::Client::connect(&hosts).await?;
            for _ in 0..STEPS {
                let guard = lock.acquire().await?;
                let (data, _) = zookeeper.get_data("/total").await?;
                let total: u64 = String::from_utf8(data)?.parse()?;
                let next = (total + 1).to_string();
                zookeeper.set_data("/total", next.as_bytes(), None).await?;
                guard.release().await?;
            }
            Ok(())
        }
    };
    java.count_together("/locks/k", count).await?;
    let (data, _) = zookeeper_client::Client::connect(&hosts).await?.get_data("/total").await?;
    let total = String::from_utf8(data)?;
    ensure!(total == TOTAL.to_string(), "steps were lost: {total} of {TOTAL}");
    Ok(())
}
