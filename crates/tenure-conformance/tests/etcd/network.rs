//! The network to the servers is cut, breaks connections, or loses a response.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::{Attempt, Client, ErrorKind, Key, LostReason};
use tenure_conformance::context::{acquire_free, soon, until_waiters, within};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Proxy};

use super::name;

server_cases! {
    a_client_cut_off_from_the_leader_moves_on_to_another_member Etcd3;
    a_holder_cut_off_from_all_servers_knows_the_end_of_its_lease Etcd;
    locks_survive_torn_connections Etcd;
    a_request_with_a_lost_response_is_repeated Etcd;
    a_request_that_arrives_after_its_cancellation_acquires_nothing Etcd;
    an_unconfirmed_claim_is_cancelled_when_the_network_heals Etcd;
}

async fn client_of(proxies: &[&Proxy]) -> Result<Client> {
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address()).collect();
    Ok(tenure::connect(&format!("etcd://{}", hosts.join(","))).await?)
}

async fn a_client_cut_off_from_the_leader_moves_on_to_another_member(
    cluster: &Cluster,
) -> Result<()> {
    let leader = cluster.wait_leader(|_| true)?;
    let other = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let (near, far) = (leader.proxy()?, other.context("there are three")?.proxy()?);
    let client = client_of(&[&near, &far]).await?;
    let ttl = Duration::from_secs(4);
    let guard = acquire_free(&client.lock(name()).ttl(ttl)).await?;
    near.cut();
    let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
    ensure!(lost.is_err(), "lost although another member could be reached: {lost:?}");
    guard.release().await?;
    soon("acquire", client.lock(name()).acquire()).await??.release().await?;
    Ok(())
}

async fn a_holder_cut_off_from_all_servers_knows_the_end_of_its_lease(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let cut = client_of(&[&proxy]).await?;
    let near = tenure::connect(&cluster.url()).await?;
    let name = name();
    let ttl = Duration::from_secs(3);
    let guard = acquire_free(&cut.lock(&name).ttl(ttl)).await?;
    let waiter = tokio::spawn(near.lock(&name).acquire());
    until_waiters(&near.lock(&name), 1).await?;
    proxy.cut();
    let lost = within(ttl + ttl / 2, "the end of the lease", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    let next = soon("the next grant", waiter).await???;
    ensure!(next.token() > guard.token());
    proxy.heal();
    // Its lease has ended; the next acquire makes a new one.
    next.release().await?;
    soon("acquire", cut.lock(&name).ttl(ttl).acquire()).await??.release().await?;
    Ok(())
}

async fn locks_survive_torn_connections(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = client_of(&[&proxy]).await?;
    let other = client_of(&[&proxy]).await?;
    let name = name();
    let ttl = Duration::from_secs(3);
    let lock = client.lock(&name).ttl(ttl);
    let guard = acquire_free(&lock).await?;
    let waiter = tokio::spawn(other.lock(&name).ttl(ttl).acquire());
    until_waiters(&lock, 1).await?;
    for _ in 0..6 {
        proxy.reset();
        let lost = tokio::time::timeout(ttl / 4, guard.lost()).await;
        ensure!(lost.is_err(), "lost by a torn connection: {lost:?}");
    }
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn a_request_with_a_lost_response_is_repeated(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = client_of(&[&proxy]).await?;
    let near = tenure::connect(&cluster.url()).await?;
    let name = name();
    let mut last = None;
    for response in 1..=12 {
        let lock = client.lock(&name);
        proxy.drop_response(response);
        for _ in 0..3 {
            let guard = soon("acquire", lock.acquire()).await??;
            ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
            last = Some(guard.token());
            soon("release", guard.release()).await??;
        }
        client.flush().await?;
        let left = near.lock(&name).status().await?;
        ensure!(left.is_none(), "response {response} was lost, and left {left:?}");
    }
    Ok(())
}

/// The late request is played by one more request of the same owner.
async fn a_request_that_arrives_after_its_cancellation_acquires_nothing(
    cluster: &Cluster,
) -> Result<()> {
    let backend = tenure::backends::Etcd::open(&cluster.url()).await?;
    let near = Client::new(tenure::backends::Etcd::open(&cluster.url()).await?);
    let ttl = Duration::from_secs(20);
    for waits in [false, true] {
        let mut claim = Claim::new(Key::new(name())?, Owner::random(), ttl);
        claim.waits = waits;
        backend.try_acquire(&claim).await?.granted()?;
        claim.unconfirmed = true;
        ensure!(backend.release(&claim).await?, "it was held");
        claim.unconfirmed = false;
        let late = backend.try_acquire(&claim).await;
        let kind = late.map(|_| ()).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Unavailable), "{kind:?}");
        let left = near.lock(&claim.key).status().await?;
        ensure!(left.is_none(), "a late request acquired the lock: {left:?}");
    }
    Ok(())
}

async fn an_unconfirmed_claim_is_cancelled_when_the_network_heals(cluster: &Cluster) -> Result<()> {
    let proxy = Arc::new(cluster.node().proxy()?);
    let client = client_of(&[&proxy]).await?;
    let near = tenure::connect(&cluster.url()).await?;
    let name = name();
    let lock = client.lock(&name).ttl(Duration::from_secs(20));
    acquire_free(&lock).await?.release().await?;
    for direction in [tenure_servers::Direction::ToClient, tenure_servers::Direction::ToServer] {
        proxy.cut_one_way(direction);
        let timeout = Duration::from_millis(100);
        let attempt = soon("the timeout", lock.acquire_within(timeout)).await?;
        ensure!(!matches!(attempt, Ok(Attempt::Granted(_))), "granted without a response");
        proxy.heal();
        soon("flush", client.flush()).await??;
        let left = near.lock(&name).status().await?;
        ensure!(left.is_none(), "cut {direction:?}, and left {left:?}");
        acquire_free(&near.lock(&name)).await?.release().await?;
    }
    Ok(())
}
