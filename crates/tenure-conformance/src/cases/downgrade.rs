//! A downgrade makes an exclusive lock shared, and never lets it go.

use anyhow::{Result, bail, ensure};
use tenure::backend::{Backend, Claim, Mode, Owner};
use tenure::{Attempt, ErrorKind, FencingToken};

use super::cases;
use super::readers::{enqueue, granted, has_order, has_shared, lock};
use crate::context::{TestContext, acquire_free, expect_busy, soon};

cases! { "downgrade":
    a_downgrade_lets_waiting_readers_in_and_no_writer if has_order,
    a_downgrade_never_lets_go if has_shared,
    a_late_exclusive_request_after_a_downgrade_changes_nothing if has_shared,
    a_repeated_downgrade_is_one if has_shared,
    a_downgrade_of_a_released_lock_leaves_nothing if has_shared,
    a_dropped_downgrade_goes_on if has_shared,
    a_downgraded_lock_is_not_entered_again if has_shared,
}

async fn a_downgrade_lets_waiting_readers_in_and_no_writer(context: &TestContext) -> Result<()> {
    let mut writer = acquire_free(&lock(context).await?).await?;
    let one = enqueue(&lock(context).await?.shared(), 1).await?;
    let two = enqueue(&lock(context).await?.shared(), 2).await?;
    let next = enqueue(&lock(context).await?, 3).await?;
    let token = writer.token();
    soon("downgrade", writer.downgrade()).await??;
    ensure!(writer.mode() == Mode::Shared && writer.token() == token);
    let one = granted("the first reader's grant", one).await?;
    let two = granted("the second reader's grant", two).await?;
    ensure!(!next.is_finished(), "a writer was granted beside readers");
    writer.check()?;
    for reader in [writer, one, two] {
        reader.release().await?;
    }
    let next = granted("the next writer's grant", next).await?;
    ensure!(next.token() > token);
    next.release().await?;
    Ok(())
}

async fn a_downgrade_never_lets_go(context: &TestContext) -> Result<()> {
    let hammer = lock(context).await?;
    for _ in 0..5 {
        let mut writer = acquire_free(&lock(context).await?).await?;
        let trying = tokio::spawn({
            let hammer = hammer.clone();
            async move {
                for _ in 0..20 {
                    expect_busy(&hammer).await?;
                }
                anyhow::Ok(())
            }
        });
        soon("downgrade", writer.downgrade()).await??;
        soon("the tries", trying).await???;
        writer.release().await?;
    }
    Ok(())
}

async fn a_late_exclusive_request_after_a_downgrade_changes_nothing(
    context: &TestContext,
) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let (token, downgrade) = downgraded(&*backend, &claim).await?;
    let Attempt::Granted(late) = soon("late", backend.try_acquire(&claim)).await?? else {
        bail!("busy for its own owner");
    };
    ensure!(late.token == token);
    acquire_free(&lock(context).await?.shared()).await?.release().await?;
    ensure!(soon("release", backend.release(&downgrade)).await??);
    acquire_free(&lock(context).await?).await?.release().await?;
    Ok(())
}

async fn a_repeated_downgrade_is_one(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let (token, downgrade) = downgraded(&*backend, &claim).await?;
    let Attempt::Granted(again) = soon("again", backend.try_acquire(&downgrade)).await?? else {
        bail!("busy for its own owner");
    };
    ensure!(again.token == token);
    acquire_free(&lock(context).await?.shared()).await?.release().await?;
    // The claim as it was acquired releases it too.
    ensure!(soon("release", backend.release(&claim)).await??);
    acquire_free(&lock(context).await?).await?.release().await?;
    Ok(())
}

/// Acquires with a claim and downgrades it. Returns its token, and the claim of the downgrade.
async fn downgraded(backend: &dyn Backend, claim: &Claim) -> Result<(FencingToken, Claim)> {
    let Attempt::Granted(grant) = soon("acquire", backend.try_acquire(claim)).await?? else {
        bail!("the key is fresh");
    };
    let mut downgrade = claim.clone();
    (downgrade.mode, downgrade.token) = (Mode::Shared, Some(grant.token));
    let Attempt::Granted(kept) = soon("downgrade", backend.try_acquire(&downgrade)).await?? else {
        bail!("a downgrade is never busy");
    };
    ensure!(kept.token == grant.token, "{kept:?} after {grant:?}");
    Ok((grant.token, downgrade))
}

async fn a_downgrade_of_a_released_lock_leaves_nothing(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let (_, downgrade) = downgraded(&*backend, &claim).await?;
    ensure!(soon("release", backend.release(&claim)).await??);
    let late = soon("late", backend.try_acquire(&downgrade)).await?.map(drop).unwrap_err();
    ensure!(late.kind() == ErrorKind::Lost, "{late}");
    let mut foreign = downgrade.clone();
    foreign.owner = Owner::random();
    let writer = acquire_free(&lock(context).await?).await?;
    for claim in [&downgrade, &foreign] {
        let late = soon("late", backend.try_acquire(claim)).await?.map(drop).unwrap_err();
        ensure!(late.kind() == ErrorKind::Lost, "{late}");
    }
    writer.check()?;
    writer.release().await?;
    acquire_free(&lock(context).await?).await?.release().await?;
    Ok(())
}

async fn a_dropped_downgrade_goes_on(context: &TestContext) -> Result<()> {
    let lock = lock(context).await?;
    let mut writer = acquire_free(&lock).await?;
    {
        let mut downgrade = std::pin::pin!(writer.downgrade());
        let _pending = futures_util::poll!(&mut downgrade);
    }
    ensure!(writer.mode() == Mode::Shared, "it may have let readers in");
    let reader = soon("a reader's grant", lock.clone().shared().acquire()).await??;
    writer.check()?;
    writer.release().await?;
    reader.release().await?;
    Ok(())
}

/// An inner guard would be exclusive by its handle, and shared by its lock.
async fn a_downgraded_lock_is_not_entered_again(context: &TestContext) -> Result<()> {
    let mut handle = lock(context).await?.reentrant();
    let mut outer = soon("acquire", handle.acquire()).await??;
    let inner = soon("acquire", handle.acquire()).await??;
    let refused = soon("downgrade", outer.downgrade()).await?.unwrap_err();
    ensure!(refused.kind() == ErrorKind::Invalid, "{refused}");
    ensure!(outer.mode() == Mode::Exclusive);
    inner.release().await?;
    soon("downgrade", outer.downgrade()).await??;
    let refused = soon("acquire", handle.acquire()).await?.map(drop).unwrap_err();
    ensure!(refused.kind() == ErrorKind::Invalid, "{refused}");
    outer.check()?;
    outer.release().await?;
    let again = soon("acquire", handle.acquire()).await??;
    ensure!(again.mode() == Mode::Exclusive);
    again.release().await?;
    Ok(())
}
