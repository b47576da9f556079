//! One lock goes through a queue of 1, 10 and 100 waiters, on every server that keeps a queue: the
//! time of a handoff should not grow with the number of waiters.

use std::time::{Duration, Instant};

use anyhow::Result;
use tenure::Client;
use tenure_servers::{Options, Topology, start};

use crate::compare::{Comparison, Fact};

const SERVERS: [(&str, Topology); 5] = [
    ("consul", Topology::Consul),
    ("etcd", Topology::Etcd),
    ("mysql", Topology::Mariadb),
    ("postgres", Topology::Postgres),
    ("zookeeper", Topology::Zookeeper),
];

pub(crate) fn compare(rounds: usize) -> Result<Comparison> {
    let runtime = crate::runtime()?;
    let mut facts = Vec::new();
    for (name, topology) in SERVERS {
        let cluster = start(topology, &Options::default())?;
        let client = runtime.block_on(tenure::connect(&cluster.url()))?;
        for waiters in [1, 10, 100] {
            let mut times = (0..rounds.div_ceil(40).max(5))
                .map(|_| runtime.block_on(handoffs(&client, waiters)))
                .collect::<Result<Vec<_>>>()?;
            times.sort_unstable();
            let middle = times[times.len() / 2] / waiters;
            let name = format!("{name}, a handoff among {waiters}");
            facts.push(Fact { name, value: middle.as_secs_f64() * 1e3, unit: "ms" });
        }
    }
    Ok(Comparison::of_facts(facts))
}

/// How long it takes until all waiters have had the lock.
async fn handoffs(client: &Client, waiters: u32) -> Result<Duration> {
    let lock = client.lock(format!("queue/{waiters}"));
    let guard = lock.acquire().await?;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..waiters {
        let lock = lock.clone();
        tasks.spawn(async move { lock.acquire().await?.release().await });
    }
    while lock.status().await?.is_none_or(|held| held.waiters.len() < waiters as usize) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let start = Instant::now();
    guard.release().await?;
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}
