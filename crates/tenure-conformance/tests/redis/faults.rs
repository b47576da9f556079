//! What the promises have to survive.

use std::time::Instant;

use anyhow::{Result, ensure};
use tenure::{ErrorKind, Event};
use tenure_conformance::bench::{SOON, soon, until, until_waiters, within};
use tenure_conformance::{clock, server_cases};
use tenure_servers::{Cluster, Durability};

use crate::mute::Mute;
use crate::{LONG, SECOND, claim, connect, number, take, tell, wait_for, were_quick};

server_cases! {
    scripts_are_sent_again_after_a_flush Redis;
    killed_connections_cost_neither_lock_nor_place Redis;
    a_killed_connection_costs_no_question Redis;
    a_restart_costs_neither_lock_nor_place Redis;
    a_second_of_silence_costs_neither_lock_nor_place Redis;
    an_answer_that_is_dropped_counts_once Redis;
    a_half_open_connection_is_replaced Redis;
    a_server_that_refuses_is_dialed_for_all_waiters_together Redis;
    without_any_message_waiters_are_served_within_a_third_of_their_lease Redis;
    a_request_that_comes_after_its_withdrawal_is_refused Redis;
    without_permission_to_subscribe_waiters_poll Redis;
    a_token_grows_across_flushall Redis;
    a_clock_that_is_set_costs_neither_tokens_nor_waiters Redis |options| options.clock();
    a_full_server_refuses_grants_and_nothing_else Redis;
    a_server_that_forgets_loses_the_lock_and_says_so Redis |o| o.durability(Durability::Memory);
}

async fn scripts_are_sent_again_after_a_flush(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for _ in 0..3 {
        let guard = take(&client, "k", LONG).await?;
        tell(cluster.node(), &["SCRIPT", "FLUSH"])?;
        guard.release().await?;
        tell(cluster.node(), &["SCRIPT", "FLUSH"])?;
    }
    ensure!(client.list("").await?.is_empty());
    Ok(())
}

/// The hand-over must come by message: with a ttl of 30 s the next look is 3.3 s away.
async fn killed_connections_cost_neither_lock_nor_place(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let mut times = Vec::new();
    for _ in 0..5 {
        let guard = take(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        let place =
            crate::texts(cluster.node(), &["ZRANGE", "tenure:q:{k}", "0", "-1", "WITHSCORES"])?;
        for kind in ["normal", "pubsub"] {
            number(cluster.node(), &["CLIENT", "KILL", "TYPE", kind])?;
        }
        until_waiters(&one.lock("k"), 1).await?;
        until_subscribed(cluster).await?;
        let kept =
            crate::texts(cluster.node(), &["ZRANGE", "tenure:q:{k}", "0", "-1", "WITHSCORES"])?;
        ensure!(place == kept, "the place was lost: {place:?} {kept:?}");
        ensure!(guard.check().is_ok());
        let start = Instant::now();
        guard.release().await?;
        let guard = soon("the waiter's grant", waiter).await???;
        times.push(start.elapsed());
        guard.release().await?;
    }
    were_quick(&times)
}

/// What reads is asked again by the backend, and what may have been carried out by the core: who
/// asks need not know of it.
async fn a_killed_connection_costs_no_question(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    for _ in 0..20 {
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        ensure!(client.lock("k").holding().await?.is_none());
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        let guard = soon("acquire", client.lock("k").ttl(LONG).acquire()).await??;
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        ensure!(client.list("").await?.len() == 1);
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", "normal"])?;
        guard.release().await?;
    }
    Ok(())
}

/// Waits until a client hears messages again.
pub(crate) async fn until_subscribed(cluster: &Cluster) -> Result<()> {
    let channels = ["PUBSUB", "CHANNELS", "tenure:c:*"];
    let look = async || Ok((!crate::texts(cluster.node(), &channels)?.is_empty()).then_some(()));
    until(SOON, "a subscription", look).await
}

async fn a_restart_costs_neither_lock_nor_place(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = take(&one, "k", SECOND * 5).await?;
    let waiter = wait_for(&two, "k", SECOND * 5);
    until_waiters(&one.lock("k"), 1).await?;
    cluster.node().kill()?;
    cluster.node().restart()?;
    // Two renewals later it is still ours.
    let lost = tokio::time::timeout(SECOND * 4, guard.lost()).await;
    ensure!(lost.is_err(), "{lost:?}");
    let token = guard.token();
    guard.release().await?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn a_second_of_silence_costs_neither_lock_nor_place(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = take(&one, "k", SECOND * 3).await?;
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

/// Whichever answer of a take and a release is lost, the next ask finds the same grant.
async fn an_answer_that_is_dropped_counts_once(cluster: &Cluster) -> Result<()> {
    let proxy = cluster.node().proxy()?;
    let client = tenure::connect(&cluster.node().url_at(&proxy.address())).await?;
    let other = connect(cluster, "").await?;
    let mut last = None;
    for answer in 1..=4 {
        proxy.swallow_answer(answer);
        let guard = soon("acquire", client.lock("k").ttl(SECOND * 10).acquire()).await??;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        let seen = other.lock("k").holding().await?.and_then(|holding| holding.holder.token);
        ensure!(seen == last, "held under {seen:?}, told {last:?}");
        match soon("release", guard.release()).await? {
            Ok(()) => {}
            Err(error) => ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}"),
        }
        client.flush().await?;
        proxy.heal();
        take(&other, "k", LONG).await?.release().await?;
    }
    Ok(())
}

/// The connection takes everything and gives nothing back, for ever; only a new one works.
async fn a_half_open_connection_is_replaced(cluster: &Cluster) -> Result<()> {
    let mute = Mute::start(cluster.node().port())?;
    let url = cluster.node().url_at(&mute.address());
    let client = tenure::connect(&format!("{url}?response=300ms")).await?;
    for ttl in [SECOND * 2, LONG] {
        let guard = take(&client, "k", ttl).await?;
        let made = mute.made();
        mute.kill();
        let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
        ensure!(lost.is_err(), "{lost:?}");
        // The first answer may be doubt; the release goes on.
        drop(soon("release", guard.release()).await?);
        soon("flush", client.flush()).await??;
        ensure!(mute.made() > made, "the dead connection was kept");
        take(&connect(cluster, "").await?, "k", LONG).await?.release().await?;
    }
    Ok(())
}

/// Every waiter asks again and again, which must not make as many connections.
async fn a_server_that_refuses_is_dialed_for_all_waiters_together(cluster: &Cluster) -> Result<()> {
    let mute = Mute::start(cluster.node().port())?;
    let client = tenure::connect(&cluster.node().url_at(&mute.address())).await?;
    let _guard = take(&connect(cluster, "").await?, "k", LONG).await?;
    let waiters: Vec<_> = (0..1000).map(|_| wait_for(&client, "k", LONG)).collect();
    until_waiters(&client.lock("k"), 1000).await?;
    mute.refuse();
    for kind in ["normal", "pubsub"] {
        number(cluster.node(), &["CLIENT", "KILL", "TYPE", kind])?;
    }
    let made = mute.made();
    tokio::time::sleep(SECOND * 3).await;
    let dialed = mute.made() - made;
    println!("1000 waiters dialed {dialed} times in 3 s");
    ensure!(dialed > 3, "nobody asked again");
    ensure!(dialed <= 160, "1000 waiters dialed {dialed} times in 3 s");
    waiters.iter().for_each(|waiter| waiter.abort());
    Ok(())
}

async fn without_any_message_waiters_are_served_within_a_third_of_their_lease(
    cluster: &Cluster,
) -> Result<()> {
    let mute = Mute::start(cluster.node().port())?;
    let one = connect(cluster, "").await?;
    let two = tenure::connect(&cluster.node().url_at(&mute.address())).await?;
    let ttl = SECOND * 3;
    for _ in 0..3 {
        let guard = take(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", ttl);
        until_waiters(&one.lock("k"), 1).await?;
        guard.release().await?;
        let guard = within(ttl, "the waiter's grant", waiter).await???;
        guard.release().await?;
    }
    // In the first round the waiter may have been served before it listened.
    ensure!(mute.dropped() >= 2, "{} messages were dropped", mute.dropped());
    Ok(())
}

async fn a_request_that_comes_after_its_withdrawal_is_refused(cluster: &Cluster) -> Result<()> {
    let config: tenure::Config = cluster.url().parse()?;
    let backend = config.open().await?;
    let mut late = claim("k")?;
    late.doubtful = true;
    ensure!(!backend.release(&late).await?);
    ensure!(backend.try_acquire(&late).await.is_err(), "a withdrawn claim was granted");
    ensure!(number(cluster.node(), &["EXISTS", "k"])? == 0);
    let sure = claim("k")?;
    backend.release(&sure).await?;
    backend.try_acquire(&sure).await?.granted()?;
    backend.release(&sure).await?;
    Ok(())
}

async fn without_permission_to_subscribe_waiters_poll(cluster: &Cluster) -> Result<()> {
    let user = ["ACL", "SETUSER", "quiet", "on", ">pw", "~*", "+@all", "resetchannels"];
    tell(cluster.node(), &user)?;
    let url = format!("redis://quiet:pw@{}", cluster.node().address());
    let (told, telling) = tokio::sync::watch::channel(0);
    let config: tenure::Config = url.parse()?;
    let config = config.observe(move |event| {
        if let Event::Polling { backend: "redis" } = event {
            told.send_modify(|times| *times += 1);
        }
    });
    let (one, two) = (tenure::connect(&url).await?, config.connect().await?);
    ensure!(one.info().wakeup == tenure::backend::Wakeup::Poll, "{:?}", one.info());
    let mut times = Vec::new();
    for _ in 0..3 {
        let guard = take(&one, "k", LONG).await?;
        let waiter = wait_for(&two, "k", LONG);
        until_waiters(&one.lock("k"), 1).await?;
        let start = Instant::now();
        guard.release().await?;
        soon("the waiter's grant", waiter).await???.release().await?;
        times.push(start.elapsed());
    }
    were_quick(&times)?;
    ensure!(*telling.borrow() == 1, "said {} times", *telling.borrow());
    let wrong = tenure::connect(&url.replace("quiet:pw", "quiet:no")).await.unwrap_err();
    ensure!(wrong.kind() == ErrorKind::Denied, "{wrong:?}");
    ensure!(!format!("{wrong:?}").contains("quiet:no"), "{wrong:?}");
    Ok(())
}

async fn a_token_grows_across_flushall(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let mut last = None;
    for _ in 0..5 {
        let guard = take(&client, "k", LONG).await?;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        tell(cluster.node(), &["FLUSHALL"])?;
        let error = guard.release().await.unwrap_err();
        ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    }
    Ok(())
}

async fn a_clock_that_is_set_costs_neither_tokens_nor_waiters(cluster: &Cluster) -> Result<()> {
    clock::set(cluster, &cluster.url(), false).await
}

async fn a_full_server_refuses_grants_and_nothing_else(cluster: &Cluster) -> Result<()> {
    let (one, two) = (connect(cluster, "").await?, connect(cluster, "").await?);
    let guard = take(&one, "k", SECOND * 2).await?;
    let waiter = wait_for(&two, "k", LONG);
    until_waiters(&one.lock("k"), 1).await?;
    tell(cluster.node(), &["CONFIG", "SET", "maxmemory", "1"])?;
    let error = one.lock("other").try_acquire().await.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unavailable, "{error:?}");
    ensure!(number(cluster.node(), &["EXISTS", "other", "tenure:s:{other}"])? == 0);
    let lost = tokio::time::timeout(SECOND * 3, guard.lost()).await;
    ensure!(lost.is_err(), "not renewed: {lost:?}");
    guard.release().await?;
    // Handed over while the server is full: giving back starts by making room.
    let waiter = soon("the waiter's grant", waiter).await???;
    waiter.release().await?;
    tell(cluster.node(), &["CONFIG", "SET", "maxmemory", "0"])?;
    Ok(())
}

async fn a_server_that_forgets_loses_the_lock_and_says_so(cluster: &Cluster) -> Result<()> {
    let client = connect(cluster, "").await?;
    let guard = take(&client, "k", SECOND * 2).await?;
    cluster.node().kill()?;
    cluster.node().restart()?;
    soon("the loss", guard.lost()).await?;
    let next = take(&client, "k", LONG).await?;
    ensure!(next.token() > guard.token());
    next.release().await?;
    Ok(())
}
