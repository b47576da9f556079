//! Every grant carries a token that grows with every grant of its key.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::backend::Owner;
use tenure::{Attempt, FencingToken};

use super::cases;
use crate::bench::{Bench, soon, take};

cases! { "tokens":
    a_token_grows_with_every_grant,
    a_token_grows_across_expiry,
    a_token_survives_reopening,
    asking_twice_is_asking_once,
    asking_again_after_a_withdrawal_is_a_new_grant,
}

async fn a_token_grows_with_every_grant(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let mut last = None;
    for round in 0..6 {
        let lock = [&one, &two][round % 2].lock(bench.key("k"));
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

async fn a_token_grows_across_expiry(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k")).ttl(bench.short_ttl()).without_renewal();
    let first = take(&lock).await?;
    soon("the lease's end", first.lost()).await?;
    let second = soon("acquire", lock.acquire()).await??;
    ensure!(second.token() > first.token(), "{:?} {:?}", second.token(), first.token());
    Ok(())
}

async fn a_token_survives_reopening(bench: &Bench) -> Result<()> {
    let mut last: Option<FencingToken> = None;
    for _ in 0..3 {
        let client = bench.client().await?;
        let guard = take(&client.lock(bench.key("k"))).await?;
        ensure!(Some(guard.token()) > last, "{:?} came after {last:?}", guard.token());
        last = Some(guard.token());
        guard.release().await?;
        client.shutdown(Duration::ZERO).await?;
    }
    Ok(())
}

async fn asking_twice_is_asking_once(bench: &Bench) -> Result<()> {
    let backend = bench.backend().await?;
    let claim = bench.claim("k");
    let first = backend.try_acquire(&claim).await?.granted()?;
    let second = backend.try_acquire(&claim).await?.granted()?;
    ensure!(first.token == second.token, "{first:?} {second:?}");
    ensure!(backend.release(&claim).await?, "it was held");
    ensure!(!backend.release(&claim).await?, "one release gives back everything");
    let mut other = bench.claim("k");
    other.owner = Owner::random();
    let attempt = backend.try_acquire(&other).await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "nothing was counted twice");
    backend.release(&other).await?;
    Ok(())
}

async fn asking_again_after_a_withdrawal_is_a_new_grant(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let first = take(&lock).await?.token();
    client.flush().await?;
    let second = take(&lock).await?;
    ensure!(second.token() > first, "{:?} {first:?}", second.token());
    let holding = lock.holding().await?.context("it is held")?;
    ensure!(holding.holder.token.is_none_or(|token| token == second.token()));
    Ok(())
}
