//! What needs real processes: kill -9, SIGSTOP, and fifty of them racing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tenure::backend::{Order, Reach};
use tenure::fence::Fenced;

use super::cases;
use crate::context::{TestContext, acquire_free, soon, until_waiters, within};
use crate::peer::Peer;

cases! { "process":
    a_killed_holder_frees_its_lock_within_its_lease if |context| context.url().is_some(),
    a_killed_waiter_does_not_hold_up_the_queue if |context| context.url().is_some(),
    a_stopped_holder_knows_it_before_any_io_and_is_fenced_out if |context| context.url().is_some(),
    a_guard_dropped_at_the_end_of_a_process_is_released if |context| context.url().is_some(),
    a_lock_is_handed_from_process_to_process if |context| context.url().is_some(),
    racing_processes_count_exactly if |context| context.url().is_some(),
    racing_readers_see_no_torn_pair if |context| {
        context.url().is_some() && context.info().modes.shared
    },
}

fn peer(context: &TestContext) -> Result<Peer> {
    Peer::start(context.url().context("this store can be reached by others")?)
}

async fn a_killed_holder_frees_its_lock_within_its_lease(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let ttl = context.info().min_ttl.max(Duration::from_secs(2));
    let key = context.key("k");
    let mut holder = peer(context)?;
    let token = holder.acquire(key.as_str(), ttl)?;
    let lock = client.lock(&key).ttl(ttl);
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 1).await?;
    holder.kill()?;
    let longest = ttl * context.info().max_expiry_ttls + ttl / 2;
    let guard = within(longest, "the waiter's grant after kill -9", waiter).await???;
    ensure!(guard.token() > token);
    guard.release().await?;
    Ok(())
}

async fn a_killed_waiter_does_not_hold_up_the_queue(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let ttl = context.info().min_ttl.max(Duration::from_secs(2));
    let lock = client.lock(context.key("k")).ttl(ttl);
    let guard = acquire_free(&lock).await?;
    let mut dead = peer(context)?;
    dead.send(&format!("acquire {} {}", ttl.as_millis(), context.key("k")))?;
    until_waiters(&lock, 1).await?;
    let second = tokio::spawn(lock.acquire());
    until_waiters(&lock, 2).await?;
    dead.kill()?;
    guard.release().await?;
    let guard = within(ttl * 2, "the second waiter's grant", second).await???;
    guard.release().await?;
    Ok(())
}

async fn a_stopped_holder_knows_it_before_any_io_and_is_fenced_out(
    context: &TestContext,
) -> Result<()> {
    let client = context.client().await?;
    let ttl = context.info().min_ttl.max(Duration::from_secs(2));
    let key = context.key("k");
    let fence = Fenced::new(());
    let mut holder = peer(context)?;
    let stale = holder.acquire(key.as_str(), ttl)?;
    drop(fence.admit(stale)?);
    ensure!(holder.execute("check")?.starts_with("held"));
    holder.signal(Signal::STOP)?;
    let next = soon("the next grant", client.lock(&key).acquire()).await??;
    drop(fence.admit(next.token())?);
    // The command is in its input already when it continues: it responds before it can do any I/O.
    holder.send("check")?;
    holder.signal(Signal::CONT)?;
    let response = holder.response()?;
    ensure!(response.starts_with("lost"), "a holder stopped past its lease says: {response}");
    ensure!(fence.admit(stale).is_err(), "the fence let a stale holder in");
    let error = holder.execute("release").unwrap_err();
    ensure!(error.to_string().contains("lost"), "{error}");
    ensure!(next.check().is_ok(), "the stale release hurt the next holder");
    next.release().await?;
    Ok(())
}

/// `main` returns with a guard in its hands: the lock must not have to expire (its ttl is a
/// minute).
async fn a_guard_dropped_at_the_end_of_a_process_is_released(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    for round in 0..5 {
        let mut holder = peer(context)?;
        holder.acquire(context.key("k").as_str(), Duration::from_secs(60))?;
        if round % 2 == 0 {
            holder.execute("drop")?;
        }
        holder.finish()?;
        let lock = client.lock(context.key("k"));
        within(Duration::from_secs(3), "the lock", lock.acquire()).await??.release().await?;
    }
    Ok(())
}

async fn a_lock_is_handed_from_process_to_process(context: &TestContext) -> Result<()> {
    let client = context.client().await?;
    let lock = client.lock(context.key("k"));
    let mut other = peer(context)?;
    let mut took = Vec::new();
    for _ in 0..10 {
        let guard = soon("acquire", lock.acquire()).await??;
        other.send(&format!("acquire 30000 {}", context.key("k")))?;
        until_waiters(&lock, 1).await?;
        let start = Instant::now();
        guard.release().await?;
        other.response()?;
        took.push(start.elapsed());
        other.execute("release")?;
    }
    // The next poll would come after seconds: this shows that the waiter was woken. Two of them may
    // be slow, because the machine can stall.
    took.sort();
    ensure!(took[7] < Duration::from_millis(900), "handoffs took {took:?}");
    Ok(())
}

async fn racing_processes_count_exactly(context: &TestContext) -> Result<()> {
    // Over a network every grant takes some milliseconds, and without a queue many of them are
    // spent on requests that find the lock busy.
    let (processes, rounds) = match (context.info().reach, context.info().order) {
        (Reach::Network, Order::Fifo) => (50, 20),
        (Reach::Network, _) => (8, 20),
        _ => (50, 200),
    };
    let folder = tempfile::tempdir()?;
    let counter = folder.path().join("counter");
    std::fs::write(&counter, "0 0.")?;
    let mut peers = (0..processes).map(|_| peer(context)).collect::<Result<Vec<_>>>()?;
    for peer in &mut peers {
        peer.send(&format!("race {rounds} {} {}", counter.display(), context.key("k")))?;
    }
    let responses = tokio::task::spawn_blocking(move || {
        peers.iter_mut().map(Peer::response).collect::<Result<Vec<_>>>()
    });
    let responses = within(Duration::from_secs(290), "the race", responses).await???;
    let text = std::fs::read_to_string(&counter)?;
    let count: u64 = text.split(' ').next().context("a count")?.parse()?;
    ensure!(count == processes * rounds, "{count} instead of {}", processes * rounds);
    let most_overtakes = responses
        .iter()
        .map(|grants| grants.parse::<u64>())
        .try_fold(0, |most, grants| grants.map(|grants| most.max(grants)))?;
    // Fair means one grant to every other process during a wait, and a few more before the request
    // reaches the queue. Without a queue, several times as many pass by the unluckiest one.
    let fair = context.info().order != Order::Fifo || most_overtakes <= 2 * processes;
    ensure!(fair, "{most_overtakes} of {count} grants passed by one waiter");
    Ok(())
}

async fn racing_readers_see_no_torn_pair(context: &TestContext) -> Result<()> {
    let (processes, rounds) = match context.info().order {
        Order::Fifo => (50, 6),
        _ => (8, 6),
    };
    let folder = tempfile::tempdir()?;
    let pair = folder.path().join("pair");
    std::fs::write(&pair, "0 0.")?;
    let mut peers = (0..processes).map(|_| peer(context)).collect::<Result<Vec<_>>>()?;
    for (number, peer) in peers.iter_mut().enumerate() {
        let (pair, key) = (pair.display(), context.key("k"));
        peer.send(&format!("race-pair {number} {rounds} {pair} {key}"))?;
    }
    let responses = tokio::task::spawn_blocking(move || {
        peers.iter_mut().map(Peer::response).collect::<Result<Vec<_>>>()
    });
    let responses = within(Duration::from_secs(290), "the race", responses).await???;
    let written = responses
        .iter()
        .map(|writes| writes.parse::<u64>())
        .try_fold(0, |sum, writes| writes.map(|writes| sum + writes))?;
    let text = std::fs::read_to_string(&pair)?;
    ensure!(text == format!("{written} {written}."), "{text} after {written} writes");
    Ok(())
}
