//! Waiters are woken, in order, and stop waiting when their timeout has passed.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::{Order, Wakeup};
use tenure::{Attempt, Config};

use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, soon, until_waiters, within};

cases! { "waiting":
    a_waiter_gets_a_released_lock,
    a_waiter_is_woken_before_its_next_poll if |context| context.info().wakeup == Wakeup::Push,
    waiters_get_the_lock_in_order if |context| context.info().order == Order::Fifo,
    a_newcomer_does_not_overtake_a_waiter if |context| context.info().order == Order::Fifo,
    a_timeout_names_the_holder,
    a_timeout_leaves_no_queue_entry,
    a_waiter_gets_the_lock_of_an_expired_holder,
    a_waiter_outlives_its_own_ttl,
    busy_responses_reach_the_callback,
    until_free_returns_when_it_is_free_and_acquires_nothing,
}

async fn a_waiter_gets_a_released_lock(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k")).ttl(context.short_ttl())).await?;
    let lock = two.lock(context.key("k")).ttl(context.short_ttl());
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    let first = guard.token();
    guard.release().await?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token() > first);
    guard.release().await?;
    Ok(())
}

/// With a ttl of 30 s the next request without a wake-up would come after 10 s.
async fn a_waiter_is_woken_before_its_next_poll(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(context.key("k")).acquire());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    guard.release().await?;
    within(Duration::from_secs(3), "the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn waiters_get_the_lock_in_order(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k")).ttl(Duration::from_secs(3));
    let guard = acquire_free(&lock).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..6 {
        let other = context.client().await?.lock(context.key("k")).ttl(Duration::from_secs(3));
        let served = served.clone();
        waiters.push(tokio::spawn(async move {
            let guard = other.acquire().await?;
            served.lock().unwrap().push(number);
            guard.release().await
        }));
        until_waiters(&lock, number + 1).await?;
    }
    guard.release().await?;
    for waiter in waiters {
        soon("a waiter's turn", waiter).await???;
    }
    let served = served.lock().unwrap().clone();
    ensure!(served == [0, 1, 2, 3, 4, 5], "served as {served:?}");
    Ok(())
}

async fn a_newcomer_does_not_overtake_a_waiter(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let lock = one.lock(context.key("k")).ttl(Duration::from_secs(3));
    let guard = acquire_free(&lock).await?;
    let waiter = tokio::spawn(two.lock(context.key("k")).ttl(Duration::from_secs(3)).acquire());
    until_waiters(&lock, 1).await?;
    guard.release().await?;
    expect_busy(&lock).await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn a_timeout_names_the_holder(context: &TestContext) -> Result<()> {
    let one = context.client_with(Config::default().owner("the-holder")).await?;
    let two = context.client().await?;
    let guard = acquire_free(&one.lock(context.key("k")).note("a reason")).await?;
    let start = Instant::now();
    let timeout = Duration::from_millis(200);
    let waiting = two.lock(context.key("k")).acquire_within(timeout);
    let Attempt::Busy(busy) = soon("timeout", waiting).await?? else {
        anyhow::bail!("two holders");
    };
    ensure!(start.elapsed() >= timeout, "gave up after {:?}", start.elapsed());
    ensure!(busy.waited >= timeout && busy.key == context.key("k"), "{busy:?}");
    let holder = busy.holder.context("the holder is known")?;
    ensure!(holder.owner == "the-holder" && holder.note == "a reason", "{holder:?}");
    ensure!(holder.pid == std::process::id(), "{holder:?}");
    guard.release().await?;
    Ok(())
}

async fn a_timeout_leaves_no_queue_entry(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    let waiting = two.lock(context.key("k")).acquire_within(Duration::from_millis(50));
    ensure!(matches!(soon("timeout", waiting).await??, Attempt::Busy(_)));
    two.flush().await?;
    until_waiters(&one.lock(context.key("k")), 0).await?;
    guard.release().await?;
    acquire_free(&one.lock(context.key("k"))).await?.release().await?;
    Ok(())
}

async fn a_waiter_gets_the_lock_of_an_expired_holder(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let lock = one.lock(context.key("k")).ttl(context.short_ttl()).without_renewal();
    let guard = acquire_free(&lock).await?;
    let waiter = two.lock(context.key("k")).ttl(context.short_ttl());
    let next = soon("the waiter's grant", waiter.acquire()).await??;
    ensure!(guard.check().is_err(), "two holders");
    ensure!(next.token() > guard.token());
    next.release().await?;
    Ok(())
}

/// A queue entry expires like a lock, so that the client of a waiter has to keep it alive.
async fn a_waiter_outlives_its_own_ttl(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let ttl = context.short_ttl();
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(context.key("k")).ttl(ttl).acquire());
    until_waiters(&one.lock(context.key("k")), 1).await?;
    tokio::time::sleep(ttl * 2).await;
    ensure!(!waiter.is_finished(), "two holders");
    until_waiters(&one.lock(context.key("k")), 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn busy_responses_reach_the_callback(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let guard = acquire_free(&client.lock(context.key("k"))).await?;
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let lock = client.lock(context.key("k")).on_busy(move |busy| {
        sender.send(busy.to_string()).ok();
        // A callback that panics must not hurt the lock. This way the panic hook stays silent.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let waiter = tokio::spawn(lock.acquire());
    let text = soon("the callback", heard.recv()).await?.context("it was called")?;
    ensure!(text.contains(context.key("k").as_str()), "{text}");
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn until_free_returns_when_it_is_free_and_acquires_nothing(
    context: &TestContext,
) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let watcher = two.lock(context.key("k"));
    soon("a free lock", watcher.until_free()).await??;
    let guard = acquire_free(&one.lock(context.key("k"))).await?;
    let waiting = tokio::spawn(watcher.until_free());
    let early = tokio::time::timeout(Duration::from_millis(100), watcher.until_free()).await;
    ensure!(early.is_err(), "said free while it was held");
    guard.release().await?;
    soon("the watcher's end", waiting).await???;
    acquire_free(&one.lock(context.key("k"))).await?.release().await?;
    Ok(())
}
