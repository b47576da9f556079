//! Several locks are held together: all of them or none, in one order, under one deadline, and with
//! one loss. The locks are exclusive, so that the cases run on every server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tenure::{Attempt, Client, ErrorKind, Guard, GuardSet, LockSet, LostReason};

use super::cancel::poll_and_drop;
use super::cases;
use crate::context::{TestContext, acquire_free, expect_busy, soon, until_waiters, within};

cases! { "sets":
    a_set_is_all_or_none,
    the_keys_of_a_set_are_acquired_in_their_order,
    opposite_orders_do_not_deadlock,
    one_deadline_for_all,
    losing_one_is_losing_the_set,
    a_loss_while_another_is_awaited_ends_the_set,
    a_release_of_a_set_that_lost_one_frees_the_others,
    a_dropped_set_leaves_nothing,
    a_dropped_acquire_of_a_busy_set_leaves_nothing,
    a_wrong_set_is_refused_before_any_request,
    a_set_has_locks_of_every_mode if |context| {
        context.info().modes.shared && context.info().modes.permits
    },
}

/// The keys `a`, `b` and `c` of this case, in another order.
fn set(context: &TestContext, client: &Client) -> LockSet {
    client.lock_all(["c", "a", "b"].map(|name| context.key(name)))
}

fn lock(context: &TestContext, client: &Client, name: &str) -> tenure::Lock {
    client.lock(context.key(name))
}

/// A lease under which a claim repeats its request every second, for servers that do not wake it.
fn ttl(context: &TestContext) -> Duration {
    context.short_ttl().max(Duration::from_secs(3))
}

/// Nothing is held, and nothing waits.
async fn expect_all_free(context: &TestContext, client: &Client) -> Result<()> {
    soon("flush", client.flush()).await??;
    let left = soon("list", client.list(context.prefix())).await??;
    ensure!(left.is_empty(), "left: {left:?}");
    Ok(())
}

fn expect_busy_with(attempt: Attempt<GuardSet>, key: &tenure::Key) -> Result<()> {
    let Attempt::Busy(busy) = attempt else { bail!("the whole set was granted") };
    ensure!(busy.key == *key, "{busy}");
    Ok(())
}

async fn a_set_is_all_or_none(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&lock(context, &one, "b")).await?;
    let set = set(context, &two);
    expect_busy_with(soon("try_acquire", set.try_acquire()).await??, &context.key("b"))?;
    let attempt = soon("acquire_within", set.acquire_within(Duration::from_millis(300))).await??;
    expect_busy_with(attempt, &context.key("b"))?;
    soon("flush", two.flush()).await??;
    let held = soon("list", one.list(context.prefix())).await??;
    ensure!(held.len() == 1 && held[0].key == context.key("b"), "also held: {held:?}");
    ensure!(held[0].waiters.is_empty(), "{held:?}");
    guard.release().await?;
    let held = soon("try_acquire", set.try_acquire()).await??.granted()?;
    ensure!(held.check()? > Duration::ZERO);
    for name in ["a", "b", "c"] {
        expect_busy(&lock(context, &one, name)).await?;
        let token = held.token(context.key(name))?;
        let shown = lock(context, &one, name).status().await?.context("it is held")?;
        let shown = shown.holder().token;
        ensure!(shown.is_none_or(|shown| shown == token), "{shown:?} is shown, not {token}");
    }
    soon("release", held.release()).await??;
    expect_all_free(context, &one).await
}

async fn the_keys_of_a_set_are_acquired_in_their_order(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&lock(context, &one, "b")).await?;
    let waiting = tokio::spawn(set(context, &two).acquire());
    until_waiters(&lock(context, &one, "b"), 1).await?;
    expect_busy(&lock(context, &one, "a")).await?;
    acquire_free(&lock(context, &one, "c")).await?.release().await?;
    guard.release().await?;
    let held = soon("the set", waiting).await???;
    let keys: Vec<_> = held.leases().map(|lease| lease.key().clone()).collect();
    ensure!(keys == ["a", "b", "c"].map(|name| context.key(name)), "{keys:?}");
    soon("release", held.release()).await??;
    Ok(())
}

async fn opposite_orders_do_not_deadlock(context: &TestContext) -> Result<()> {
    let inside = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for number in 0..4 {
        let client = context.client().await?;
        let mut keys = vec![context.key("a"), context.key("b")];
        if number % 2 == 1 {
            keys.reverse();
        }
        let (inside, ttl) = (inside.clone(), ttl(context));
        tasks.push(tokio::spawn(async move {
            for _ in 0..5 {
                let held = client.lock_all(&keys).ttl(ttl).acquire().await?;
                ensure!(!inside.swap(true, Ordering::SeqCst), "two sets are held together");
                tokio::time::sleep(Duration::from_millis(1)).await;
                ensure!(inside.swap(false, Ordering::SeqCst), "two sets are held together");
                held.release().await?;
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        // Twenty turns, each after a handoff of two keys.
        within(Duration::from_secs(60), "every turn", task).await???;
    }
    Ok(())
}

async fn one_deadline_for_all(context: &TestContext) -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(3);
    let (one, two) = (context.client().await?, context.client().await?);
    let first = acquire_free(&lock(context, &one, "a")).await?;
    let second = acquire_free(&lock(context, &one, "b")).await?;
    let begin = Instant::now();
    let waiting = tokio::spawn(set(context, &two).ttl(ttl(context)).acquire_within(LIMIT));
    until_waiters(&lock(context, &one, "a"), 1).await?;
    tokio::time::sleep((LIMIT / 2).saturating_sub(begin.elapsed())).await;
    first.release().await?;
    let attempt = soon("the attempt", waiting).await???;
    let took = begin.elapsed();
    let Attempt::Busy(busy) = attempt else { bail!("the whole set was granted") };
    ensure!(busy.key == context.key("b"), "{busy}");
    // A limit for each of them would have been over at four and a half seconds.
    ensure!(took >= LIMIT && took < LIMIT * 4 / 3, "busy after {took:?}");
    ensure!(busy.waited >= LIMIT, "{:?}", busy.waited);
    second.release().await?;
    soon("flush", two.flush()).await??;
    expect_all_free(context, &one).await
}

async fn losing_one_is_losing_the_set(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let held = soon("acquire", set(context, &client).ttl(context.short_ttl()).acquire()).await??;
    let token = held.token(context.key("b"))?;
    let work = held.while_held(std::future::pending::<()>());
    let evict = async { client.lock(context.key("b")).evict(token).await };
    let (stopped, evicted) = soon("the loss", async { tokio::join!(work, evict) }).await?;
    ensure!(evicted?, "the grant was there");
    let lost = stopped.err().context("the work never ends by itself")?;
    ensure!(lost.key() == &context.key("b") && lost.token() == token, "{lost}");
    ensure!(held.check().is_err(), "the set counts as held");
    let lost = soon("the loss", held.lost()).await?;
    ensure!(lost.reason() != LostReason::Released, "{lost}");
    let released = soon("release", held.release()).await?;
    let error = released.err().context("the release of a set that lost one says so")?;
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    ensure!(error.lost().is_some_and(|lost| lost.key() == &context.key("b")), "{error:?}");
    Ok(())
}

async fn a_loss_while_another_is_awaited_ends_the_set(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard = acquire_free(&lock(context, &one, "b")).await?;
    // The lock that is held while another one is awaited ends by itself.
    let first = lock(context, &two, "a").ttl(context.short_ttl()).without_renewal();
    let set = LockSet::from(lock(context, &two, "b")).and(first);
    let outcome = soon("the set", set.acquire()).await?;
    let error = outcome.err().context("a set was granted that had lost a lock")?;
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    ensure!(error.lost().is_some_and(|lost| lost.key() == &context.key("a")), "{error:?}");
    soon("flush", two.flush()).await??;
    until_waiters(&lock(context, &one, "b"), 0).await?;
    guard.release().await?;
    Ok(())
}

async fn a_release_of_a_set_that_lost_one_frees_the_others(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let held = soon("acquire", set(context, &two).acquire()).await??;
    ensure!(lock(context, &one, "c").evict(held.token(context.key("c"))?).await?);
    let error = soon("release", held.release()).await?.err().context("one was lost")?;
    ensure!(error.kind() == ErrorKind::Lost, "{error:?}");
    for name in ["a", "b", "c"] {
        acquire_free(&lock(context, &one, name)).await?.release().await?;
    }
    Ok(())
}

async fn a_dropped_set_leaves_nothing(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let set = set(context, &client);
    drop(soon("acquire", set.acquire()).await??);
    expect_all_free(context, &client).await?;
    for polls in 0..200 {
        let completed = poll_and_drop(polls, set.acquire()).await;
        expect_all_free(context, &client).await.with_context(|| format!("after {polls} polls"))?;
        if completed {
            return Ok(());
        }
    }
    bail!("it never completed")
}

async fn a_dropped_acquire_of_a_busy_set_leaves_nothing(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let guard: Guard = acquire_free(&lock(context, &one, "c")).await?;
    let set = set(context, &two);
    for polls in 0..16 {
        let completed = poll_and_drop(polls, set.acquire()).await;
        ensure!(!completed, "two holders");
        soon("flush", two.flush()).await??;
        let held = soon("list", one.list(context.prefix())).await??;
        let left = held.len() == 1 && held[0].waiters.is_empty();
        ensure!(left, "dropped after {polls} polls, and left {held:?}");
    }
    guard.release().await?;
    Ok(())
}

async fn a_wrong_set_is_refused_before_any_request(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let (a, b) = (lock(context, &one, "a"), lock(context, &one, "b"));
    let none: [tenure::Key; 0] = [];
    let prefixed = one.prefixed(context.prefix())?;
    let long = Duration::from_secs(100 * 365 * 86400);
    for (why, set) in [
        ("it is empty", one.lock_all(none)),
        ("a key is in it twice", one.lock_all(["a", "b", "a"].map(|name| context.key(name)))),
        ("a key is in it twice", LockSet::from(a.clone()).and(prefixed.lock("a"))),
        ("it has two clients", LockSet::from(a.clone()).and(lock(context, &two, "b"))),
        ("a key is none", one.lock_all(["a", ""])),
        ("a setting is wrong", LockSet::from(a.clone()).and(b.ttl(long))),
    ] {
        let error = soon("try_acquire", set.try_acquire()).await?.err().context(why)?;
        ensure!(error.kind() == ErrorKind::Invalid, "{why}: {error:?}");
    }
    // Another handle of the same client, with a prefix, is no other client.
    let set = LockSet::from(a).and(prefixed.lock("b"));
    let held = soon("try_acquire", set.try_acquire()).await??.granted()?;
    ensure!(held.token("nothing").is_err());
    soon("release", held.release()).await??;
    expect_all_free(context, &one).await
}

async fn a_set_has_locks_of_every_mode(context: &TestContext) -> Result<()> {
    let (one, two) = (context.client().await?, context.client().await?);
    let reader = soon("a reader", lock(context, &one, "a").shared().acquire()).await??;
    let mixed = |client: &Client| {
        LockSet::from(lock(context, client, "b"))
            .and(client.semaphore(context.key("c"), 3).permits(2))
            .and(lock(context, client, "a").shared())
    };
    let held = soon("acquire", mixed(&two).acquire()).await??;
    ensure!(held.token(context.key("c")).is_err(), "permits fence nothing");
    ensure!(held.token(context.key("a"))? != reader.token());
    let attempt = soon("try_acquire", mixed(&one).try_acquire()).await??;
    expect_busy_with(attempt, &context.key("b"))?;
    let permit = soon("a permit", one.semaphore(context.key("c"), 3).acquire()).await??;
    permit.release().await?;
    reader.release().await?;
    soon("release", held.release()).await??;
    expect_all_free(context, &one).await
}
