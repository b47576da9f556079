//! Only the owner releases; to release what is not held is no error.

use anyhow::{Result, ensure};
use tenure::backend::Owner;
use tenure::{Attempt, ErrorKind, LostReason};

use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, soon};

cases! { "release":
    only_the_owner_releases,
    a_release_leaves_nothing_behind,
    a_release_of_a_lost_lock_says_lost_and_why,
    a_stale_release_does_not_touch_the_next_holder,
    a_dropped_guard_is_released,
    a_release_that_is_not_awaited_still_releases,
    a_release_of_an_unknown_claim_is_no_error,
}

async fn only_the_owner_releases(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    backend.try_acquire(&claim).await?.granted()?;
    let mut other = claim.clone();
    other.owner = Owner::new(claim.owner.client(), claim.owner.number() + 1);
    ensure!(!backend.release(&other).await?, "another owner of the same client released");
    other.owner = Owner::random();
    ensure!(!backend.release(&other).await?, "another owner released");
    let attempt = backend.try_acquire(&other).await?;
    ensure!(matches!(attempt, Attempt::Busy(_)), "the lock became free");
    ensure!(backend.release(&claim).await?, "the owner could not release");
    Ok(())
}

async fn a_release_leaves_nothing_behind(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    for name in ["a", "b", "c"] {
        acquire_free(&client.lock(context.key(name))).await?.release().await?;
    }
    let left = client.list(context.prefix()).await?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

async fn a_release_of_a_lost_lock_says_lost_and_why(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let guard = acquire_free(&lock).await?;
    ensure!(lock.evict(guard.token()).await?, "the grant was there");
    let error = soon("release", guard.release()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    let reason = error.lost().map(tenure::Lost::reason);
    ensure!(reason == Some(LostReason::Evicted), "{reason:?}");
    acquire_free(&lock).await?.release().await?;

    let lock = lock.ttl(context.short_ttl()).without_renewal();
    let guard = acquire_free(&lock).await?;
    soon("the lease's end", guard.lost()).await?;
    let error = soon("release", guard.release()).await?.unwrap_err();
    let reason = error.lost().map(tenure::Lost::reason);
    ensure!(reason == Some(LostReason::Expired), "{reason:?}");
    Ok(())
}

async fn a_stale_release_does_not_touch_the_next_holder(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let stale = acquire_free(&lock).await?;
    ensure!(lock.evict(stale.token()).await?, "the grant was there");
    let next = soon("acquire", lock.acquire()).await??;
    drop(stale);
    client.flush().await?;
    expect_busy(&lock).await?;
    ensure!(next.check().is_ok(), "the next holder lost its lock");
    next.release().await?;
    Ok(())
}

async fn a_dropped_guard_is_released(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    drop(acquire_free(&one.lock(context.key("k"))).await?);
    one.flush().await?;
    acquire_free(&two.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

async fn a_release_that_is_not_awaited_still_releases(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    drop(acquire_free(&lock).await?.release());
    client.flush().await?;
    let guard = acquire_free(&lock).await?;
    let mut release = Box::pin(guard.release());
    // Polled once and dropped: the release is on its way and goes on.
    let _first = futures_util::poll!(&mut release);
    drop(release);
    client.flush().await?;
    acquire_free(&lock).await?.release().await?;
    Ok(())
}

async fn a_release_of_an_unknown_claim_is_no_error(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let mut claim = context.claim("never requested");
    ensure!(!backend.release(&claim).await?, "it was not held");
    claim.unconfirmed = true;
    claim.owner = Owner::random();
    ensure!(!backend.release(&claim).await?, "it was not held");
    Ok(())
}
