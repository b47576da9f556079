//! Redisson itself, in a Java process, on the same locks.
//!
//! It needs `java`, `javac`, `mvn` and Maven Central:
//! `cargo test -p tenure-conformance --test redis -- redisson::`.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, ensure};
use tenure::Attempt;
use tenure_conformance::bench::{SOON, soon, until, until_waiters};
use tenure_conformance::java::{Peer, STEPS, TOTAL};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Node};

use crate::{LONG, connect, tell, texts, wait_for, were_quick};

server_cases! {
    redisson_and_we_exclude_and_wake_each_other Redis;
    one_of_redissons_among_many_of_ours_is_served Redis;
    redisson_and_we_count_together_and_lose_no_step Redis;
}

async fn redisson_and_we_exclude_and_wake_each_other(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let mut java = start(node)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        java.ask("lock a k", "a locked").await?;
        ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
        let waiter = wait_for(&client, "k", LONG);
        until_waiters(&client.lock("k"), 1).await?;
        until_listeners(node, 1).await?;
        let start = Instant::now();
        java.ask("unlock a k", "a unlocked").await?;
        let guard = soon("our grant", waiter).await???;
        ours.push(start.elapsed());

        java.ask("try a k", "a busy").await?;
        java.tell("lock b k")?;
        until_listeners(node, 1).await?;
        let start = Instant::now();
        guard.release().await?;
        java.hear("b locked").await?;
        theirs.push(start.elapsed());
        java.ask("unlock b k", "b unlocked").await?;
    }
    println!("we are woken by Redisson in {ours:?}, it by us in {theirs:?}");
    were_quick(&ours)?;
    // Without a message Redisson would try again at the end of our lease, in 30 s.
    were_quick(&theirs)?;
    Ok(())
}

/// Eight of ours never let the lock free; Redisson gets it all the same, again and again.
async fn one_of_redissons_among_many_of_ours_is_served(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let mut java = start(node)?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let lock = client.lock("k");
        tasks.spawn(async move {
            loop {
                lock.acquire().await?.release().await?;
            }
            #[expect(unreachable_code, reason = "says what the task would answer")]
            anyhow::Ok(())
        });
    }
    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        java.ask("lock a k", "a locked").await?;
        times.push(start.elapsed());
        ensure!(matches!(client.lock("k").try_acquire().await?, Attempt::Busy(_)), "two holders");
        java.ask("unlock a k", "a unlocked").await?;
    }
    tasks.abort_all();
    while let Some(ended) = tasks.join_next().await {
        if let Ok(ended) = ended {
            ended?;
        }
    }
    println!("Redisson was served after {times:?}");
    Ok(())
}

/// Three threads of Redisson and three tasks of ours each add to one number, in two steps.
async fn redisson_and_we_count_together_and_lose_no_step(cluster: &Cluster) -> Result<()> {
    let (client, node) = (connect(cluster, "").await?, cluster.node());
    let mut java = start(node)?;
    tell(node, &["SET", "total", "0"])?;
    let count = || {
        let (lock, url) = (client.lock("k"), node.url());
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

/// Waits until somebody listens for the lock to become free.
async fn until_listeners(node: &Node, count: usize) -> Result<()> {
    let channels = ["PUBSUB", "CHANNELS", "redisson_lock__channel:{k}"];
    let look = async || Ok((texts(node, &channels)?.len() == count).then_some(()));
    until(SOON, "somebody who listens", look).await
}

fn start(node: &Node) -> Result<Peer> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis/redisson");
    Peer::start(&source, Path::new(env!("CARGO_TARGET_TMPDIR")), &node.url())
}
