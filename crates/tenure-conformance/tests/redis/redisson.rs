//! Redisson itself, in a Java process, on the same locks.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test redis -- redisson::`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure_conformance::context::{SOON, soon, until, until_waiters};
use tenure_conformance::program::{ORDERS, Peer, STEPS, TOTAL};
use tenure_conformance::server_cases;
use tenure_peers::{Language, Recipe};
use tenure_servers::{Cluster, Node};

use crate::{LONG, connect, execute, texts, wait_for, were_quick};

server_cases! {
    redisson_and_tenure_exclude_and_wake_each_other Redis;
    redisson_and_readers_exclude_and_wake_each_other Redis;
    one_waiter_of_redisson_among_many_of_tenure_gets_the_lock Redis;
    redisson_and_tenure_count_together_and_lose_no_step Redis;
}

const REDISSON: Recipe = Recipe {
    name: "redisson",
    language: Language::Java,
    sources: &[ORDERS, ("Peer.java", include_str!("redisson/Peer.java"))],
    packages: &["org.redisson:redisson:3.52.0"],
};

async fn redisson_and_tenure_exclude_and_wake_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let mut java = start(node)?;
    let mut tenure_times = Vec::new();
    let mut redisson_times = Vec::new();
    for _ in 0..5 {
        java.execute("lock a k", "a locked").await?;
        ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
        let waiter = wait_for(&client, "k", LONG);
        until_waiters(&client.lock("k"), 1).await?;
        until_listeners(node, 1).await?;
        let start = Instant::now();
        java.execute("unlock a k", "a unlocked").await?;
        let guard = soon("tenure's grant", waiter).await???;
        tenure_times.push(start.elapsed());

        java.execute("try a k", "a busy").await?;
        java.send("lock b k")?;
        until_listeners(node, 1).await?;
        let start = Instant::now();
        guard.release().await?;
        java.expect_response("b locked").await?;
        redisson_times.push(start.elapsed());
        java.execute("unlock b k", "b unlocked").await?;
    }
    println!("tenure is woken in {tenure_times:?}, Redisson in {redisson_times:?}");
    were_quick(&tenure_times)?;
    // Without a message Redisson would try again at the end of tenure's lease, in 30 s.
    were_quick(&redisson_times)?;
    Ok(())
}

/// Its `RLock` waits for the last of two readers, and a reader waits for it; so does one that was
/// exclusive.
async fn redisson_and_readers_exclude_and_wake_each_other(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let mut java = start(node)?;
    let (mut tenure_times, mut redisson_times) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        let mut one = client.lock("k").ttl(LONG).try_acquire().await?.granted()?;
        one.downgrade().await?;
        let two = client.lock("k").shared().ttl(LONG).try_acquire().await?.granted()?;
        java.execute("try a k", "a busy").await?;
        java.send("lock b k")?;
        until_listeners(node, 1).await?;
        one.release().await?;
        java.execute("try a k", "a busy").await?;
        let start = Instant::now();
        two.release().await?;
        java.expect_response("b locked").await?;
        redisson_times.push(start.elapsed());

        let reader = client.lock("k").shared().ttl(LONG);
        ensure!(matches!(reader.try_acquire().await?, Attempt::Busy(_)), "two holders");
        let waiter = tokio::spawn(reader.acquire());
        until_waiters(&client.lock("k"), 1).await?;
        until_listeners(node, 1).await?;
        let start = Instant::now();
        java.execute("unlock b k", "b unlocked").await?;
        soon("tenure's grant", waiter).await???.release().await?;
        tenure_times.push(start.elapsed());
    }
    println!("readers are woken in {tenure_times:?}, Redisson in {redisson_times:?}");
    were_quick(&tenure_times)?;
    were_quick(&redisson_times)
}

/// Eight waiters of tenure never leave the lock free; Redisson gets it all the same, again and
/// again.
async fn one_waiter_of_redisson_among_many_of_tenure_gets_the_lock(
    cluster: &Cluster,
) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let mut java = start(node)?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = client.lock("k");
        tasks.spawn(async move {
            loop {
                lock.acquire().await?.release().await?;
            }
            #[expect(unreachable_code, reason = "says what the task would return")]
            anyhow::Ok(())
        });
    }
    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        java.execute("lock a k", "a locked").await?;
        times.push(start.elapsed());
        ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
        java.execute("unlock a k", "a unlocked").await?;
    }
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        if let Ok(ended) = ended {
            ended?;
        }
    }
    println!("Redisson got the lock after {times:?}");
    Ok(())
}

/// Three threads of Redisson and three tasks of tenure each add to one number, in two steps.
async fn redisson_and_tenure_count_together_and_lose_no_step(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let node = cluster.node();
    let mut java = start(node)?;
    execute(node, &["SET", "total", "0"])?;
    let count = || {
        let lock = client.lock("k");
        let url = node.url();
        async move {
            let mut redis = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
            for _ in 0..STEPS {
                let guard = lock.acquire().await?;
                let total: u64 = redis::cmd("GET").arg("total").query_async(&mut redis).await?;
                redis::cmd("SET").arg("total").arg(total + 1).exec_async(&mut redis).await?;
                guard.release().await?;
            }
            Ok(())
        }
    };
    java.count_together("k", count).await?;
    let total = texts(node, &["GET", "total"])?.concat();
    ensure!(total == TOTAL.to_string(), "steps were lost: {total} of {TOTAL}");
    Ok(())
}

/// Waits until so many clients are subscribed to the channel that says that the lock is free.
async fn until_listeners(node: &Node, count: usize) -> Result<()> {
    let channels = ["PUBSUB", "CHANNELS", "redisson_lock__channel:{k}"];
    let check = async || Ok((texts(node, &channels)?.len() == count).then_some(()));
    until(SOON, "a subscription", check).await
}

fn start(node: &Node) -> Result<Peer> {
    Peer::start(&REDISSON, Path::new(env!("CARGO_TARGET_TMPDIR")), &node.url())
}
