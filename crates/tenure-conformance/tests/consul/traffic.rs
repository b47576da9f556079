//! How many requests a lock costs the servers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tenure::Client;
use tenure::backend::Backend;
use tenure::backends::Consul;
use tenure_conformance::context::{acquire_free, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::url;

server_cases! {
    acquire_and_release_cost_two_requests Consul;
    three_requests_renew_a_hundred_locks Consul;
    handoff_costs_the_same_with_many_waiters Consul;
}

/// A client whose requests are counted.
async fn counted(cluster: &Cluster) -> Result<(Client, Arc<Consul>)> {
    let consul = Arc::new(Consul::open(&url(&cluster.hosts(), "")).await?);
    Ok((Client::new(consul.clone()), consul))
}

async fn acquire_and_release_cost_two_requests(cluster: &Cluster) -> Result<()> {
    let (client, consul) = counted(cluster).await?;
    acquire_free(&client.lock("k")).await?.release().await?;
    let before = consul.requests();
    for _ in 0..20 {
        acquire_free(&client.lock("k")).await?.release().await?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 40, "{requests} requests for 20 locks");
    Ok(())
}

async fn three_requests_renew_a_hundred_locks(cluster: &Cluster) -> Result<()> {
    let consul = Consul::open(&url(&cluster.hosts(), "")).await?;
    let claims: Vec<_> =
        (0..100).map(|number| super::claim(&format!("k{number}"))).collect::<Result<_>>()?;
    for claim in &claims {
        consul.try_acquire(claim).await?.granted()?;
    }
    // A session that was renewed a moment ago would not be renewed again.
    tokio::time::sleep(claims[0].ttl / 9).await;
    let before = consul.requests();
    for renewed in consul.renew(&claims).await {
        renewed?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 3, "{requests} requests");
    Ok(())
}

async fn handoff_costs_the_same_with_many_waiters(cluster: &Cluster) -> Result<()> {
    let mut costs = Vec::new();
    for waiters in [1, 10, 60] {
        let cost = requests_per_handoff(cluster, waiters).await?;
        println!("{waiters} waiters: {cost:.1} requests for each handoff");
        costs.push(cost);
    }
    ensure!(costs.iter().all(|cost| *cost <= 7.0), "{costs:?}");
    Ok(())
}

/// The number of requests for each handoff from waiter to waiter, each of another client.
async fn requests_per_handoff(cluster: &Cluster, waiters: u32) -> Result<f64> {
    let key = format!("k{waiters}");
    let (holder, first) = counted(cluster).await?;
    let lock = holder.lock(&key);
    let guard = acquire_free(&lock).await?;
    let mut tasks = Vec::new();
    let mut handles = vec![first];
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    for number in 0..waiters {
        let (client, consul) = counted(cluster).await?;
        handles.push(consul);
        let waiting = client.lock(&key);
        let order = order.clone();
        tasks.push(tokio::spawn(async move {
            let guard = waiting.acquire().await?;
            order.lock().unwrap().push(number);
            guard.release().await
        }));
        until_waiters(&lock, number as usize + 1).await?;
    }
    let total = || handles.iter().map(|consul| consul.requests()).sum::<u64>();
    let before = total();
    guard.release().await?;
    for task in tasks {
        soon("a waiter's turn", task).await???;
    }
    let order = order.lock().unwrap().clone();
    ensure!(order.is_sorted(), "{order:?}");
    Ok((total() - before) as f64 / f64::from(waiters))
}
