//! Cancelling is safe at every await: nothing is held and nothing is queued afterwards.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{Attempt, Guard, Lock};

use super::cases;
use crate::context::{TestContext, acquire_free, soon, until_waiters};

cases! { "cancel":
    acquire_dropped_at_every_await_of_a_free_lock,
    acquire_dropped_at_every_await_of_a_busy_lock,
    acquire_within_dropped_at_every_await,
    try_acquire_dropped_at_every_await,
    acquire_dropped_during_the_handoff,
    a_dropped_waiter_does_not_hold_up_the_next,
    run_dropped_releases_the_lock,
}

/// Polls a future up to `polls` times, letting the world go on between two polls, then drops it.
/// `true` if it completed before.
pub(super) async fn poll_and_drop<T>(polls: usize, future: impl Future<Output = T>) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        if futures_util::poll!(future.as_mut()).is_ready() {
            return true;
        }
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_micros(300)).await;
    }
    false
}

/// Drops what `start` makes after 0, 1, 2 … polls, until it completes; each time nothing may be
/// left.
async fn drop_at_every_await<T, F>(context: &TestContext, start: impl Fn(&Lock) -> F) -> Result<()>
where
    F: Future<Output = T>,
{
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    for polls in 0..200 {
        let completed = poll_and_drop(polls, start(&lock)).await;
        soon("flush", client.flush()).await??;
        let left = soon("holding", lock.status()).await??;
        ensure!(left.is_none(), "dropped after {polls} polls, and left {left:?}");
        if completed {
            return Ok(());
        }
    }
    anyhow::bail!("it never completed")
}

async fn acquire_dropped_at_every_await_of_a_free_lock(context: &TestContext) -> Result<()> {
    drop_at_every_await(context, Lock::acquire).await
}

async fn acquire_within_dropped_at_every_await(context: &TestContext) -> Result<()> {
    drop_at_every_await(context, |lock| lock.acquire_within(Duration::from_secs(5))).await
}

async fn try_acquire_dropped_at_every_await(context: &TestContext) -> Result<()> {
    drop_at_every_await(context, Lock::try_acquire).await
}

async fn acquire_dropped_at_every_await_of_a_busy_lock(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    for polls in 0..12 {
        let completed = poll_and_drop(polls, two.lock(context.key("k")).acquire()).await;
        ensure!(!completed, "two holders");
        soon("flush", two.flush()).await??;
        let holding = soon("holding", one.lock(context.key("k")).status()).await??;
        let waiters = holding.map(|holding| holding.waiters.len());
        ensure!(waiters == Some(0), "dropped after {polls} polls, waiters left: {waiters:?}");
    }
    guard.release().await?;
    acquire_free(&one.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

/// Aims the drop at the moment of the handoff, from both sides.
async fn acquire_dropped_during_the_handoff(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let (lock, other) = (one.lock(context.key("k")), two.lock(context.key("k")));
    for round in 0..20_u64 {
        let guard = acquire_free(&lock).await?;
        let mut waiting = Box::pin(other.acquire());
        ensure!(futures_util::poll!(waiting.as_mut()).is_pending());
        until_waiters(&lock, 1).await?;
        let release = tokio::spawn(guard.release());
        let dropping = async {
            tokio::time::sleep(Duration::from_micros(round * 60)).await;
            let granted: Option<tenure::Result<Guard>> = match futures_util::poll!(waiting.as_mut())
            {
                std::task::Poll::Ready(granted) => Some(granted),
                std::task::Poll::Pending => None,
            };
            drop(waiting);
            granted
        };
        drop(dropping.await);
        soon("release", release).await???;
        soon("flush", two.flush()).await??;
        let left = lock.status().await?;
        ensure!(left.is_none(), "round {round} left {left:?}");
    }
    Ok(())
}

async fn a_dropped_waiter_does_not_hold_up_the_next(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let lock = one.lock(context.key("k"));
    let guard = acquire_free(&lock).await?;
    let first = tokio::spawn(two.lock(context.key("k")).acquire());
    until_waiters(&lock, 1).await?;
    let second = tokio::spawn(one.lock(context.key("k")).acquire());
    until_waiters(&lock, 2).await?;
    first.abort();
    until_waiters(&lock, 1).await?;
    guard.release().await?;
    soon("the second waiter's grant", second).await???.release().await?;
    Ok(())
}

async fn run_dropped_releases_the_lock(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let (sender, started) = tokio::sync::oneshot::channel();
    let run = tokio::spawn(lock.run(|_| async move {
        sender.send(()).ok();
        std::future::pending::<()>().await;
    }));
    soon("the work's start", started).await??;
    run.abort();
    soon("the task's end", run).await?.unwrap_err();
    client.flush().await?;
    let attempt = lock.try_acquire().await?;
    ensure!(matches!(attempt, Attempt::Granted(_)), "still held");
    Ok(())
}
