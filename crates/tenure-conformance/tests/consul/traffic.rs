//! What a lock costs the servers, in requests.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tenure::Client;
use tenure::backend::Backend;
use tenure::backends::Consul;
use tenure_conformance::bench::{soon, take, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::url;

server_cases! {
    a_free_lock_costs_two_requests Consul;
    a_hundred_locks_are_renewed_by_three_requests Consul;
    a_hand_over_costs_the_same_with_many_waiters Consul;
}

/// A client whose requests are counted.
async fn counted(cluster: &Cluster) -> Result<(Client, Arc<Consul>)> {
    let consul = Arc::new(Consul::open(&url(&cluster.hosts(), "")).await?);
    Ok((Client::new(consul.clone()), consul))
}

async fn a_free_lock_costs_two_requests(cluster: &Cluster) -> Result<()> {
    let (client, consul) = counted(cluster).await?;
    take(&client.lock("k")).await?.release().await?;
    let before = consul.requests();
    for _ in 0..20 {
        take(&client.lock("k")).await?.release().await?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 40, "{requests} requests for 20 locks");
    Ok(())
}

async fn a_hundred_locks_are_renewed_by_three_requests(cluster: &Cluster) -> Result<()> {
    let consul = Consul::open(&url(&cluster.hosts(), "")).await?;
    let claims: Vec<_> =
        (0..100).map(|number| super::claim(&format!("k{number}"))).collect::<Result<_>>()?;
    for claim in &claims {
        consul.try_acquire(claim).await?.granted()?;
    }
    // A session that was renewed a moment ago need not be renewed.
    tokio::time::sleep(claims[0].ttl / 9).await;
    let before = consul.requests();
    for answer in consul.renew(&claims).await {
        answer?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 3, "{requests} requests");
    Ok(())
}

async fn a_hand_over_costs_the_same_with_many_waiters(cluster: &Cluster) -> Result<()> {
    let mut costs = Vec::new();
    for waiters in [1, 10, 60] {
        let cost = hand_overs(cluster, waiters).await?;
        println!("{waiters} waiters: {cost:.1} requests for each hand-over");
        costs.push(cost);
    }
    ensure!(costs.iter().all(|cost| *cost <= 7.0), "{costs:?}");
    Ok(())
}

/// Requests for each hand-over from waiter to waiter, each a client of its own.
async fn hand_overs(cluster: &Cluster, waiters: u32) -> Result<f64> {
    let key = format!("k{waiters}");
    let (holder, first) = counted(cluster).await?;
    let lock = holder.lock(&key);
    let guard = take(&lock).await?;
    let (mut tasks, mut handles) = (Vec::new(), vec![first]);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    for number in 0..waiters {
        let (client, consul) = counted(cluster).await?;
        handles.push(consul);
        let (waiting, order) = (client.lock(&key), order.clone());
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
