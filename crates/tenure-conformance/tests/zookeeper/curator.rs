//! Curator itself, in a Java process, on the same locks.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test zookeeper -- curator::`.

use std::path::Path;

use anyhow::{Result, ensure};
use tenure::{Attempt, ErrorKind, Lock};
use tenure_conformance::context::{soon, until_waiters};
use tenure_conformance::program::{ORDERS, Peer, STEPS, TOTAL};
use tenure_conformance::server_cases;
use tenure_peers::{Language, Recipe};
use tenure_servers::Cluster;

use crate::{acquire_free, foreign_client, url};

server_cases! {
    curator_and_tenure_share_one_queue Zookeeper;
    curator_and_tenure_count_together Zookeeper;
    curators_mutex_and_readers_exclude_each_other Zookeeper;
    curators_leader_and_readers_exclude_each_other Zookeeper;
    curators_mutex_waits_for_permits Zookeeper;
    curators_semaphore_on_the_same_path_is_refused Zookeeper;
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

async fn curators_mutex_and_readers_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let lock = tenure::connect(&url(cluster)).await?.lock("k");
    let mut java = start(cluster)?;
    for _ in 0..3 {
        let peer = Exclusive { begin: "lock", begun: "locked", end: "unlock", ended: "unlocked" };
        excludes_readers(&lock, &mut java, &peer).await?;
        java.execute("lock a /locks/k", "a locked").await?;
        let attempt = lock.clone().shared().try_acquire().await?;
        ensure!(matches!(attempt, Attempt::Busy(_)), "a reader beside Curator");
        java.execute("unlock a /locks/k", "a unlocked").await?;
    }
    Ok(())
}

async fn curators_leader_and_readers_exclude_each_other(cluster: &Cluster) -> Result<()> {
    let lock = tenure::connect(&url(cluster)).await?.lock("k");
    let mut java = start(cluster)?;
    let peer = Exclusive { begin: "lead", begun: "leads", end: "resign", ended: "resigned" };
    for _ in 0..3 {
        excludes_readers(&lock, &mut java, &peer).await?;
    }
    Ok(())
}

/// A recipe of Curator that holds alone: what to send, and its responses.
struct Exclusive {
    begin: &'static str,
    begun: &'static str,
    end: &'static str,
    ended: &'static str,
}

/// Two readers hold, one of them downgraded; Curator waits for both of them, a late reader for
/// Curator.
async fn excludes_readers(lock: &Lock, java: &mut Peer, peer: &Exclusive) -> Result<()> {
    let mut one = acquire_free(lock).await?;
    soon("downgrade", one.downgrade()).await??;
    let two = acquire_free(&lock.clone().shared()).await?;
    java.send(&format!("{} b /locks/k", peer.begin))?;
    until_waiters(lock, 1).await?;
    let late = tokio::spawn(lock.clone().shared().acquire());
    until_waiters(lock, 2).await?;
    one.release().await?;
    // A response of Curator's: had it been granted beside the other reader, that would come first.
    java.execute("try a /locks/k", "a busy").await?;
    two.check()?;
    let before = two.token();
    two.release().await?;
    java.expect_response(&format!("b {}", peer.begun)).await?;
    until_waiters(lock, 1).await?;
    ensure!(!late.is_finished(), "a reader beside Curator");
    java.execute(&format!("{} b /locks/k", peer.end), &format!("b {}", peer.ended)).await?;
    let late = soon("the late reader's grant", late).await???;
    ensure!(late.token() > before);
    late.release().await?;
    Ok(())
}

/// Curator knows no permits of tenure: to its mutex each of their nodes is one to wait for.
async fn curators_mutex_waits_for_permits(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let semaphore = client.semaphore("k", 3);
    let one = soon("a permit", semaphore.acquire()).await??;
    let two = soon("two permits", semaphore.clone().permits(2).acquire()).await??;
    let mut java = start(cluster)?;
    java.send("lock b /locks/k")?;
    until_waiters(&client.lock("k"), 1).await?;
    one.release().await?;
    until_waiters(&client.lock("k"), 1).await?;
    two.check()?;
    two.release().await?;
    java.expect_response("b locked").await?;
    let refused = soon("refusal", semaphore.acquire()).await?.map(drop).unwrap_err();
    ensure!(refused.kind() == ErrorKind::Invalid, "{refused}");
    java.execute("unlock b /locks/k", "b unlocked").await?;
    soon("a permit", semaphore.acquire()).await??.release().await?;
    Ok(())
}

/// The nodes of the two semaphores are different, so that they would not count each other.
async fn curators_semaphore_on_the_same_path_is_refused(cluster: &Cluster) -> Result<()> {
    let client = tenure::connect(&url(cluster)).await?;
    let mut java = start(cluster)?;
    java.execute("permit a /locks/k", "a permitted").await?;
    let refused = soon("refusal", client.semaphore("k", 3).acquire()).await?.map(drop).unwrap_err();
    ensure!(refused.kind() == ErrorKind::Invalid, "{refused}");
    ensure!(refused.to_string().contains("Curator"), "{refused}");
    java.execute("permit b /locks/k", "b permitted").await?;
    java.execute("return a /locks/k", "a returned").await?;
    java.execute("return b /locks/k", "b returned").await?;
    Ok(())
}
