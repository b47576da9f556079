//! What needs real processes: kill -9, SIGSTOP, and fifty of them racing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tenure::backend::{Order, Reach};
use tenure::fence::Fenced;

use super::cases;
use crate::bench::{Bench, soon, take, until_waiters, within};
use crate::peer::Peer;

cases! { "process":
    a_killed_holder_frees_its_lock_within_its_lease if |bench| bench.url().is_some(),
    a_killed_waiter_does_not_hold_up_the_queue if |bench| bench.url().is_some(),
    a_stopped_holder_knows_it_before_any_io_and_is_fenced_out if |bench| bench.url().is_some(),
    a_guard_dropped_at_the_end_of_a_process_is_released if |bench| bench.url().is_some(),
    a_lock_is_handed_from_process_to_process if |bench| bench.url().is_some(),
    racing_processes_count_exactly if |bench| bench.url().is_some(),
}

fn peer(bench: &Bench) -> Result<Peer> {
    Peer::start(bench.url().context("this store can be reached by others")?)
}

async fn a_killed_holder_frees_its_lock_within_its_lease(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let ttl = bench.info().min_ttl.max(Duration::from_secs(2));
    let (key, mut holder) = (bench.key("k"), peer(bench)?);
    let token = holder.acquire(key.as_str(), ttl)?;
    let lock = client.lock(&key).ttl(ttl);
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    holder.kill()?;
    let longest = ttl * bench.info().freed_after + ttl / 2;
    let guard = within(longest, "the waiter's grant after kill -9", waiter).await???;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn a_killed_waiter_does_not_hold_up_the_queue(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let ttl = bench.info().min_ttl.max(Duration::from_secs(2));
    let lock = client.lock(bench.key("k")).ttl(ttl);
    let guard = take(&lock).await?;
    let mut dead = peer(bench)?;
    dead.tell(&format!("acquire {} {}", ttl.as_millis(), bench.key("k")))?;
    until_waiters(&lock, 1).await?;
    let second = tokio::spawn(lock.acquire());
    until_waiters(&lock, 2).await?;
    dead.kill()?;
    guard.release().await?;
    let guard = within(ttl * 2, "the second waiter's grant", second).await???;
    guard.release().await?;
    Ok(())
}

async fn a_stopped_holder_knows_it_before_any_io_and_is_fenced_out(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let ttl = bench.info().min_ttl.max(Duration::from_secs(2));
    let (key, fence, mut holder) = (bench.key("k"), Fenced::new(()), peer(bench)?);
    let stale = holder.acquire(key.as_str(), ttl)?;
    drop(fence.admit(stale)?);
    ensure!(holder.ask("check")?.starts_with("held"));
    holder.signal(Signal::STOP)?;
    let next = soon("the next grant", client.lock(&key).acquire()).await??;
    drop(fence.admit(next.token())?);
    // The question lies in its input already when it wakes up: it answers before it can do any I/O.
    holder.tell("check")?;
    holder.signal(Signal::CONT)?;
    let answer = holder.answer()?;
    ensure!(answer.starts_with("lost"), "a holder stopped past its lease says: {answer}");
    ensure!(fence.admit(stale).is_err(), "the fence let a stale holder in");
    let error = holder.ask("release").unwrap_err();
    ensure!(error.to_string().contains("lost"), "{error}");
    ensure!(next.check().is_ok(), "the stale release hurt the next holder");
    next.release().await?;
    Ok(())
}

/// `main` returns with a guard in its hands: the lock must not have to expire (its ttl is a
/// minute).
async fn a_guard_dropped_at_the_end_of_a_process_is_released(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    for round in 0..5 {
        let mut holder = peer(bench)?;
        holder.acquire(bench.key("k").as_str(), Duration::from_secs(60))?;
        if round % 2 == 0 {
            holder.ask("drop")?;
        }
        holder.finish()?;
        let lock = client.lock(bench.key("k"));
        within(Duration::from_secs(3), "the lock", lock.acquire()).await??.release().await?;
    }
    Ok(())
}

async fn a_lock_is_handed_from_process_to_process(bench: &Bench) -> Result<()> {
    let client = bench.client().await?;
    let lock = client.lock(bench.key("k"));
    let mut other = peer(bench)?;
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let guard = soon("acquire", lock.acquire()).await??;
        other.tell(&format!("acquire 30000 {}", bench.key("k")))?;
        until_waiters(&lock, 1).await?;
        let start = Instant::now();
        guard.release().await?;
        other.answer()?;
        slowest = slowest.max(start.elapsed());
        other.ask("release")?;
    }
    // The next poll would come after seconds: this shows that somebody rang.
    ensure!(slowest < Duration::from_millis(900), "a hand-over took {slowest:?}");
    Ok(())
}

async fn racing_processes_count_exactly(bench: &Bench) -> Result<()> {
    // Over a network every grant takes some milliseconds, and without a queue many of them are
    // spent on asking in vain.
    let (processes, rounds) = match (bench.info().reach, bench.info().order) {
        (Reach::Network, Order::Fifo) => (50, 20),
        (Reach::Network, _) => (8, 20),
        _ => (50, 200),
    };
    let folder = tempfile::tempdir()?;
    let counter = folder.path().join("counter");
    std::fs::write(&counter, "0 0")?;
    let mut peers = (0..processes).map(|_| peer(bench)).collect::<Result<Vec<_>>>()?;
    for peer in &mut peers {
        peer.tell(&format!("race {rounds} {} {}", counter.display(), bench.key("k")))?;
    }
    let start = Instant::now();
    let answers = tokio::task::spawn_blocking(move || {
        peers.iter_mut().map(Peer::answer).collect::<Result<Vec<_>>>()
    });
    let answers = within(Duration::from_secs(290), "the race", answers).await???;
    let total = start.elapsed();
    let text = std::fs::read_to_string(&counter)?;
    let count: u64 = text.split(' ').next().context("a count")?.parse()?;
    ensure!(count == processes * rounds, "{count} instead of {}", processes * rounds);
    let longest = answers
        .iter()
        .map(|wait| wait.parse::<u128>())
        .try_fold(0, |longest, wait| wait.map(|wait| longest.max(wait)))?;
    // Fair means about one hold of everybody else; a starved one would wait for most of the race.
    let fair = bench.info().order != Order::Fifo || longest < total.as_millis() / 2;
    ensure!(fair, "one waited {longest} ms of {total:?}");
    Ok(())
}
