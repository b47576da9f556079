//! A request that is repeated, and whose first copy is executed last (F31).

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::foreign_transaction::ForeignTransaction;
use super::steps::{next_works, start_both};
use crate::runner::{Runner, SERVER};

/// How often the scenario is repeated. The first copy is the last in about half of the rounds.
const ROUNDS: u32 = 8;
/// How often the server is queried for waiting statements.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How exactly the lab sees the end of a lease at the server and the moment of a grant, in
/// nanoseconds. The fault shortens a lease by a quarter.
const MARGIN: u64 = 150_000_000;

/// A foreign transaction has the row of a free lock. A's request waits for it at the server, and A,
/// without a response, repeats it. Both are executed when the row is free, in an order that the
/// server chooses. If the first copy is the last, it must not shorten the lease that the second
/// was granted: B would get the lock while A, by its own deadline, still holds it.
///
/// As the order is the server's choice, it is tried until a lease was shortened, at most
/// [`ROUNDS`] times.
pub(super) fn repeat_last(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.warm_up("A")?;
    let mut transaction = ForeignTransaction::connect(runner)?;
    let mut shortened = false;
    for round in 1..=ROUNDS {
        shortened = one_round(runner, &mut transaction)?;
        if shortened || round == ROUNDS {
            runner.measure("rounds", f64::from(round), "");
            break;
        }
        runner.release("A")?;
    }
    runner.read("A")?;
    runner.acquire("B", None)?;
    if !shortened {
        runner.write_and_release("A")?;
        return next_works(runner);
    }
    if runner.wait_granted("B")? {
        runner.read("B")?;
    }
    runner.write("A")?;
    runner.write_and_release("B")?;
    runner.release("A").map(drop)
}

/// A is granted the lock after a repeated request: whether the server will end the lease before A's
/// own deadline.
fn one_round(runner: &mut Runner<'_>, transaction: &mut ForeignTransaction) -> Result<bool> {
    runner.begin_fault("F31", "a foreign transaction locks the row of the lock", SERVER);
    transaction.lock_row(&runner.key.clone())?;
    runner.acquire_fixed("A")?;
    // Until two copies wait, or the first was cancelled before the second was sent.
    let end = Instant::now() + runner.lease * 2 / 5;
    while transaction.waiting()? < 2 && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
    transaction.commit()?;
    runner.end_fault("the transaction ends", SERVER);
    runner.expect_grant("A")?;
    let end = Instant::now() + runner.lease / 4;
    while transaction.waiting()? > 0 && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
    let (_, deadline) = runner.last_grant("A").context("the lock was not granted")?;
    let expiry =
        runner.server_expiry()?.context("the server does not show the end of the lease")?;
    Ok(expiry + MARGIN < deadline)
}
