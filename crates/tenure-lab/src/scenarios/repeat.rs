//! A request that is repeated, and whose first copy arrives last (F31).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::blocker::Blocker;
use super::crash::take_over;
use crate::stage::{SERVER, Stage};

/// A foreign transaction has the row of a free lock. A's request waits for it at the server, and
/// A, without a response, repeats it. Both go on when the row is free, in an order that nobody
/// knows. If the first copy is the last, it must not shorten what the second was granted: B would
/// get the lock while A, by its own deadline, holds it.
///
/// The order is the server's choice, so it is played until the first copy was the last, and a few
/// times more if it never harms.
pub(super) fn arrives_last(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.warm("A")?;
    let mut blocker = Blocker::open(stage)?;
    let mut shortened = false;
    for round in 1..=ROUNDS {
        shortened = one_round(stage, &mut blocker)?;
        if shortened || round == ROUNDS {
            stage.measure("rounds", f64::from(round), "");
            break;
        }
        stage.release("A")?;
    }
    stage.read("A")?;
    stage.ask("B", None)?;
    if !shortened {
        stage.finish_work("A")?;
        return take_over(stage);
    }
    if stage.obtain("B")? {
        stage.read("B")?;
    }
    stage.write("A")?;
    stage.finish_work("B")?;
    stage.release("A").map(drop)
}

/// A is granted its lock after a repeated request: whether the server will end its lease before A
/// does.
fn one_round(stage: &mut Stage<'_>, blocker: &mut Blocker) -> Result<bool> {
    stage.fault("F31", "a foreign transaction locks the row of the lock", SERVER);
    blocker.block(&stage.key.clone())?;
    stage.acquire_fixed("A")?;
    // Two copies wait, or the first was called back before the second was sent.
    let end = Instant::now() + stage.lease * 2 / 5;
    while blocker.waiting()? < 2 && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    blocker.unblock()?;
    stage.healed("the transaction ends", SERVER);
    stage.expect_grant("A")?;
    let end = Instant::now() + stage.lease / 4;
    while blocker.waiting()? > 0 && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    let (_, deadline) = stage.granted("A").context("nothing was granted")?;
    let until = stage.server_until()?.context("the server does not say when it ends")?;
    Ok(until + MARGIN < deadline)
}

/// The first copy is the last in about half of the rounds.
const ROUNDS: u32 = 8;
/// How often the server is asked who waits.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How exactly the lab sees when the server will end a lease, and a grant is told: a fault shortens
/// it by a quarter of the lease.
const MARGIN: u64 = 150_000_000;
