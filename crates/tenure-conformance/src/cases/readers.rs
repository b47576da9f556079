//! Readers hold together, writers alone, and the queue is in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tenure::backend::{Claim, Mode, Order};
use tenure::{Attempt, Config, ErrorKind, Guard, Lock};
use tokio::task::JoinHandle;

use super::cases;
use crate::context::{
    SOON, TestContext, acquire_free, expect_busy, soon, until, until_waiters, within,
};
use crate::peer::Peer;

cases! { "readers":
    a_mode_that_the_server_lacks_is_refused if |context| !context.info().modes.shared,
    readers_hold_together if has_shared,
    a_writer_waits_for_every_reader if has_shared,
    a_reader_waits_for_a_writer if has_shared,
    a_reader_does_not_overtake_a_waiting_writer if has_order,
    readers_in_a_row_are_granted_together if has_order,
    a_cancelled_writer_lets_the_readers_behind_it_in if has_order,
    a_killed_waiting_writer_lets_the_readers_behind_it_in if |context| {
        has_order(context) && context.url().is_some()
    },
    a_killed_reader_lets_a_writer_in if |context| {
        has_shared(context) && context.url().is_some()
    },
    a_reader_that_expires_frees_only_its_part if has_shared,
    evicting_one_reader_spares_the_others if has_shared,
    releasing_one_reader_twice_spares_the_others if has_shared,
    a_listing_shows_every_holder_and_its_mode if has_shared,
    tokens_of_readers_and_writers_alternate if has_shared,
    a_range_of_tokens_is_never_entered_by_another_grant,
    readers_and_writers_never_mix if has_shared,
}

pub(super) fn has_shared(context: &TestContext) -> bool {
    context.info().modes.shared
}

pub(super) fn has_order(context: &TestContext) -> bool {
    has_shared(context) && context.info().order == Order::Fifo
}

pub(super) async fn lock(context: &TestContext) -> Result<Lock> {
    let ttl = context.info().min_ttl.max(Duration::from_secs(6));
    Ok(context.client().await?.lock(context.key("k")).ttl(ttl))
}

/// Starts an acquire, and waits until it is the last of so many waiters.
pub(super) async fn enqueue(
    lock: &Lock,
    count: usize,
) -> Result<JoinHandle<tenure::Result<Guard>>> {
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(lock, count).await?;
    Ok(waiter)
}

pub(super) async fn granted(
    what: &str,
    waiter: JoinHandle<tenure::Result<Guard>>,
) -> Result<Guard> {
    Ok(soon(what, waiter).await???)
}

async fn a_mode_that_the_server_lacks_is_refused(context: &TestContext) -> Result<()> {
    let lock = lock(context).await?;
    let error = soon("refusal", lock.clone().shared().acquire()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unsupported, "{error}");
    let mut guard = acquire_free(&lock).await?;
    let error = soon("refusal", guard.downgrade()).await?.unwrap_err();
    ensure!(error.kind() == ErrorKind::Unsupported, "{error}");
    ensure!(guard.mode() == Mode::Exclusive);
    guard.release().await?;
    Ok(())
}

async fn readers_hold_together(context: &TestContext) -> Result<()> {
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(acquire_free(&lock(context).await?.shared()).await?);
    }
    // Two of one client, too.
    let client = context.client().await?;
    for _ in 0..2 {
        readers.push(acquire_free(&client.lock(context.key("k")).shared()).await?);
    }
    for reader in &readers {
        ensure!(reader.mode() == Mode::Shared);
        reader.check()?;
    }
    for reader in readers {
        reader.release().await?;
    }
    acquire_free(&lock(context).await?).await?.release().await?;
    Ok(())
}

async fn a_writer_waits_for_every_reader(context: &TestContext) -> Result<()> {
    let one = acquire_free(&lock(context).await?.shared()).await?;
    let two = acquire_free(&lock(context).await?.shared()).await?;
    let lock = lock(context).await?;
    expect_busy(&lock).await?;
    let writer = tokio::spawn(lock.acquire());
    if context.info().order == Order::Fifo {
        until_waiters(&lock, 1).await?;
    }
    two.release().await?;
    // Another response of the server: a grant would have been pushed before it.
    let holding = soon("status", lock.status()).await??.context("a reader holds")?;
    ensure!(holding.holders.len() == 1 && holding.holder().mode == Mode::Shared, "{holding:?}");
    ensure!(!writer.is_finished(), "a writer was granted beside a reader");
    let reader = one.token();
    one.release().await?;
    let writer = granted("the writer's grant", writer).await?;
    ensure!(writer.token() > reader);
    writer.release().await?;
    Ok(())
}

async fn a_reader_waits_for_a_writer(context: &TestContext) -> Result<()> {
    let writer = acquire_free(&lock(context).await?).await?;
    let lock = lock(context).await?.shared();
    let Attempt::Busy(busy) = soon("try", lock.try_acquire()).await?? else {
        bail!("a reader was granted beside a writer");
    };
    ensure!(busy.holder.is_none_or(|holder| holder.mode == Mode::Exclusive));
    let reader = tokio::spawn(lock.acquire());
    if context.info().order == Order::Fifo {
        until_waiters(&lock, 1).await?;
    }
    let before = writer.token();
    writer.release().await?;
    let reader = granted("the reader's grant", reader).await?;
    ensure!(reader.token() > before);
    reader.release().await?;
    Ok(())
}

async fn a_reader_does_not_overtake_a_waiting_writer(context: &TestContext) -> Result<()> {
    let first = acquire_free(&lock(context).await?.shared()).await?;
    let writer = enqueue(&lock(context).await?, 1).await?;
    let late = lock(context).await?.shared();
    expect_busy(&late).await?;
    let reader = enqueue(&late, 2).await?;
    ensure!(!writer.is_finished() && !reader.is_finished());
    first.release().await?;
    let writer = granted("the writer's grant", writer).await?;
    ensure!(!reader.is_finished(), "a reader was granted beside a writer");
    let before = writer.token();
    writer.release().await?;
    let reader = granted("the reader's grant", reader).await?;
    ensure!(reader.token() > before);
    reader.release().await?;
    Ok(())
}

async fn readers_in_a_row_are_granted_together(context: &TestContext) -> Result<()> {
    let writer = acquire_free(&lock(context).await?).await?;
    let mut readers = Vec::new();
    for count in 1..=5 {
        readers.push(enqueue(&lock(context).await?.shared(), count).await?);
    }
    let last = enqueue(&lock(context).await?, 6).await?;
    writer.release().await?;
    // None of them is released before all of them hold.
    let mut held = Vec::new();
    for reader in readers {
        held.push(granted("a reader's grant", reader).await?);
    }
    for reader in &held {
        reader.check()?;
    }
    ensure!(!last.is_finished(), "a writer was granted beside readers");
    for reader in held {
        reader.release().await?;
    }
    granted("the last writer's grant", last).await?.release().await?;
    Ok(())
}

/// A reader behind a writer fits when the writer stops waiting, although no lock was released. With
/// a ttl of 30 s the next request without a wake-up would come after 10 s.
async fn a_cancelled_writer_lets_the_readers_behind_it_in(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let first = acquire_free(&lock.clone().shared()).await?;
    let writer = enqueue(&lock, 1).await?;
    let one = enqueue(&lock.clone().shared(), 2).await?;
    let two = enqueue(&lock.clone().shared(), 3).await?;
    writer.abort();
    let limit = context.wakeup_limit();
    let one = within(limit, "the first reader's grant", one).await???;
    let two = within(limit, "the second reader's grant", two).await???;
    first.check()?;
    for reader in [first, one, two] {
        reader.release().await?;
    }
    Ok(())
}

async fn a_killed_waiting_writer_lets_the_readers_behind_it_in(
    context: &TestContext,
) -> Result<()> {
    let ttl = context.info().min_ttl.max(Duration::from_secs(2));
    let lock = lock(context).await?.shared().ttl(ttl);
    let first = acquire_free(&lock).await?;
    let mut writer = Peer::start(context.url().context("it can be reached by others")?)?;
    writer.send(&format!("acquire {} {}", ttl.as_millis(), context.key("k")))?;
    until_waiters(&lock, 1).await?;
    let reader = enqueue(&lock, 2).await?;
    writer.kill()?;
    let longest = ttl * context.info().max_expiry_ttls + ttl;
    let reader = within(longest, "the reader's grant after kill -9", reader).await???;
    first.check()?;
    first.release().await?;
    reader.release().await?;
    Ok(())
}

async fn a_killed_reader_lets_a_writer_in(context: &TestContext) -> Result<()> {
    let ttl = context.info().min_ttl.max(Duration::from_secs(2));
    let mut reader = Peer::start(context.url().context("it can be reached by others")?)?;
    reader.execute(&format!("shared {} {}", ttl.as_millis(), context.key("k")))?;
    let lock = lock(context).await?.ttl(ttl);
    expect_busy(&lock).await?;
    let writer = tokio::spawn(lock.acquire());
    if context.info().order == Order::Fifo {
        until_waiters(&lock, 1).await?;
    }
    reader.kill()?;
    let longest = ttl * context.info().max_expiry_ttls + ttl;
    within(longest, "the writer's grant after kill -9", writer).await???.release().await?;
    Ok(())
}

async fn a_reader_that_expires_frees_only_its_part(context: &TestContext) -> Result<()> {
    let ttl = context.short_ttl();
    let stays = acquire_free(&lock(context).await?.shared().ttl(ttl)).await?;
    let ends = acquire_free(&lock(context).await?.shared().ttl(ttl).without_renewal()).await?;
    let lock = lock(context).await?;
    let writer = tokio::spawn(lock.acquire());
    soon("the end of a reader", ends.lost()).await?;
    let limit = ttl * context.info().max_expiry_ttls + SOON;
    until(limit, "the end of its part at the server", || async {
        let holding = lock.status().await?;
        Ok(holding.filter(|holding| holding.holders.len() == 1).map(drop))
    })
    .await?;
    ensure!(!writer.is_finished(), "a writer was granted beside a reader");
    stays.check()?;
    stays.release().await?;
    granted("the writer's grant", writer).await?.release().await?;
    Ok(())
}

async fn evicting_one_reader_spares_the_others(context: &TestContext) -> Result<()> {
    let lock = lock(context).await?;
    let stays = acquire_free(&lock.clone().shared()).await?;
    let ends = acquire_free(&context.client().await?.lock(context.key("k")).shared()).await?;
    ensure!(soon("evict", lock.evict(ends.token())).await??, "there was no such grant");
    soon("the loss", ends.lost()).await?;
    ensure!(!soon("evict", lock.evict(ends.token())).await??, "evicted twice");
    stays.check()?;
    expect_busy(&lock).await?;
    stays.release().await?;
    acquire_free(&lock).await?.release().await?;
    Ok(())
}

async fn releasing_one_reader_twice_spares_the_others(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let (one, two) = (reader(context), reader(context));
    for claim in [&one, &two] {
        let attempt = soon("acquire", backend.try_acquire(claim)).await??;
        ensure!(matches!(attempt, Attempt::Granted(_)));
    }
    ensure!(soon("release", backend.release(&one)).await??);
    ensure!(!soon("release", backend.release(&one)).await??);
    expect_busy(&lock(context).await?).await?;
    ensure!(soon("release", backend.release(&two)).await??);
    acquire_free(&lock(context).await?).await?.release().await?;
    Ok(())
}

fn reader(context: &TestContext) -> Claim {
    let mut claim = context.claim("k");
    claim.mode = Mode::Shared;
    claim
}

async fn a_listing_shows_every_holder_and_its_mode(context: &TestContext) -> Result<()> {
    let mut readers = Vec::new();
    for name in ["one", "two"] {
        let client = context.client_with(Config::default().owner(name)).await?;
        readers.push(acquire_free(&client.lock(context.key("k")).shared()).await?);
    }
    let lock = lock(context).await?;
    let holding = soon("status", lock.status()).await??.context("it is held")?;
    let mut names: Vec<_> = holding.holders.iter().map(|holder| holder.owner.clone()).collect();
    names.sort();
    ensure!(names == ["one", "two"], "{holding:?}");
    for holder in &holding.holders {
        ensure!(holder.mode == Mode::Shared, "{holder:?}");
        ensure!(readers.iter().any(|reader| holder.token == Some(reader.token())), "{holder:?}");
    }
    if context.info().order == Order::Fifo {
        let writer = enqueue(&lock, 1).await?;
        let reader = enqueue(&lock.clone().shared(), 2).await?;
        let holding = soon("status", lock.status()).await??.context("it is held")?;
        let modes: Vec<_> = holding.waiters.iter().map(|waiter| waiter.mode).collect();
        ensure!(modes == [Mode::Exclusive, Mode::Shared], "{holding:?}");
        writer.abort();
        reader.abort();
    }
    for reader in readers {
        reader.release().await?;
    }
    Ok(())
}

async fn tokens_of_readers_and_writers_alternate(context: &TestContext) -> Result<()> {
    let (one, two) = (lock(context).await?, lock(context).await?);
    let mut last_writer = acquire_free(&one).await?;
    for _ in 0..4 {
        let before = last_writer.token();
        last_writer.release().await?;
        let a = acquire_free(&one.clone().shared()).await?;
        let b = acquire_free(&two.clone().shared()).await?;
        ensure!(a.token() > before && b.token() > before && a.token() != b.token());
        let highest = a.token().max(b.token());
        a.release().await?;
        b.release().await?;
        last_writer = acquire_free(&two).await?;
        ensure!(last_writer.token() > highest);
    }
    last_writer.release().await?;
    Ok(())
}

async fn a_range_of_tokens_is_never_entered_by_another_grant(context: &TestContext) -> Result<()> {
    let backend = context.backend().await?;
    let mut end = 0;
    for _ in 0..5 {
        let claim = context.claim("k");
        let Attempt::Granted(grant) = soon("acquire", backend.try_acquire(&claim)).await?? else {
            bail!("the key is free");
        };
        ensure!(grant.token.get() > end, "{grant:?} is inside of a range that ends at {end}");
        end = grant.token.get() + u64::from(grant.tokens) - 1;
        ensure!(soon("release", backend.release(&claim)).await??);
    }
    Ok(())
}

/// A pair of numbers that writers keep equal, one after the other, with an await in between.
async fn readers_and_writers_never_mix(context: &TestContext) -> Result<()> {
    let pair = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let mut tasks = Vec::new();
    for number in 0..8_u32 {
        let lock = lock(context).await?;
        let pair = pair.clone();
        tasks.push(tokio::spawn(async move {
            for round in 0..6_u32 {
                if (number + round).is_multiple_of(3) {
                    let guard = lock.acquire().await?;
                    let next = pair.0.load(SeqCst) + 1;
                    pair.0.store(next, SeqCst);
                    tokio::task::yield_now().await;
                    ensure!(pair.0.load(SeqCst) == next && pair.1.load(SeqCst) == next - 1);
                    pair.1.store(next, SeqCst);
                    guard.release().await?;
                } else {
                    let guard = lock.clone().shared().acquire().await?;
                    let seen = pair.0.load(SeqCst);
                    tokio::task::yield_now().await;
                    ensure!(pair.1.load(SeqCst) == seen, "a torn read");
                    guard.release().await?;
                }
            }
            anyhow::Ok(())
        }));
    }
    for task in tasks {
        within(Duration::from_secs(60), "all rounds", task).await???;
    }
    ensure!(pair.0.load(SeqCst) == 16, "lost updates: {}", pair.0.load(SeqCst));
    Ok(())
}
