//! Destroyed sessions, killed leaders, lost responses, late requests.

use anyhow::{Context, Result, ensure};
use tenure::backend::Backend;
use tenure::backends::Consul;
use tenure::{Attempt, ErrorKind, LostReason};
use tenure_conformance::context::{acquire_free, expect_busy, soon, until_waiters};
use tenure_conformance::load::{Harm, Load};
use tenure_conformance::server_cases;
use tenure_servers::wire::http::json_field;
use tenure_servers::{Cluster, Direction, Node};

use super::{SECOND, claim, connect, field, keys, put, url};

server_cases! {
    holder_notices_a_destroyed_session_at_once Consul;
    waiter_with_a_destroyed_session_queues_again Consul;
    ttl_below_the_servers_minimum_is_refused_with_the_reason Consul;
    acquire_after_a_lost_response_finds_its_own_grant Consul;
    release_is_repeated_after_a_lost_response Consul;
    late_request_of_a_cancelled_claim_acquires_nothing Consul;
    failed_release_is_repeated_after_the_next_renewal Consul;
    killed_leader_loses_no_lock Consul3;
    client_changes_to_another_agent_when_one_is_stopped Consul3;
    session_that_ends_with_its_server_is_reported_as_a_loss Consul3;
    tokens_grow_after_all_servers_were_killed Consul3;
}

/// The session that holds a lock.
fn session(cluster: &Cluster, key: &str) -> Result<String> {
    field(cluster.node(), &format!("{key}/.lock"), "Session")
}

async fn holder_notices_a_destroyed_session_at_once(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster).await?, connect(cluster).await?);
    let (guard, other) = (acquire_free(&one.lock("a")).await?, acquire_free(&one.lock("b")).await?);
    let waiter = tokio::spawn(two.lock("a").acquire());
    until_waiters(&one.lock("a"), 1).await?;
    put(cluster.node(), &format!("/v1/session/destroy/{}", session(cluster, "a")?), "")?;
    let next = soon("the waiter's grant", waiter).await???;
    // The ttl is 30 s: a renewal would come after ten.
    let lost = tokio::time::timeout(SECOND * 5, guard.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let lost = tokio::time::timeout(SECOND * 5, other.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    ensure!(next.token() > guard.token());
    let error = guard.release().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    // The client continues with a new session.
    expect_busy(&one.lock("a")).await?;
    acquire_free(&one.lock("b")).await?.release().await?;
    next.release().await?;
    Ok(())
}

async fn waiter_with_a_destroyed_session_queues_again(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster).await?, connect(cluster).await?);
    let lock = one.lock("k");
    let guard = acquire_free(&lock).await?;
    let waiter = tokio::spawn(two.lock("k").ttl(SECOND).acquire());
    until_waiters(&lock, 1).await?;
    let sessions = tenure_servers::wire::http::get(cluster.node().port(), "/v1/session/list")?;
    let holder = session(cluster, "k")?;
    let sessions = sessions.split('{').filter_map(|part| json_field(part, "ID"));
    let others: Vec<_> = sessions.filter(|id| *id != holder).collect();
    ensure!(others.len() == 1, "{others:?}");
    put(cluster.node(), &format!("/v1/session/destroy/{}", others[0]), "")?;
    until_waiters(&lock, 0).await?;
    until_waiters(&lock, 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn ttl_below_the_servers_minimum_is_refused_with_the_reason(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let error = client.lock("k").ttl(SECOND / 2).try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid && error.to_string().contains("1s"), "{error}");
    // With a wrong `min_ttl` in the URL it is the server that refuses.
    let wrong = format!("consul://{}?min_ttl=1ms", cluster.hosts());
    let error = tenure::connect(&wrong).await?.lock("k").ttl(SECOND / 2).try_acquire().await;
    let error = error.unwrap_err();
    ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    ensure!(error.to_string().contains("must be between [1s="), "{error}");
    // Without `min_ttl` the client reads it from the agent.
    let read = tenure::connect(&format!("consul://{}", cluster.hosts())).await?;
    ensure!(read.info().min_ttl == SECOND, "{:?}", read.info());
    ensure!(read.info().max_expiry_ttls == 2);
    Ok(())
}

/// The server has granted the lock, and the response is lost: the repeated request must find that
/// grant.
async fn acquire_after_a_lost_response_finds_its_own_grant(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&url(&proxy.address(), "")).await?;
    acquire_free(&client.lock("warm")).await?.release().await?;
    for round in 0..5 {
        let lock = client.lock(format!("k{round}"));
        proxy.drop_response(1);
        let guard = soon("acquire", lock.acquire()).await??;
        let held: u64 =
            field(cluster.node(), &format!("k{round}/.lock"), "ModifyIndex")?.parse()?;
        ensure!(guard.token().get() == held * 1024, "{} but {held} is held", guard.token());
        guard.release().await?;
        client.flush().await?;
        ensure!(lock.status().await?.is_none());
    }
    Ok(())
}

async fn release_is_repeated_after_a_lost_response(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&url(&proxy.address(), "")).await?;
    let lock = client.lock("k");
    let guard = acquire_free(&lock).await?;
    proxy.drop_response(1);
    drop(guard);
    soon("flush", client.flush()).await??;
    ensure!(lock.status().await?.is_none(), "still held");
    acquire_free(&lock).await?.release().await?;
    Ok(())
}

/// A request is held up; the claim is cancelled through another agent; then the request arrives.
async fn late_request_of_a_cancelled_claim_acquires_nothing(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let hosts = format!("{},{}", proxy.address(), cluster.node().address());
    let consul = Consul::open(&url(&hosts, "")).await?;
    // Creates the session, and a connection that is kept.
    let (first, mut late) = (claim("other")?, claim("k")?);
    consul.try_acquire(&first).await?.granted()?;
    proxy.cut_one_way(Direction::ToServer);
    let hung = tokio::time::timeout(SECOND, consul.try_acquire(&late)).await;
    ensure!(hung.is_err(), "the connection was not cut: {hung:?}");
    late.unconfirmed = true;
    ensure!(!consul.release(&late).await?, "it was not held");
    proxy.heal();
    // It has arrived when a later request through the same proxy has its response.
    let probe = tenure::connect(&url(&proxy.address(), "")).await?;
    acquire_free(&probe.lock("probe")).await?.release().await?;
    for _ in 0..50 {
        let holding = probe.lock("k").status().await?;
        ensure!(holding.is_none(), "a late request acquired the lock: {holding:?}");
        tokio::time::sleep(SECOND / 50).await;
    }
    let left = keys(cluster.node())?;
    ensure!(left.contains("k/.gone/"), "no tombstone refuses it: {left}");
    // The tombstone goes with the session, which ends when its last lock is released.
    ensure!(consul.release(&first).await?);
    ensure!(keys(cluster.node())?.trim() == "[]", "left: {}", keys(cluster.node())?);
    Ok(())
}

/// A lock cannot be released for longer than its ttl, while another lock keeps their session alive:
/// then only the backend still knows of it.
async fn failed_release_is_repeated_after_the_next_renewal(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let consul = Consul::open(&url(&proxy.address(), "")).await?;
    let (mut kept, mut failed) = (claim("kept")?, claim("failed")?);
    (kept.ttl, failed.ttl) = (SECOND, SECOND);
    consul.try_acquire(&kept).await?.granted()?;
    consul.try_acquire(&failed).await?.granted()?;
    proxy.refuse();
    ensure!(consul.release(&failed).await.is_err());
    proxy.heal();
    let start = std::time::Instant::now();
    let watcher = connect(cluster).await?;
    while watcher.lock("failed").status().await?.is_some() {
        ensure!(start.elapsed() < SECOND * 20, "held for ever");
        consul.renew(std::slice::from_ref(&kept)).await.remove(0)?;
        tokio::time::sleep(SECOND / 5).await;
    }
    ensure!(watcher.lock("kept").status().await?.is_some(), "the other was lost");
    Ok(())
}

async fn killed_leader_loses_no_lock(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let long = acquire_free(&client.lock("long")).await?;
    let mut locks = Vec::new();
    for _ in 0..4 {
        let client = tenure::connect(&url(&cluster.hosts(), "outage=60s")).await?;
        locks.push(client.lock("k").ttl(SECOND * 20));
    }
    let load = Load::start(locks, Harm::Time);
    load.go_on(20).await?;
    tokio::task::block_in_place(|| -> Result<()> {
        let leader = cluster.leader()?.context("there is a leader")?;
        leader.kill()?;
        cluster.wait_leader(|node| node.name() != leader.name())?;
        Ok(())
    })?;
    load.go_on(20).await?;
    load.finish().await?;
    ensure!(long.check().is_ok(), "a lock was lost with the leader");
    long.release().await?;
    Ok(())
}

/// A stopped agent accepts connections and does not respond. If it is a server, the others remove
/// it from the catalog after a while, and with it the sessions that belong to it.
async fn client_changes_to_another_agent_when_one_is_stopped(cluster: &Cluster) -> Result<()> {
    let (hosts, follower) = follower_first(cluster)?;
    let node = r#"{"Node":"locks","Address":"127.0.0.1","NodeMeta":{"external-node":"true"}}"#;
    put(cluster.node(), "/v1/catalog/register", node)?;
    let client = tenure::connect(&url(&hosts, "ttl=8s&node=locks")).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    follower.pause()?;
    let lost = tokio::time::timeout(SECOND * 20, guard.lost()).await;
    follower.resume()?;
    ensure!(lost.is_err(), "{lost:?}");
    drop(guard);
    soon("flush", client.flush()).await??;
    Ok(())
}

async fn session_that_ends_with_its_server_is_reported_as_a_loss(cluster: &Cluster) -> Result<()> {
    let (hosts, follower) = follower_first(cluster)?;
    let client = tenure::connect(&url(&hosts, "ttl=60s")).await?;
    let guard = acquire_free(&client.lock("k")).await?;
    follower.kill()?;
    let lost = tokio::time::timeout(SECOND * 90, guard.lost()).await?;
    ensure!(lost.reason() == LostReason::SessionGone, "{lost}");
    let next = soon("acquire", client.lock("k").acquire()).await??;
    ensure!(next.token() > guard.token());
    Ok(())
}

/// The hosts with a follower first, and that follower.
fn follower_first(cluster: &Cluster) -> Result<(String, &Node)> {
    let leader = cluster.leader()?.context("there is a leader")?.name();
    let follower = cluster.nodes().iter().find(|node| node.name() != leader);
    let follower = follower.context("there is a follower")?;
    let others = cluster.nodes().iter().filter(|node| node.name() != follower.name());
    let hosts = std::iter::once(follower).chain(others).map(Node::address);
    Ok((hosts.collect::<Vec<_>>().join(","), follower))
}

async fn tokens_grow_after_all_servers_were_killed(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster).await?;
    let first = acquire_free(&client.lock("k")).await?;
    let held = acquire_free(&client.lock("held")).await?;
    let token = first.token();
    first.release().await?;
    tokio::task::block_in_place(|| -> Result<()> {
        cluster.nodes().iter().try_for_each(|node| node.kill())?;
        cluster.nodes().iter().try_for_each(|node| node.restart())?;
        Ok(cluster.wait_ready()?)
    })?;
    let second = soon("acquire", client.lock("k").acquire()).await??;
    ensure!(second.token() > token, "{} after {token}", second.token());
    // Locks and sessions survive, and the holder's ttl was not over.
    match held.check() {
        Ok(_) => expect_busy(&client.lock("held")).await?,
        Err(lost) => ensure!(lost.reason() == LostReason::Expired, "{lost}"),
    }
    let attempt = client.lock("k").try_acquire().await?;
    ensure!(matches!(attempt, Attempt::Busy(_)));
    second.release().await?;
    Ok(())
}
