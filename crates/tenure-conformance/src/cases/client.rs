//! A client begins, ends and is dropped in good order.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{ErrorKind, LostReason};

use super::cases;
use crate::bench::{Bench, soon, take, until_waiters};

cases! { "client":
    shutdown_releases_everything,
    shutdown_lets_holders_finish,
    shutdown_ends_those_who_wait,
    the_last_handle_gives_back_what_was_dropped,
    a_bad_setting_is_reported_by_the_first_verb,
    a_hundred_locks_are_kept_alive,
    any_executor_will_do,
}

async fn shutdown_releases_everything(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let guard = take(&one.lock(bench.key("a"))).await?;
    let other = take(&one.lock(bench.key("b"))).await?;
    soon("shutdown", one.shutdown(Duration::ZERO)).await??;
    for name in ["a", "b"] {
        take(&two.lock(bench.key(name))).await?.release().await?;
    }
    let lost = soon("the end of the lease", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Shutdown, "{lost}");
    ensure!(other.check().is_err(), "a guard of a closed client says that it holds");
    let error = soon("acquire", one.lock(bench.key("a")).acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Closed, "{error:?}");
    Ok(())
}

async fn shutdown_lets_holders_finish(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let guard = take(&client.lock(bench.key("k"))).await?;
    let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(60)));
    tokio::task::yield_now().await;
    ensure!(guard.check().is_ok(), "the holder was not allowed to finish");
    guard.release().await?;
    soon("shutdown", shutdown).await???;
    Ok(())
}

async fn shutdown_ends_those_who_wait(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let guard = take(&one.lock(bench.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(bench.key("k")).acquire());
    until_waiters(&one.lock(bench.key("k")), 1).await?;
    soon("shutdown", two.shutdown(Duration::ZERO)).await??;
    let error = soon("the waiter's end", waiter).await??.unwrap_err();
    ensure!(error.kind() == ErrorKind::Closed, "{error:?}");
    until_waiters(&one.lock(bench.key("k")), 0).await?;
    guard.release().await?;
    Ok(())
}

async fn the_last_handle_gives_back_what_was_dropped(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let lock = one.lock(bench.key("k"));
    let guard = take(&lock).await?;
    drop((one, lock));
    // The guard is the last handle. Dropping it may block for a moment, as at the end of `main`.
    tokio::task::spawn_blocking(move || drop(guard)).await?;
    soon("acquire", two.lock(bench.key("k")).acquire()).await??.release().await?;
    Ok(())
}

async fn a_bad_setting_is_reported_by_the_first_verb(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let locks = [
        client.lock(""),
        client.lock("two\nlines"),
        client.lock(bench.key("k")).ttl(Duration::ZERO),
        client.lock(bench.key("k")).ttl(Duration::MAX),
        client.lock(bench.key("k")).renew_every(Duration::from_secs(60)),
    ];
    for lock in locks {
        let error = soon("try_acquire", lock.try_acquire()).await?.unwrap_err();
        ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    }
    ensure!(client.list(bench.prefix()).await?.is_empty(), "something was asked for");
    Ok(())
}

async fn a_hundred_locks_are_kept_alive(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    // Long enough for a hundred connections on a busy machine.
    let ttl = bench.short_ttl().max(Duration::from_secs(6));
    let mut guards = Vec::new();
    for number in 0..100 {
        let lock = client.lock(bench.key(&format!("k{number}"))).ttl(ttl);
        guards.push(take(&lock).await?);
    }
    tokio::time::sleep(ttl + ttl / 2).await;
    for guard in guards {
        ensure!(guard.check().is_ok(), "{} was not renewed", guard.key());
        guard.release().await?;
    }
    Ok(())
}

/// A thread that knows nothing of tokio polls the futures.
async fn any_executor_will_do(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let thread = std::thread::spawn(move || -> Result<()> {
        let guard = poll_to_end(lock.acquire())?;
        poll_to_end(guard.while_held(async {}))?;
        ensure!(poll_to_end(lock.holding())?.is_some());
        poll_to_end(guard.release())?;
        drop(poll_to_end(lock.acquire())?);
        poll_to_end(client.flush())?;
        ensure!(poll_to_end(lock.holding())?.is_none());
        Ok(())
    });
    tokio::task::spawn_blocking(move || thread.join().expect("no panic")).await?
}

/// The smallest executor: parks until it is woken.
fn poll_to_end<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let mut future = std::pin::pin!(future);
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
