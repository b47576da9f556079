//! What a handoff costs the server: who is woken, and how many requests follow, for any number of
//! waiters.

use anyhow::{Result, ensure};
use tenure::backend::Mode;
use tenure_conformance::context::{SOON, soon, until};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use crate::modes::{granted, wait_for, waits, with_mode};
use crate::{PINGS, claim, counter, open};

server_cases! {
    uncontended_acquire_and_release_is_three_requests_in_every_mode Zookeeper;
    handoff_to_readers_costs_the_same_with_many Zookeeper;
    handoff_of_permits_costs_the_same_with_many_waiters Zookeeper;
    writer_rechecks_once_for_each_departure_of_the_youngest_reader Zookeeper;
    writer_behind_readers_that_leave_in_order_rechecks_once Zookeeper;
}

/// How often each mode is acquired and released.
const CYCLES: u64 = 50;

/// A create and a list, which are sent together, and a delete.
async fn uncontended_acquire_and_release_is_three_requests_in_every_mode(
    cluster: &Cluster,
) -> Result<()> {
    let backend = open(&format!("{}/locks?session=20s", cluster.url())).await?;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::permits(2, 5)?] {
        let key = format!("free-{}", mode.name());
        let warm = with_mode(&key, mode)?;
        granted(&backend, &warm).await?;
        backend.release(&warm).await?;
        let before = counter(cluster, "zk_packets_received")?;
        for _ in 0..CYCLES {
            let claim = with_mode(&key, mode)?;
            granted(&backend, &claim).await?;
            ensure!(backend.release(&claim).await?, "it was held");
        }
        let requests = counter(cluster, "zk_packets_received")? - before;
        println!("{CYCLES} times {}: {requests} requests", mode.name());
        ensure!(requests <= 3 * CYCLES + PINGS, "{requests} requests for {}", mode.name());
    }
    Ok(())
}

/// Waits until so many watches are set.
async fn until_watches(cluster: &Cluster, count: u64) -> Result<()> {
    let watched = async || Ok((counter(cluster, "zk_watch_count")? == count).then_some(()));
    until(SOON, &format!("{count} watches"), watched).await
}

/// Readers that wait for one writer watch its node, and each needs only a proof of its own. For
/// each a proof and a release.
async fn handoff_to_readers_costs_the_same_with_many(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/locks?session=20s", cluster.url());
    let (holder, waiters) = (open(&url).await?, open(&url).await?);
    for count in [1, 10, 50] {
        for downgrades in [false, true] {
            let key = format!("queue-{count}-{downgrades}");
            let first = claim(&key)?;
            let token = granted(&holder, &first).await?;
            let mut tasks = tokio::task::JoinSet::new();
            for _ in 0..count {
                let claim = with_mode(&key, Mode::Shared)?;
                waits(&waiters, &claim).await?;
                let waiters = waiters.clone();
                tasks.spawn(async move {
                    let rechecks = wait_for(&waiters, &claim).await?;
                    ensure!(waiters.release(&claim).await?, "it was held");
                    Ok(rechecks)
                });
            }
            // All of them watch one node in one session.
            until_watches(cluster, 1).await?;
            let before = counter(cluster, "zk_packets_received")?;
            if downgrades {
                let mut downgrade = first.clone();
                (downgrade.mode, downgrade.token) = (Mode::Shared, Some(token));
                granted(&holder, &downgrade).await?;
            } else {
                holder.release(&first).await?;
            }
            let mut rechecks = 0;
            while let Some(done) = soon("a handoff", tasks.join_next()).await? {
                rechecks += done??;
            }
            let requests = counter(cluster, "zk_packets_received")? - before;
            println!("{count} readers, downgrade {downgrades}: {requests} requests, {rechecks}");
            ensure!(u64::from(rechecks) == count, "{rechecks} rechecks for {count} readers");
            // With a downgrade the node is read once more, to see the mark.
            ensure!(requests <= 3 * count + 1 + PINGS, "{requests} requests for {count} readers");
            if downgrades {
                holder.release(&first).await?;
            }
        }
    }
    Ok(())
}

/// For each waiter: a list that shows that it fits, its mark, a read of the mark and a list by the
/// next waiter, and a release. If that fits at once, its watch is removed by one request more.
async fn handoff_of_permits_costs_the_same_with_many_waiters(cluster: &Cluster) -> Result<()> {
    let url = format!("{}/locks?session=20s", cluster.url());
    let (holder, waiters) = (open(&url).await?, open(&url).await?);
    for count in [1, 10, 50] {
        let key = format!("permits-{count}");
        let mode = Mode::permits(1, 2)?;
        let (one, two) = (with_mode(&key, mode)?, with_mode(&key, mode)?);
        granted(&holder, &one).await?;
        granted(&holder, &two).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..count {
            let claim = with_mode(&key, mode)?;
            waits(&waiters, &claim).await?;
            let task_waiters = waiters.clone();
            tasks.spawn(async move {
                let rechecks = wait_for(&task_waiters, &claim).await?;
                ensure!(task_waiters.release(&claim).await?, "it was held");
                anyhow::Ok(rechecks)
            });
            until_watches(cluster, number + 1).await?;
        }
        let before = counter(cluster, "zk_packets_received")?;
        holder.release(&one).await?;
        let mut rechecks = 0;
        while let Some(done) = soon("a handoff", tasks.join_next()).await? {
            rechecks += done??;
        }
        let requests = counter(cluster, "zk_packets_received")? - before;
        println!("{count} waiters for permits: {requests} requests, {rechecks} rechecks");
        ensure!(u64::from(rechecks) == count, "{rechecks} rechecks for {count} waiters");
        ensure!(requests <= 6 * count + 1 + PINGS, "{requests} requests for {count} waiters");
        holder.release(&two).await?;
    }
    Ok(())
}

/// The worst order for a writer: the reader just before it leaves first.
async fn writer_rechecks_once_for_each_departure_of_the_youngest_reader(
    cluster: &Cluster,
) -> Result<()> {
    for count in [1, 10, 50] {
        let rechecks = rechecks_of_a_writer(cluster, count, true).await?;
        ensure!(rechecks <= count, "{rechecks} rechecks for {count} readers");
    }
    Ok(())
}

async fn writer_behind_readers_that_leave_in_order_rechecks_once(cluster: &Cluster) -> Result<()> {
    for count in [1, 10, 50] {
        let rechecks = rechecks_of_a_writer(cluster, count, false).await?;
        ensure!(rechecks == 1, "{rechecks} rechecks for {count} readers");
    }
    Ok(())
}

async fn rechecks_of_a_writer(cluster: &Cluster, count: u32, youngest_first: bool) -> Result<u32> {
    let url = format!("{}/locks?session=20s", cluster.url());
    let (holders, waiter) = (open(&url).await?, open(&url).await?);
    let key = format!("readers-{count}-{youngest_first}");
    let mut readers = Vec::new();
    for _ in 0..count {
        let claim = with_mode(&key, Mode::Shared)?;
        granted(&holders, &claim).await?;
        readers.push(claim);
    }
    let writer = with_mode(&key, Mode::Exclusive)?;
    waits(&waiter, &writer).await?;
    let task = tokio::spawn(async move {
        let rechecks = wait_for(&waiter, &writer).await?;
        ensure!(waiter.release(&writer).await?, "it was held");
        anyhow::Ok(rechecks)
    });
    until_watches(cluster, 1).await?;
    if youngest_first {
        readers.reverse();
    }
    for reader in &readers {
        ensure!(!task.is_finished(), "a writer beside readers");
        ensure!(holders.release(reader).await?);
    }
    soon("the writer's grant", task).await??
}
