//! Faults that locks and waiters have to survive.

use std::time::Instant;

use anyhow::{Result, ensure};
use tenure::{ErrorKind, Event};
use tenure_conformance::context::{SOON, soon, until, until_waiters, within};
use tenure_conformance::{clock, server_cases};
use tenure_servers::{Cluster, Durability};

use crate::lossy_proxy::LossyProxy;
use crate::{LONG, SECOND, acquire, claim, connect, execute, number, wait_for, were_quick};

server_cases! {
    scripts_are_sent_again_after_a_flush Redis;
    killed_connections_lose_neither_lock_nor_queue_entry Redis;
    requests_survive_a_killed_idle_connection Redis;
    a_restart_loses_neither_lock_nor_queue_entry Redis;
    a_second_of_silence_loses_neither_lock_nor_queue_entry Redis;
    a_request_whose_response_is_dropped_counts_once Redis;
    a_half_open_connection_is_replaced Redis;
    a_server_that_refuses_is_dialed_for_all_waiters_together Redis;
    without_any_message_waiters_are_granted_within_a_third_of_their_lease Redis;
    a_request_that_arrives_after_its_claim_was_cancelled_is_refused Redis;
    without_permission_to_subscribe_waiters_poll Redis;
    a_token_grows_across_flushall Redis;
    setting_the_clock_neither_lowers_tokens_nor_loses_waiters Redis |options| options.clock();
    a_full_server_refuses_grants_and_nothing_else Redis;
    a_holder_learns_that_a_server_forgot_its_lock Redis |o| o.durability(Durability::Memory);
}

async fn scripts_are_sent_again_after_a_flush(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for _ in 0..3 {
        let guard = acquire(&client, "k", LONG).await?;
        execute(cluster.node(), &["SCRIPT", "FLUSH"])?;
        guard.release().await?;
        execute(cluster.node(), &["SCRIPT", "FLUSH"])?;
    }
    ensure!(client.list("").await?.is_empty());
    Ok(())
}

/// The handoff must come by message: with a ttl of 30 s the next poll is 3.3 s away.
async fn killed_connections_lose_neither_lock_nor_queue_entry(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let mut times = Vec::new();
    for _ in 0..5 {
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        let entry =
            crate::texts(cluster.node(), &["ZRANGE", "tenure:q:{k}", "0", "-1", "WITHSCORES"])?;
        for kind in ["normal", "pubsub"] {
            number(cluster.node(), &["CLIENT", "KILL", "TYPE", kind])?;
        }
        until_waiters(&one.lock("k"), 1).await?;
        until_subscribed(cluster).await?;
        let kept =
            crate::texts(cluster.node(), &["ZRANGE", "tenure:q:{k}", "0", "-1", "WITHSCORES"])?;
        ensure!(entry == kept, "the queue entry was lost: {entry:?} {kept:?}");
        ensure!(guard.check().is_ok());
        let start = Instant::now();
        guard.release().await?;
        let guard = soon("the waiter's grant", waiter).await???;
        times.push(start.elapsed());
        guard.release().await?;
    }
    were_quick(&times)
}

/// A request that reads is repeated by the backend, and one that may have been carried out by the
/// core: the caller need not know of it.
async fn requests_survive_a_killed_idle_connection(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for _ in 0..20 {
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        ensure!(client.lock("k").status().await?.is_none());
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        let guard = soon("acquire", client.lock("k").ttl(LONG).acquire()).await??;
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        ensure!(client.list("").await?.len() == 1);
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        guard.release().await?;
    }
    Ok(())
}

/// Waits until a client is subscribed again.
pub(crate) async fn until_subscribed(cluster: &Cluster) -> Result<()> {
    let channels = ["PUBSUB", "CHANNELS", "tenure:c:*"];
    let check = async || Ok((!crate::texts(cluster.node(), &channels)?.is_empty()).then_some(()));
    until(SOON, "a subscription", check).await
}

async fn a_restart_loses_neither_lock_nor_queue_entry(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = acquire(&one, "k", SECOND * 5).await?;
    let waiter = wait_for(&two, "k", SECOND * 5);
    until_waiters(&one.lock("k"), 1).await?;
    cluster.node().kill()?;
    cluster.node().restart()?;
    // Two renewals later the holder still has it.
    let lost = tokio::time::timeout(SECOND * 4, guard.lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    let token = guard.token();
    guard.release().await?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn a_second_of_silence_loses_neither_lock_nor_queue_entry(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = acquire(&one, "k", SECOND * 3).await?;
    let waiter = wait_for(&two, "k", SECOND * 3);
    until_waiters(&one.lock("k"), 1).await?;
    for _ in 0..2 {
        cluster.node().pause()?;
        tokio::time::sleep(SECOND).await;
        cluster.node().resume()?;
        let lost = tokio::time::timeout(SECOND, guard.lost()).await;
        ensure!(lost.is_err(), "{lost:?}");
        ensure!(!waiter.is_finished(), "two holders");
    }
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

/// Whichever response to an acquire and a release is lost, the next request finds the same grant.
async fn a_request_whose_response_is_dropped_counts_once(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&cluster.node().url_at(&proxy.address())).await?;
    let other = connect(cluster, "").await?;
    let mut last = None;
    for response in 1..=4 {
        proxy.drop_response(response);
        let guard = soon("acquire", client.lock("k").ttl(SECOND * 10).acquire()).await??;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        let seen = other.lock("k").status().await?.and_then(|holding| holding.holder().token);
        ensure!(seen == last, "held under {seen:?}, granted {last:?}");
        match soon("release", guard.release()).await? {
            Ok(()) => {}
            Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}"),
        }
        client.flush().await?;
        proxy.heal();
        acquire(&other, "k", LONG).await?.release().await?;
    }
    Ok(())
}

/// The connection accepts everything and returns nothing, for ever; only a new one works.
async fn a_half_open_connection_is_replaced(cluster: &Cluster) -> Result<()> {
    let proxy = LossyProxy::start(cluster.node().port())?;
    let url = cluster.node().url_at(&proxy.address());
    let client = tenure::connect(&format!("{url}?response=300ms")).await?;
    for ttl in [SECOND * 2, LONG] {
        let guard = acquire(&client, "k", ttl).await?;
        let made = proxy.made();
        proxy.kill();
        let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
        ensure!(lost.is_err(), "{lost:?}");
        // The outcome of the first request may be unknown; the release goes on.
        drop(soon("release", guard.release()).await?);
        soon("flush", client.flush()).await??;
        ensure!(proxy.made() > made, "the dead connection was kept");
        acquire(&connect(cluster, "").await?, "k", LONG).await?.release().await?;
    }
    Ok(())
}

/// Every waiter retries again and again, which must not make as many connections.
async fn a_server_that_refuses_is_dialed_for_all_waiters_together(cluster: &Cluster) -> Result<()> {
    let proxy = LossyProxy::start(cluster.node().port())?;
    let client = tenure::connect(&cluster.node().url_at(&proxy.address())).await?;
    let _guard = acquire(&connect(cluster, "").await?, "k", LONG).await?;
    let waiters: Vec<_> = (0..1000).map(|_| wait_for(&client, "k", LONG)).collect();
    until_waiters(&client.lock("k"), 1000).await?;
    proxy.refuse();
    for kind in ["normal", "pubsub"] {
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", kind])?;
    }
    let made = proxy.made();
    tokio::time::sleep(SECOND * 3).await;
    let dialed = proxy.made() - made;
    println!("1000 waiters dialed {dialed} times in 3 s");
    ensure!(dialed > 3, "no waiter retried");
    ensure!(dialed <= 160, "1000 waiters dialed {dialed} times in 3 s");
    waiters.iter().for_each(|waiter| waiter.abort());
    Ok(())
}

async fn without_any_message_waiters_are_granted_within_a_third_of_their_lease(
    cluster: &Cluster,
) -> Result<()> {
    let proxy = LossyProxy::start(cluster.node().port())?;
    let one = connect(cluster, "").await?;
    let two = tenure::connect(&cluster.node().url_at(&proxy.address())).await?;
    let ttl = SECOND * 3;
    for _ in 0..3 {
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", ttl);
        until_waiters(&one.lock("k"), 1).await?;
        guard.release().await?;
        let guard = within(ttl, "the waiter's grant", waiter).await???;
        guard.release().await?;
    }
    // In the first round the waiter may have been granted before it subscribed.
    ensure!(proxy.dropped() >= 2, "{} messages were dropped", proxy.dropped());
    Ok(())
}

async fn a_request_that_arrives_after_its_claim_was_cancelled_is_refused(
    cluster: &Cluster,
) -> Result<()> {
    let config: tenure::Config = cluster.url().parse()?;
    let backend = config.open().await?;
    let mut late = claim("k")?;
    late.unconfirmed = true;
    ensure!(!backend.release(&late).await?);
    ensure!(backend.try_acquire(&late).await.is_err(), "a cancelled claim was granted");
    ensure!(number(cluster.node(), &["EXISTS", "k"])? == 0);
    let sure = claim("k")?;
    backend.release(&sure).await?;
    backend.try_acquire(&sure).await?.granted()?;
    backend.release(&sure).await?;
    Ok(())
}

async fn without_permission_to_subscribe_waiters_poll(cluster: &Cluster) -> Result<()> {
    let user = ["ACL", "SETUSER", "quiet", "on", ">pw", "~*", "+@all", "resetchannels"];
    execute(cluster.node(), &user)?;
    let url = format!("redis://quiet:pw@{}", cluster.node().address());
    let (reported, reports) = tokio::sync::watch::channel(0);
    let config: tenure::Config = url.parse()?;
    let config = config.observe(move |event| {
        if let Event::PollingFallback { backend: "redis" } = event {
            reported.send_modify(|times| *times += 1);
        }
    });
    let (one, two) = (tenure::connect(&url).await?, config.connect().await?);
    ensure!(one.info().wakeup == tenure::backend::Wakeup::Poll, "{:?}", one.info());
    let mut times = Vec::new();
    for _ in 0..3 {
        let guard = acquire(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        let start = Instant::now();
        guard.release().await?;
        soon("the waiter's grant", waiter).await???.release().await?;
        times.push(start.elapsed());
    }
    were_quick(&times)?;
    ensure!(*reports.borrow() == 1, "reported {} times", *reports.borrow());
    let wrong = tenure::connect(&url.replace("quiet:pw", "quiet:no")).await.unwrap_err();
    ensure!(wrong.kind() == ErrorKind::Denied, "{wrong:?}");
    ensure!(!format!("{wrong:?}").contains("quiet:no"), "{wrong:?}");
    Ok(())
}

async fn a_token_grows_across_flushall(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let mut last = None;
    for _ in 0..5 {
        let guard = acquire(&client, "k", LONG).await?;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        execute(cluster.node(), &["FLUSHALL"])?;
        let error = guard.release().await.unwrap_err();
        ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    }
    Ok(())
}

async fn setting_the_clock_neither_lowers_tokens_nor_loses_waiters(
    cluster: &Cluster,
) -> Result<()> {
    clock::set(cluster, &cluster.url(), false).await
}

async fn a_full_server_refuses_grants_and_nothing_else(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = acquire(&one, "k", SECOND * 2).await?;
    let waiter = wait_for(&two, "k", LONG);
    until_waiters(&one.lock("k"), 1).await?;
    execute(cluster.node(), &["CONFIG", "SET", "maxmemory", "1"])?;
    let error = one.lock("other").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(number(cluster.node(), &["EXISTS", "other", "tenure:s:{other}"])? == 0);
    let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed: {lost:?}");
    guard.release().await?;
    // Handed off while the server is full: a release starts by making room.
    let waiter = soon("the waiter's grant", waiter).await???;
    waiter.release().await?;
    execute(cluster.node(), &["CONFIG", "SET", "maxmemory", "0"])?;
    Ok(())
}

async fn a_holder_learns_that_a_server_forgot_its_lock(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let guard = acquire(&client, "k", SECOND * 2).await?;
    cluster.node().kill()?;
    cluster.node().restart()?;
    soon("the loss", guard.lost()).await?;
    let next = acquire(&client, "k", LONG).await?;
    ensure!(next.token() > guard.token());
    next.release().await?;
    Ok(())
}
