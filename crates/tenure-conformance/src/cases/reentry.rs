//! Re-entrant acquire has a handle of its own and counts on the client.

use anyhow::{Result, ensure};
use tenure::ErrorKind;

use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, soon};

cases! { "reentry":
    reentry_keeps_the_token_and_the_last_release_frees,
    another_handle_is_another_owner,
    reentry_after_a_loss_fails_as_lost,
    a_handle_can_be_used_again,
}

async fn reentry_keeps_the_token_and_the_last_release_frees(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let other = two.lock(context.key("k"));
    let mut lock = one.lock(context.key("k")).reentrant();
    let outer = soon("acquire", lock.acquire()).await??;
    let inner = soon("acquire again", lock.try_acquire()).await??.granted()?;
    let third = soon("acquire again", lock.acquire()).await??;
    ensure!(outer.token() == inner.token() && inner.token() == third.token());
    outer.release().await?;
    expect_busy(&other).await?;
    drop(inner);
    expect_busy(&other).await?;
    ensure!(third.check().is_ok());
    third.release().await?;
    acquire_free(&other).await?.release().await?;
    Ok(())
}

async fn another_handle_is_another_owner(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let mut mine = lock.reentrant();
    let guard = soon("acquire", mine.acquire()).await??;
    let mut other = lock.reentrant();
    let attempt = soon("try_acquire", other.try_acquire()).await??;
    ensure!(attempt.granted().is_err(), "another handle entered");
    expect_busy(&lock).await?;
    guard.release().await?;
    Ok(())
}

async fn reentry_after_a_loss_fails_as_lost(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).ttl(context.short_ttl());
    let mut handle = lock.reentrant();
    let outer = soon("acquire", handle.acquire()).await??;
    ensure!(lock.evict(outer.token()).await?);
    soon("the loss", outer.lost()).await?;
    let error = soon("acquire again", handle.acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    drop(outer);
    soon("acquire again", handle.acquire()).await??.release().await?;
    Ok(())
}

async fn a_handle_can_be_used_again(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let mut handle = client.lock(context.key("k")).reentrant();
    let first = soon("acquire", handle.acquire()).await??;
    let token = first.token();
    first.release().await?;
    let second = soon("acquire", handle.acquire()).await??;
    ensure!(second.token() > token);
    second.release().await?;
    Ok(())
}
