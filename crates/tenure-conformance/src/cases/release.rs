//! Only the owner releases; releasing what is gone is an ordinary answer.

use anyhow::{Result, ensure};
use tenure::backend::Owner;
use tenure::{Attempt, ErrorKind, LostReason};

use super::cases;
use crate::bench::{Bench, expect_busy, soon, take};

cases! { "release":
    only_the_owner_releases,
    a_release_leaves_nothing_behind,
    a_release_of_a_lost_lock_says_lost_and_why,
    a_stale_release_does_not_touch_the_next_holder,
    a_dropped_guard_is_released,
    a_release_that_is_not_awaited_still_releases,
    a_withdrawal_of_an_unknown_claim_is_no_error,
}

async fn only_the_owner_releases(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let claim = bench.claim("k");
    backend.try_acquire(&claim).await?.granted()?;
    let mut stranger = claim.clone();
    stranger.owner = Owner::new(claim.owner.client(), claim.owner.number() + 1);
    ensure!(!backend.release(&stranger).await?, "a stranger of the same client released");
    stranger.owner = Owner::random();
    ensure!(!backend.release(&stranger).await?, "a stranger released");
    let attempt = backend.try_acquire(&stranger).await?;
    ensure!(matches!(attempt, Attempt::Busy(_)), "the lock became free");
    ensure!(backend.release(&claim).await?, "the owner could not release");
    Ok(())
}

async fn a_release_leaves_nothing_behind(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    for name in ["a", "b", "c"] {
        take(&client.lock(bench.key(name))).await?.release().await?;
    }
    let left = client.list(bench.prefix()).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

async fn a_release_of_a_lost_lock_says_lost_and_why(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let guard = take(&lock).await?;
    ensure!(lock.evict(guard.token()).await?, "the grant was there");
    let error = soon("release", guard.release()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    let reason = error.lost().map(tenure::Lost::reason);
    ensure!(reason == Some(LostReason::Evicted), "{reason:?}");
    take(&lock).await?.release().await?;

    let lock = lock.ttl(bench.short_ttl()).without_renewal();
    let guard = take(&lock).await?;
    soon("the lease's end", guard.lost()).await?;
    let error = soon("release", guard.release()).await?.unwrap_err();
    let reason = error.lost().map(tenure::Lost::reason);
    ensure!(reason == Some(LostReason::Expired), "{reason:?}");
    Ok(())
}

async fn a_stale_release_does_not_touch_the_next_holder(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let stale = take(&lock).await?;
    ensure!(lock.evict(stale.token()).await?, "the grant was there");
    let next = soon("acquire", lock.acquire()).await??;
    drop(stale);
    client.flush().await?;
    expect_busy(&lock).await?;
    ensure!(next.check().is_ok(), "the next holder lost its lock");
    next.release().await?;
    Ok(())
}

async fn a_dropped_guard_is_released(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    drop(take(&one.lock(bench.key("k"))).await?);
    one.flush().await?;
    take(&two.lock(bench.key("k"))).await?.release().await?;
    Ok(())
}

async fn a_release_that_is_not_awaited_still_releases(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    drop(take(&lock).await?.release());
    client.flush().await?;
    let guard = take(&lock).await?;
    let mut release = Box::pin(guard.release());
    // Polled once and dropped: the release is on its way and goes on.
    let _first = futures_util::poll!(&mut release);
    drop(release);
    client.flush().await?;
    take(&lock).await?.release().await?;
    Ok(())
}

async fn a_withdrawal_of_an_unknown_claim_is_no_error(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let mut claim = bench.claim("never asked for");
    ensure!(!backend.release(&claim).await?, "it was not held");
    claim.doubtful = true;
    claim.owner = Owner::random();
    ensure!(!backend.release(&claim).await?, "it was not held");
    Ok(())
}
