//! Re-entry is asked for by name and counts on the client.

use anyhow::{Result, ensure};
use tenure::ErrorKind;

use super::cases;
use crate::bench::{Bench, expect_busy, soon, take};

cases! { "reentry":
    taking_again_keeps_the_token_and_the_last_release_frees,
    another_handle_is_another_owner,
    taking_again_after_a_loss_says_lost,
    a_handle_can_be_used_anew,
}

async fn taking_again_keeps_the_token_and_the_last_release_frees(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let other = two.lock(bench.key("k"));
    let mut lock = one.lock(bench.key("k")).reentrant();
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
    take(&other).await?.release().await?;
    Ok(())
}

async fn another_handle_is_another_owner(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let mut mine = lock.reentrant();
    let guard = soon("acquire", mine.acquire()).await??;
    let mut other = lock.reentrant();
    let attempt = soon("try_acquire", other.try_acquire()).await??;
    ensure!(attempt.granted().is_err(), "another handle entered");
    expect_busy(&lock).await?;
    guard.release().await?;
    Ok(())
}

async fn taking_again_after_a_loss_says_lost(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k")).ttl(bench.short_ttl());
    let mut handle = lock.reentrant();
    let outer = soon("acquire", handle.acquire()).await??;
    ensure!(lock.evict(outer.token()).await?);
    soon("the loss", outer.lost()).await?;
    let error = soon("acquire again", handle.acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    drop(outer);
    soon("acquire anew", handle.acquire()).await??.release().await?;
    Ok(())
}

async fn a_handle_can_be_used_anew(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let mut handle = client.lock(bench.key("k")).reentrant();
    let first = soon("acquire", handle.acquire()).await??;
    let token = first.token();
    first.release().await?;
    let second = soon("acquire", handle.acquire()).await??;
    ensure!(second.token() > token);
    second.release().await?;
    Ok(())
}
