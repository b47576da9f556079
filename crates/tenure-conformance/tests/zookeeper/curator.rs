//! Curator itself, in a Java process, on the same locks.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test zookeeper -- curator::`.

use std::path::Path;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::program::{ORDERS, Peer, STEPS, TOTAL};
use tenure_conformance::server_cases;
use tenure_peers::{Language, Recipe};
use tenure_servers::Cluster;

use crate::{acquire_free, foreign_client, url};

server_cases! {
    curator_and_tenure_share_one_queue Zookeeper;
    curator_and_tenure_count_together Zookeeper;
}

const CURATOR: Recipe = Recipe {
    name: "curator",
    language: Language::Java,
    sources: &[ORDERS, ("Peer.java", include_str!("curator/Peer.java"))],
    packages: &["org.apache.curator:curator-recipes:5.9.0"],
};

fn start(cluster: &Cluster) -> Result<Peer> {
    Peer::start(&CURATOR, Path::new(env!("CARGO_TARGET_TMPDIR")), &cluster.hosts())
}

/// A claim of tenure, one of Curator, one of tenure: they get the lock in the order of the queue.
async fn curator_and_tenure_share_one_queue(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let lock = client.lock("k");
    let mut java = start(cluster)?;
    for _ in 0..5 {
        java.execute("lock a /locks/k", "a locked").await?;
        ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
        let first = tokio::spawn(lock.acquire());
        until_waiters(&lock, 1).await?;
        java.send("lock b /locks/k")?;
        until_waiters(&lock, 2).await?;
        let last = tokio::spawn(lock.acquire());
        until_waiters(&lock, 3).await?;
        java.execute("unlock a /locks/k", "a unlocked").await?;
        let guard = soon("the first waiter's grant", first).await???;
        java.execute("try a /locks/k", "a busy").await?;
        guard.release().await?;
        java.expect_response("b locked").await?;
        ensure!(!last.is_finished(), "two holders");
        java.execute("unlock b /locks/k", "b unlocked").await?;
        soon("the last waiter's grant", last).await???.release().await?;
    }
    Ok(())
}

/// Three threads of Curator and three tasks of tenure increment one number by a read and a write.
async fn curator_and_tenure_count_together(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let mut java = start(cluster)?;
    ensure!(foreign_client(cluster)?.create("/total", "0", 0)?.is_ok());
    acquire_free(&client.lock("k")).await?.release().await?;
    let hosts = cluster.hosts();
    let count = || {
        let lock = client.lock("k");
        let hosts = hosts.clone();
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
