//! A client is not tied to the runtime that calls it.

use anyhow::{Result, ensure};
use tenure_conformance::context::soon;
use tenure_conformance::server_cases;
use tenure_servers::Cluster;
use tokio::runtime::{Builder, Runtime};

use crate::{LONG, SECOND, acquire, connect, number};

server_cases! {
    a_lock_outlives_the_runtime_that_acquired_it Redis;
    runtimes_at_the_same_time_share_a_client Redis;
    a_runtime_without_io_can_use_a_client Redis;
    a_dropped_acquire_leaves_nothing_behind Redis;
}

/// Runs it on another runtime, which then ends.
async fn elsewhere<T: Send + 'static>(
    runtime: Runtime,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(move || runtime.block_on(work)).await?
}

async fn a_lock_outlives_the_runtime_that_acquired_it(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for _ in 0..3 {
        let client = client.clone();
        let acquired = async move { acquire(&client, "k", SECOND * 2).await };
        let guard =
            elsewhere(Builder::new_current_thread().enable_all().build()?, acquired).await?;
        let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
        ensure!(lost.is_err(), "{lost:?}");
        let released = async move { Ok(guard.release().await?) };
        elsewhere(Builder::new_current_thread().enable_all().build()?, released).await?;
        ensure!(number(cluster.node(), &["EXISTS", "k"])? == 0);
    }
    Ok(())
}

async fn runtimes_at_the_same_time_share_a_client(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let tasks = (0..3).map(|number| {
        let client = client.clone();
        let work = async move {
            for _ in 0..50 {
                acquire(&client, &format!("k{number}"), LONG).await?.release().await?;
            }
            Ok(())
        };
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        Ok(tokio::spawn(elsewhere(runtime, work)))
    });
    for task in tasks.collect::<Result<Vec<_>>>()? {
        soon("a runtime's locks", task).await???;
    }
    Ok(())
}

async fn a_runtime_without_io_can_use_a_client(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let work = async move {
        for _ in 0..3 {
            acquire(&client, "k", LONG).await?.release().await?;
        }
        Ok(())
    };
    elsewhere(Builder::new_current_thread().build()?, work).await
}

/// Dropped at every step that it can be dropped at, and some time after.
async fn a_dropped_acquire_leaves_nothing_behind(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for polls in 0..40 {
        let mut acquire = Box::pin(client.lock("k").ttl(LONG).acquire());
        for _ in 0..polls {
            if let std::task::Poll::Ready(guard) = futures_util::poll!(&mut acquire) {
                drop(guard?);
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquire);
        soon("flush", client.flush()).await??;
        ensure!(number(cluster.node(), &["EXISTS", "k"])? == 0, "after {polls} polls");
    }
    Ok(())
}
