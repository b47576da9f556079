//! A client begins, ends and is dropped in good order.

use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::{ErrorKind, LostReason};

use super::cases;
use crate::context::{TestContext, acquire_free, soon, until_waiters};

cases! { "client":
    shutdown_releases_everything,
    shutdown_lets_holders_finish,
    a_holder_hears_that_its_client_shuts_down,
    shutdown_ends_waiting_acquires,
    dropping_the_last_handle_waits_for_releases,
    a_bad_setting_is_reported_by_the_first_method,
    a_hundred_locks_are_kept_alive,
    any_executor_will_do,
}

async fn shutdown_releases_everything(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("a"))).await?;
    let other = acquire_free(&one.lock(context.key("b"))).await?;
    soon("shutdown", one.shutdown(Duration::ZERO)).await??;
    for name in ["a", "b"] {
        acquire_free(&two.lock(context.key(name))).await?.release().await?;
    }
    let lost = soon("the end of the lease", guard.lost()).await?;
    ensure!(lost.reason() == LostReason::Shutdown, "{lost}");
    ensure!(other.check().is_err(), "a guard of a closed client says that it holds");
    let error = soon("acquire", one.lock(context.key("a")).acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Closed, "{error:?}");
    Ok(())
}

async fn shutdown_lets_holders_finish(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let guard = acquire_free(&client.lock(context.key("k"))).await?;
    let shutdown = tokio::spawn(client.shutdown(Duration::from_secs(60)));
    tokio::task::yield_now().await;
    ensure!(guard.check().is_ok(), "the holder was not allowed to finish");
    guard.release().await?;
    soon("shutdown", shutdown).await???;
    Ok(())
}

/// Both of them: one that awaits it, and one that is told before it begins to listen. The client of
/// another holder is not shut down.
async fn a_holder_hears_that_its_client_shuts_down(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("a"))).await?;
    let late = acquire_free(&one.lock(context.key("b"))).await?;
    let other = acquire_free(&two.lock(context.key("c"))).await?;
    let unheard = guard.closing();
    drop(guard.closing());
    ensure!(!guard.lease().is_closing(), "it is closing before the shutdown");
    let work = guard.lease().clone();
    let leader = tokio::spawn(async move {
        let led = guard.while_held(async { work.closing().await }).await;
        (led, guard.check().is_ok(), guard.release().await)
    });
    let shutdown = tokio::spawn(one.shutdown(Duration::from_secs(600)));
    let (led, held, released) = soon("the leader's end", leader).await??;
    led?;
    ensure!(held, "the grace had not begun");
    released?;
    soon("closing, begun before", unheard).await?;
    soon("closing, begun after", late.closing()).await?;
    ensure!(late.lease().is_closing() && !other.lease().is_closing());
    late.release().await?;
    soon("shutdown", shutdown).await???;
    let unrelated = tokio::time::timeout(Duration::from_millis(1), other.closing()).await;
    ensure!(unrelated.is_err(), "a holder of another client was told");
    other.release().await?;
    Ok(())
}

async fn shutdown_ends_waiting_acquires(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(context.key("k")).acquire());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    soon("shutdown", two.shutdown(Duration::ZERO)).await??;
    let error = soon("the waiter's end", waiter).await??.unwrap_err();
    ensure!(error.kind() == ErrorKind::Closed, "{error:?}");
    until_waiters(&one.lock(context.key("k")), 0).await?;
    guard.release().await?;
    Ok(())
}

async fn dropping_the_last_handle_waits_for_releases(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let lock = one.lock(context.key("k"));
    let guard = acquire_free(&lock).await?;
    drop((one, lock));
    // The guard is the last handle. Dropping it may block for a moment, as at the end of `main`.
    tokio::task::spawn_blocking(move || drop(guard)).await?;
    soon("acquire", two.lock(context.key("k")).acquire()).await??.release().await?;
    Ok(())
}

async fn a_bad_setting_is_reported_by_the_first_method(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let locks = [
        client.lock(""),
        client.lock("two\nlines"),
        client.lock(context.key("k")).ttl(Duration::ZERO),
        client.lock(context.key("k")).ttl(Duration::MAX),
        client.lock(context.key("k")).renew_every(Duration::from_secs(60)),
    ];
    for lock in locks {
        let error = soon("try_acquire", lock.try_acquire()).await?.unwrap_err();
        ensure!(error.kind() == ErrorKind::Invalid, "{error:?}");
    }
    ensure!(client.list(context.prefix()).await?.is_empty(), "a request was sent");
    Ok(())
}

async fn a_hundred_locks_are_kept_alive(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    // Long enough for a hundred connections on a busy machine.
    let ttl = context.short_ttl().max(Duration::from_secs(6));
    let mut guards = Vec::new();
    for number in 0..100 {
        let lock = client.lock(context.key(&format!("k{number}"))).ttl(ttl);
        guards.push(acquire_free(&lock).await?);
    }
    tokio::time::sleep(ttl + ttl / 2).await;
    for guard in guards {
        ensure!(guard.check().is_ok(), "{} was not renewed", guard.key());
        guard.release().await?;
    }
    Ok(())
}

/// A thread that knows nothing of tokio polls the futures.
async fn any_executor_will_do(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let thread = std::thread::spawn(move || -> Result<()> {
        let guard = poll_to_end(lock.acquire())?;
        poll_to_end(guard.while_held(async {}))?;
        ensure!(poll_to_end(lock.status())?.is_some());
        poll_to_end(guard.release())?;
        drop(poll_to_end(lock.acquire())?);
        poll_to_end(client.flush())?;
        ensure!(poll_to_end(lock.status())?.is_none());
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
