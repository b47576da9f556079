//! A request that was carried out, and whose response is lost: what it left is free again within
//! one lease more, also where the client goes on and keeps a session of all its locks alive.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tenure::Lock;

use super::cases;
use crate::context::{SOON, TestContext, acquire_free, soon, until, within};
use crate::network::Network;

cases! { "lost_responses":
    a_lock_is_free_soon_after_the_response_of_its_acquire_was_torn_off
        if TestContext::has_network,
    a_lock_is_free_soon_after_the_response_of_its_acquire_was_held_up
        if TestContext::has_network,
    a_client_that_is_cut_off_after_its_request_leaves_the_lock_for_one_lease
        if TestContext::has_network,
    a_release_whose_response_was_lost_ends_no_later_grant if TestContext::has_network,
}

/// A lease for which a busy machine is no outage.
fn ttl(context: &TestContext) -> Duration {
    context.short_ttl().max(Duration::from_secs(2))
}

/// How long the server may take to free what a client left, and a busy machine.
fn one_lease_more(context: &TestContext) -> Duration {
    ttl(context) * context.info().max_expiry_ttls + SOON / 4
}

/// Awaits that the server shows the lock as held, or not. A response of an earlier step may be the
/// one that is held up: then there is nothing to see.
async fn seen(context: &TestContext, lock: &Lock, held: bool) {
    let look = || async {
        let status = lock.status().await.ok();
        Ok(status.filter(|holding| holding.is_some() == held).map(drop))
    };
    drop(until(ttl(context), "the effect", look).await);
}

/// Requests a lock that gets no response, and drops the request when it was carried out. Then the
/// fault goes on as `end` says, while the client keeps another lock, and so its session, if it has
/// one. Another client has to get the lock.
async fn lose_an_acquire(
    context: &TestContext,
    end: impl AsyncFnOnce(&Network, Duration),
) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let lock = shaky.lock(context.key("k")).ttl(ttl(context));
    let kept = acquire_free(&shaky.lock(context.key("kept")).ttl(ttl(context))).await?;
    acquire_free(&lock).await?.release().await?;
    network.hold_responses();
    let acquiring = tokio::spawn(lock.acquire());
    let others = steady.lock(context.key("k")).ttl(ttl(context));
    seen(context, &others, true).await;
    acquiring.abort();
    drop(acquiring.await);
    end(&network, ttl(context)).await;
    let start = Instant::now();
    let limit = one_lease_more(context);
    let guard = within(limit, "the lock", others.acquire()).await??;
    println!("free after {:?}, of {limit:?}", start.elapsed());
    // What comes late does not take it away.
    network.heal();
    drop(kept);
    until(SOON, "the releases", || async { Ok(shaky.flush().await.ok()) }).await?;
    guard.check()?;
    guard.release().await?;
    Ok(())
}

async fn a_lock_is_free_soon_after_the_response_of_its_acquire_was_torn_off(
    context: &TestContext,
) -> Result<()> {
    lose_an_acquire(context, async |network, _| {
        network.reset();
        network.heal();
    })
    .await
}

/// For so long that the client gives the request up.
async fn a_lock_is_free_soon_after_the_response_of_its_acquire_was_held_up(
    context: &TestContext,
) -> Result<()> {
    lose_an_acquire(context, async |network, ttl| {
        tokio::time::sleep(ttl).await;
        network.heal();
    })
    .await
}

async fn a_client_that_is_cut_off_after_its_request_leaves_the_lock_for_one_lease(
    context: &TestContext,
) -> Result<()> {
    lose_an_acquire(context, async |network, _| network.cut()).await
}

/// The client repeats it, when another client holds the lock.
async fn a_release_whose_response_was_lost_ends_no_later_grant(
    context: &TestContext,
) -> Result<()> {
    let network = context.network()?;
    let (steady, shaky) = (context.client().await?, context.client_through(&network).await?);
    let kept = acquire_free(&shaky.lock(context.key("kept")).ttl(ttl(context))).await?;
    let guard = acquire_free(&shaky.lock(context.key("k")).ttl(ttl(context))).await?;
    let others = steady.lock(context.key("k")).ttl(ttl(context));
    network.hold_responses();
    let releasing = tokio::spawn(guard.release());
    seen(context, &others, false).await;
    let start = Instant::now();
    let limit = one_lease_more(context);
    let next = within(limit, "the lock", others.acquire()).await??;
    println!("free after {:?}, of {limit:?}", start.elapsed());
    network.reset();
    network.heal();
    // It was released, or its lease is over: both are right.
    drop(soon("release", releasing).await??);
    drop(kept);
    until(SOON, "the releases", || async { Ok(shaky.flush().await.ok()) }).await?;
    next.check()?;
    let seen = soon("status", others.status()).await??.and_then(|holding| holding.holder().token);
    ensure!(seen == Some(next.token()), "{seen:?} holds, not {}", next.token());
    next.release().await?;
    Ok(())
}
