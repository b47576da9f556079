//! Every grant carries a token that grows with every grant of its key.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::Owner;
use tenure::{Attempt, FencingToken};

use super::cases;
use crate::context::{TestContext, acquire_free, soon};

cases! { "tokens":
    a_token_grows_with_every_grant,
    a_token_grows_across_expiry,
    a_token_survives_reopening,
    requests_are_idempotent,
    a_request_after_a_cancel_is_a_new_grant,
}

async fn a_token_grows_with_every_grant(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let mut last = None;
    for round in 0..6 {
        let lock = [&one, &two][round % 2].lock(context.key("k"));
        let guard = soon("acquire", lock.acquire()).await??;
        let token = Some(guard.token());
        ensure!(token > last, "{token:?} came after {last:?}");
        last = token;
        match round % 3 {
            0 => guard.release().await?,
            1 => drop(guard),
            _ => ensure!(lock.evict(guard.token()).await?, "the grant was there to be evicted"),
        }
    }
    Ok(())
}

async fn a_token_grows_across_expiry(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).ttl(context.short_ttl()).without_renewal();
    let first = acquire_free(&lock).await?;
    soon("the lease's end", first.lost()).await?;
    let second = soon("acquire", lock.acquire()).await??;
    ensure!(second.token() > first.token(), "{:?} {:?}", second.token(), first.token());
    Ok(())
}

async fn a_token_survives_reopening(context: &TestContext) -> Result<()> {
    let mut last: Option<FencingToken> = None;
    for _ in 0..3 {
        let client = context.client().await?;
        let guard = acquire_free(&client.lock(context.key("k"))).await?;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        client.shutdown(Duration::ZERO).await?;
    }
    Ok(())
}

async fn requests_are_idempotent(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let claim = context.claim("k");
    let first = backend.try_acquire(&claim).await?.granted()?;
    let second = backend.try_acquire(&claim).await?.granted()?;
    ensure!(first.token == second.token, "{first:?} {second:?}");
    ensure!(backend.release(&claim).await?, "it was held");
    ensure!(!backend.release(&claim).await?, "one release releases everything");
    let mut other = context.claim("k");
    other.owner = Owner::random();
    let attempt = backend.try_acquire(&other).await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "nothing was counted twice");
    backend.release(&other).await?;
    Ok(())
}

async fn a_request_after_a_cancel_is_a_new_grant(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let first = acquire_free(&lock).await?.token();
    client.flush().await?;
    let second = acquire_free(&lock).await?;
    ensure!(second.token() > first, "{:?} {first:?}", second.token());
    let holding = lock.status().await?.context("it is held")?;
    ensure!(holding.holder().token.is_none_or(|token| token == second.token()));
    Ok(())
}
