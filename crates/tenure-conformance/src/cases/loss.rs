//! The holder learns that the lock is gone, and the resource can refuse what it still sends.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::fence::Fenced;
use tenure::{ErrorKind, FencingToken, LostReason};

use super::cases;
use crate::context::{TestContext, acquire_free, soon};

cases! { "loss":
    an_evicted_holder_learns_it,
    an_eviction_hits_exactly_its_grant,
    an_evicted_holder_is_fenced_out,
    while_held_stops_the_work_of_an_evicted_holder,
    while_held_returns_the_output_of_finished_work,
    a_lease_view_says_released_after_the_release,
    run_does_the_work_and_releases_the_lock,
    run_says_lost_when_the_lock_is_lost,
}

async fn an_evicted_holder_learns_it(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k")).ttl(context.short_ttl())).await?;
    ensure!(two.lock(context.key("k")).evict(guard.token()).await?, "the grant was there");
    let lost = soon("the holder's loss", guard.lost()).await?;
    ensure!(matches!(lost.reason(), LostReason::Evicted | LostReason::SessionGone), "{lost}");
    ensure!(guard.check().is_err());
    ensure!(lost.token() == guard.token() && lost.key() == guard.key());
    Ok(())
}

async fn an_eviction_hits_exactly_its_grant(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let first = acquire_free(&lock).await?;
    let old = first.token();
    first.release().await?;
    let second = acquire_free(&lock).await?;
    ensure!(!lock.evict(old).await?, "an old token evicted the new holder");
    // Beyond the tokens that a grant may reserve.
    let future = FencingToken::new(second.token().get() + 1024).expect("tokens are small");
    ensure!(!lock.evict(future).await?, "a token that was never granted evicted the holder");
    ensure!(!client.lock(context.key("other")).evict(second.token()).await?);
    ensure!(second.check().is_ok());
    second.release().await?;
    Ok(())
}

async fn an_evicted_holder_is_fenced_out(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let fence = Fenced::new(());
    let stale = acquire_free(&lock).await?;
    drop(fence.admit(stale.token())?);
    ensure!(lock.evict(stale.token()).await?);
    let next = soon("acquire", lock.acquire()).await??;
    drop(fence.admit(next.token())?);
    ensure!(fence.admit(stale.token()).is_err(), "the fence let a stale holder in");
    next.release().await?;
    Ok(())
}

async fn while_held_stops_the_work_of_an_evicted_holder(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).ttl(context.short_ttl());
    let guard = acquire_free(&lock).await?;
    let work = guard.while_held(std::future::pending::<()>());
    ensure!(lock.evict(guard.token()).await?);
    let stopped = soon("the work's end", work).await?;
    ensure!(stopped.is_err(), "the work went on");
    Ok(())
}

async fn while_held_returns_the_output_of_finished_work(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let guard = acquire_free(&client.lock(context.key("k"))).await?;
    let output = soon("the work", guard.while_held(async { 42 })).await??;
    ensure!(output == 42);
    guard.release().await?;
    Ok(())
}

async fn a_lease_view_says_released_after_the_release(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let guard = acquire_free(&client.lock(context.key("k"))).await?;
    let lease = guard.lease().clone();
    ensure!(lease.check().is_ok() && lease.token() == guard.token());
    let watcher = tokio::spawn(lease.lost());
    guard.release().await?;
    let lost = soon("the watcher's end", watcher).await??;
    ensure!(lost.reason() == LostReason::Released, "{lost}");
    ensure!(lease.check().is_err());
    Ok(())
}

async fn run_does_the_work_and_releases_the_lock(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let token = soon("run", lock.run(async |lease| lease.token())).await??;
    let guard = acquire_free(&lock).await?;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn run_says_lost_when_the_lock_is_lost(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).max_hold(Duration::from_millis(200));
    let run = lock.run(|_| std::future::pending::<()>());
    let error = soon("run", run).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    Ok(())
}
