//! Waiting is woken, in order, and ends when patience does.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tenure::backend::{Order, Wakeup};
use tenure::{Attempt, Config};

use super::cases;
use crate::bench::{Bench, expect_busy, soon, take, until_waiters, within};

cases! { "waiting":
    a_waiter_gets_a_released_lock,
    a_waiter_is_woken_before_its_next_poll if |bench| bench.info().wakeup == Wakeup::Push,
    waiters_are_served_in_order if |bench| bench.info().order == Order::Fifo,
    a_newcomer_does_not_overtake_a_waiter if |bench| bench.info().order == Order::Fifo,
    patience_ends_with_the_name_of_the_holder,
    patience_that_ends_leaves_no_place_in_the_queue,
    a_waiter_gets_the_lock_of_an_expired_holder,
    a_waiter_outlives_its_own_ttl,
    busy_answers_reach_the_callback,
    until_free_returns_when_it_is_free_and_takes_nothing,
}

async fn a_waiter_gets_a_released_lock(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let guard = take(&one.lock(bench.key("k")).ttl(bench.short_ttl())).await?;
    let lock = two.lock(bench.key("k")).ttl(bench.short_ttl());
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&one.lock(bench.key("k")), 1).await?;
    let first = guard.token();
    guard.release().await?;
    let guard = soon("the waiter's grant", waiter).await???;
    ensure!(guard.token() > first);
    guard.release().await?;
    Ok(())
}

/// With a ttl of 30 s the next ask without a wake-up would come after 10 s.
async fn a_waiter_is_woken_before_its_next_poll(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let guard = take(&one.lock(bench.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(bench.key("k")).acquire());
    until_waiters(&one.lock(bench.key("k")), 1).await?;
    guard.release().await?;
    within(Duration::from_secs(3), "the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn waiters_are_served_in_order(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k")).ttl(Duration::from_secs(3));
    let guard = take(&lock).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut waiters = Vec::new();
    for number in 0..6 {
        let other = bench.client().await?.lock(bench.key("k")).ttl(Duration::from_secs(3));
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

async fn a_newcomer_does_not_overtake_a_waiter(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let lock = one.lock(bench.key("k")).ttl(Duration::from_secs(3));
    let guard = take(&lock).await?;
    let waiter = tokio::spawn(two.lock(bench.key("k")).ttl(Duration::from_secs(3)).acquire());
    until_waiters(&lock, 1).await?;
    guard.release().await?;
    expect_busy(&lock).await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn patience_ends_with_the_name_of_the_holder(bench: &Bench) -> Result<()> {
    let one = bench.client_with(Config::default().owner("the-holder")).await?;
    let two = bench.client().await?;
    let guard = take(&one.lock(bench.key("k")).note("a reason")).await?;
    let start = Instant::now();
    let patience = Duration::from_millis(200);
    let waiting = two.lock(bench.key("k")).acquire_within(patience);
    let Attempt::Busy(busy) = soon("patience", waiting).await?? else {
        anyhow::bail!("two holders");
    };
    ensure!(start.elapsed() >= patience, "gave up after {:?}", start.elapsed());
    ensure!(busy.waited >= patience && busy.key == bench.key("k"), "{busy:?}");
    let holder = busy.holder.context("the holder is known")?;
    ensure!(holder.name == "the-holder" && holder.note == "a reason", "{holder:?}");
    ensure!(holder.pid == std::process::id(), "{holder:?}");
    guard.release().await?;
    Ok(())
}

async fn patience_that_ends_leaves_no_place_in_the_queue(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let guard = take(&one.lock(bench.key("k"))).await?;
    let waiting = two.lock(bench.key("k")).acquire_within(Duration::from_millis(50));
    ensure!(matches!(soon("patience", waiting).await??, Attempt::Busy(_)));
    two.flush().await?;
    until_waiters(&one.lock(bench.key("k")), 0).await?;
    guard.release().await?;
    take(&one.lock(bench.key("k"))).await?.release().await?;
    Ok(())
}

async fn a_waiter_gets_the_lock_of_an_expired_holder(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let lock = one.lock(bench.key("k")).ttl(bench.short_ttl()).without_renewal();
    let guard = take(&lock).await?;
    let waiter = two.lock(bench.key("k")).ttl(bench.short_ttl());
    let next = soon("the waiter's grant", waiter.acquire()).await??;
    ensure!(guard.check().is_err(), "two holders");
    ensure!(next.token() > guard.token());
    next.release().await?;
    Ok(())
}

/// A place in the queue lives like a lock; whoever waits has to be kept alive too.
async fn a_waiter_outlives_its_own_ttl(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let ttl = bench.short_ttl();
    let guard = take(&one.lock(bench.key("k"))).await?;
    let waiter = tokio::spawn(two.lock(bench.key("k")).ttl(ttl).acquire());
    until_waiters(&one.lock(bench.key("k")), 1).await?;
    tokio::time::sleep(ttl * 2).await;
    ensure!(!waiter.is_finished(), "two holders");
    until_waiters(&one.lock(bench.key("k")), 1).await?;
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn busy_answers_reach_the_callback(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let guard = take(&client.lock(bench.key("k"))).await?;
    let (sender, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let lock = client.lock(bench.key("k")).on_busy(move |busy| {
        sender.send(busy.to_string()).ok();
        // A callback that panics must not hurt the lock. This way the panic hook stays silent.
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    let waiter = tokio::spawn(lock.acquire());
    let text = soon("the callback", heard.recv()).await?.context("it was called")?;
    ensure!(text.contains(bench.key("k").as_str()), "{text}");
    guard.release().await?;
    soon("the waiter's grant", waiter).await???.release().await?;
    Ok(())
}

async fn until_free_returns_when_it_is_free_and_takes_nothing(bench: &Bench) -> Result<()> {
    let (one, two) = (bench.client().await?, bench.client().await?);
    let watcher = two.lock(bench.key("k"));
    soon("a free lock", watcher.until_free()).await??;
    let guard = take(&one.lock(bench.key("k"))).await?;
    let waiting = tokio::spawn(watcher.until_free());
    let early = tokio::time::timeout(Duration::from_millis(100), watcher.until_free()).await;
    ensure!(early.is_err(), "said free while it was held");
    guard.release().await?;
    soon("the watcher's end", waiting).await???;
    take(&one.lock(bench.key("k"))).await?.release().await?;
    Ok(())
}
