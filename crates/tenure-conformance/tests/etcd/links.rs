//! The way to the servers is cut, slow, or loses an answer.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::{Backend, Claim, Owner};
use tenure::{Attempt, Client, ErrorKind, Key, LostReason};
use tenure_conformance::bench::{soon, take, until_waiters, within};
use tenure_conformance::server_cases;
use tenure_servers::{Cluster, Proxy};

use super::name;

server_cases! {
    a_client_cut_off_from_the_leader_goes_on_with_another_member Etcd3;
    a_holder_cut_off_from_everybody_knows_the_end_of_its_lease Etcd;
    torn_connections_are_no_loss Etcd;
    a_lost_answer_is_asked_for_again Etcd;
    a_request_that_arrives_after_its_withdrawal_takes_nothing Etcd;
    an_unanswered_claim_is_withdrawn_when_the_way_is_open_again Etcd;
}

async fn client_of(proxies: &[&Proxy]) -> Result<Client> {
    let hosts: Vec<_> = proxies.iter().map(|proxy| proxy.address()).collect();
    Ok(tenure::connect(&format!("etcd://{}", hosts.join(","))).await?)
}

async fn a_client_cut_off_from_the_leader_goes_on_with_another_member(
    cluster: &Cluster,
) -> Result<()> {
    let leader = cluster.wait_leader(|_| true)?;
    let other = cluster.nodes().iter().find(|node| node.name() != leader.name());
    let (near, far) = (leader.proxy()?, other.context("there are three")?.proxy()?);
    let client = client_of(&[&near, &far]).await?;
    let ttl = Duration::from_secs(4);
    let guard = take(&client.lock(name()).ttl(ttl)).await?;
    near.cut();
    let lost = tokio::time::timeout(ttl * 2, guard.lost()).await;
    ensure!(lost.is_err(), "lost although another member could be asked: {lost:?}");
    guard.release().await?;
    soon("acquire", client.lock(name()).acquire()).await??.release().await?;
    Ok(())
}

async fn a_holder_cut_off_from_everybody_knows_the_end_of_its_lease(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let (cut, near) = (client_of(&[&proxy]).await?, tenure::connect(&cluster.url()).await?);
    let (name, ttl) = (name(), Duration::from_secs(3));
    let guard = take(&cut.lock(&name).ttl(ttl)).await?;
    let waiter = tokio::spawn(near.lock(&name).acquire());
    until_waiters(&near.lock(&name), 1).await?;
    proxy.cut();
    let lost = within(ttl + ttl / 2, "the end of the lease", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Expired, "{lost}");
    let next = soon("the next grant", waiter).await???;
    ensure!(next.token() > guard.token());
    proxy.heal();
    // Its own lease is gone; a new one is made without ado.
    next.release().await?;
    soon("acquire", cut.lock(&name).ttl(ttl).acquire()).await??.release().await?;
    Ok(())
}

async fn torn_connections_are_no_loss(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let (client, other) = (client_of(&[&proxy]).await?, client_of(&[&proxy]).await?);
    let (name, ttl) = (name(), Duration::from_secs(3));
    let lock = client.lock(&name).ttl(ttl);
    let guard = take(&lock).await?;
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

async fn a_lost_answer_is_asked_for_again(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let (client, near) = (client_of(&[&proxy]).await?, tenure::connect(&cluster.url()).await?);
    let (name, mut last) = (name(), None);
    for answer in 1..=12 {
        let lock = client.lock(&name);
        proxy.swallow_answer(answer);
        for _ in 0..3 {
            let guard = soon("acquire", lock.acquire()).await??;
            ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
            last = Some(guard.token());
            soon("release", guard.release()).await??;
        }
        client.flush().await?;
        let left = near.lock(&name).holding().await?;
        ensure!(left.is_none(), "answer {answer} was lost, and left {left:?}");
    }
    Ok(())
}

/// What a request that was held up on its way would do: it is sent once more, by the same owner.
async fn a_request_that_arrives_after_its_withdrawal_takes_nothing(
    cluster: &Cluster,
) -> Result<()> {
    let backend = tenure::backends::Etcd::open(&cluster.url()).await?;
    let near = Client::new(tenure::backends::Etcd::open(&cluster.url()).await?);
    let ttl = Duration::from_secs(20);
    for waits in [false, true] {
        let mut claim = Claim::new(Key::new(name())?, Owner::random(), ttl);
        claim.waits = waits;
        backend.try_acquire(&claim).await?.granted()?;
        claim.doubtful = true;
        ensure!(backend.release(&claim).await?, "it was held");
        claim.doubtful = false;
        let late = backend.try_acquire(&claim).await;
        let kind = late.map(|_| ()).map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::Unavailable), "{kind:?}");
        let left = near.lock(&claim.key).holding().await?;
        ensure!(left.is_none(), "a late request took the lock: {left:?}");
    }
    Ok(())
}

async fn an_unanswered_claim_is_withdrawn_when_the_way_is_open_again(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = Arc::new(cluster.node().proxy()?);
    let (client, near) = (client_of(&[&proxy]).await?, tenure::connect(&cluster.url()).await?);
    let name = name();
    let lock = client.lock(&name).ttl(Duration::from_secs(20));
    take(&lock).await?.release().await?;
    for direction in [tenure_servers::Direction::ToClient, tenure_servers::Direction::ToServer] {
        proxy.cut_one_way(direction);
        let patience = Duration::from_millis(100);
        let attempt = soon("patience", lock.acquire_within(patience)).await?;
        ensure!(!matches!(attempt, Ok(Attempt::Granted(_))), "granted without an answer");
        proxy.heal();
        soon("flush", client.flush()).await??;
        let left = near.lock(&name).holding().await?;
        ensure!(left.is_none(), "cut {direction:?}, and left {left:?}");
        take(&near.lock(&name)).await?.release().await?;
    }
    Ok(())
}
