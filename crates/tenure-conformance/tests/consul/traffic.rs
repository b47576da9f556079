//! How many requests a lock costs the servers.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tenure::backend::{Backend, Mode};
use tenure::backends::Consul;
use tenure::{Client, Guard};
use tenure_conformance::context::{acquire_free, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_servers::Cluster;

use super::url;

server_cases! {
    acquire_and_release_cost_two_requests Consul;
    three_requests_renew_a_hundred_locks Consul;
    handoff_costs_the_same_with_many_waiters Consul;
    reader_or_permit_alone_costs_two_or_three_requests Consul;
    three_requests_renew_a_hundred_readers Consul;
    run_of_readers_costs_the_same_for_each Consul;
    writer_after_many_readers_costs_one_request_for_each Consul;
    handoff_of_permits_costs_the_same_with_many_waiters Consul;
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

async fn reader_or_permit_alone_costs_two_or_three_requests(cluster: &Cluster) -> Result<()> {
    let (client, consul) = counted(cluster).await?;
    let (reader, semaphore) = (client.lock("k").shared(), client.semaphore("p", 5));
    acquire_free(&reader).await?.release().await?;
    let before = consul.requests();
    for _ in 0..20 {
        acquire_free(&reader).await?.release().await?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 40, "{requests} requests for 20 readers");
    let before = consul.requests();
    for _ in 0..20 {
        semaphore.acquire().await?.release().await?;
    }
    let requests = consul.requests() - before;
    ensure!(requests == 60, "{requests} requests for 20 permits");
    Ok(())
}

/// More than a transaction may have operations.
async fn three_requests_renew_a_hundred_readers(cluster: &Cluster) -> Result<()> {
    let consul = Consul::open(&url(&cluster.hosts(), "")).await?;
    let mut claims = Vec::new();
    for number in 0..100 {
        let mut claim = super::claim(&format!("k{}", number % 2))?;
        claim.mode = if number % 2 == 0 { Mode::Shared } else { Mode::permits(1, 100)? };
        consul.try_acquire(&claim).await?.granted()?;
        claims.push(claim);
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

/// Readers of so many clients that wait behind a writer, in a run.
async fn run_of_readers_costs_the_same_for_each(cluster: &Cluster) -> Result<()> {
    for readers in [1, 10, 40_u32] {
        let (writer, first) = counted(cluster).await?;
        let lock = writer.lock(format!("k{readers}"));
        let guard = acquire_free(&lock).await?;
        let mut handles = vec![first];
        let mut tasks = Vec::new();
        for number in 0..readers {
            let (client, consul) = counted(cluster).await?;
            handles.push(consul);
            tasks.push(tokio::spawn(client.lock(format!("k{readers}")).shared().acquire()));
            until_waiters(&lock, number as usize + 1).await?;
        }
        let total = || handles.iter().map(|consul| consul.requests()).sum::<u64>();
        let before = total();
        let start = std::time::Instant::now();
        guard.release().await?;
        let mut held: Vec<Guard> = Vec::new();
        for task in tasks {
            held.push(soon("a reader's grant", task).await???);
        }
        let (took, granted) = (start.elapsed(), total() - before);
        for reader in held {
            reader.release().await?;
        }
        let per = |requests: u64| requests as f64 / f64::from(readers);
        let all = total() - before;
        println!("{readers} readers: {:.1} requests until granted ({took:?})", per(granted));
        println!("{readers} readers: {:.1} with their releases", per(all));
        ensure!(per(all) <= 9.0, "{all} requests for {readers} readers");
    }
    Ok(())
}

async fn writer_after_many_readers_costs_one_request_for_each(cluster: &Cluster) -> Result<()> {
    for readers in [1, 10, 40_u32] {
        let key = format!("k{readers}");
        let (first, consul) = counted(cluster).await?;
        let mut handles = vec![consul];
        let mut held = Vec::new();
        for _ in 0..readers {
            let (client, consul) = counted(cluster).await?;
            handles.push(consul);
            held.push(acquire_free(&client.lock(&key).shared()).await?);
        }
        let (client, writer_requests) = counted(cluster).await?;
        let writer = tokio::spawn(client.lock(&key).acquire());
        until_waiters(&first.lock(&key), 1).await?;
        let before: u64 = handles.iter().map(|consul| consul.requests()).sum();
        let writer_before = writer_requests.requests();
        for reader in held {
            reader.release().await?;
        }
        let writer = soon("the writer's grant", writer).await???;
        let releases = handles.iter().map(|consul| consul.requests()).sum::<u64>() - before;
        let for_writer = writer_requests.requests() - writer_before;
        writer.release().await?;
        println!("{readers} readers leave: {releases} requests, and {for_writer} of the writer");
        ensure!(for_writer <= u64::from(readers) + 7, "{for_writer} requests of the writer");
        ensure!(releases <= u64::from(readers) * 2 + 6, "{releases} requests for the releases");
    }
    Ok(())
}

async fn handoff_of_permits_costs_the_same_with_many_waiters(cluster: &Cluster) -> Result<()> {
    for waiters in [1, 10, 40_u32] {
        let key = format!("p{waiters}");
        let (first, consul) = counted(cluster).await?;
        let all = first.semaphore(&key, 3).permits(3).acquire().await?;
        let mut handles = vec![consul];
        let mut tasks = Vec::new();
        for number in 0..waiters {
            let (client, consul) = counted(cluster).await?;
            handles.push(consul);
            let semaphore = client.semaphore(&key, 3);
            tasks.push(tokio::spawn(async move { semaphore.acquire().await?.release().await }));
            until_waiters(&first.lock(&key), number as usize + 1).await?;
        }
        let total = || handles.iter().map(|consul| consul.requests()).sum::<u64>();
        let before = total();
        all.release().await?;
        for task in tasks {
            soon("a waiter's turn", task).await???;
        }
        let cost = (total() - before) as f64 / f64::from(waiters);
        println!("{waiters} waiters for permits: {cost:.1} requests for each handoff");
        ensure!(cost <= 12.0, "{cost} requests");
    }
    Ok(())
}
