//! Clients that are killed or cancel: between request and response (F01), while they hold (F02), by
//! dropping their acquire (F21), and in the queue (F23).

use anyhow::Result;

use super::steps::{next_acquires, next_works, start_both};
use crate::runner::Runner;

/// A's request takes effect, and A is killed before the response arrives. B acquires the lock.
pub(super) fn between(runner: &mut Runner<'_>) -> Result<()> {
    acquire_without_response(runner, "F01")?;
    runner.kill("A", "F01")?;
    next_acquires(runner)
}

/// A's request takes effect, and A drops the future before the response arrives.
pub(super) fn dropped(runner: &mut Runner<'_>) -> Result<()> {
    acquire_without_response(runner, "F21")?;
    runner.cancel("A")?;
    runner.route("A")?.heal()?;
    runner.end_fault("responses reach A again", "A");
    next_acquires(runner)
}

/// The holder is killed while B waits for the lock.
pub(super) fn killed(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.acquire_and_read("A")?;
    runner.acquire("B", None)?;
    runner.kill("A", "F02")?;
    next_works(runner)
}

/// Three waiters are killed in the queue; B, behind them, waits for the lock when A releases it.
pub(super) fn dead_waiters(runner: &mut Runner<'_>) -> Result<()> {
    for name in ["A", "B", "W1", "W2", "W3"] {
        runner.start_client(name)?;
    }
    runner.acquire_and_read("A")?;
    for name in ["W1", "W2", "W3"] {
        runner.acquire(name, None)?;
        runner.wait_for_waiter()?;
    }
    for name in ["W1", "W2", "W3"] {
        runner.kill(name, "F23")?;
    }
    runner.acquire("B", None)?;
    runner.wait_for_waiter()?;
    runner.write_and_release("A")?;
    next_works(runner)
}

/// A's request arrives and takes effect; the response does not arrive.
fn acquire_without_response(runner: &mut Runner<'_>, id: &str) -> Result<()> {
    start_both(runner)?;
    runner.warm_up("A")?;
    runner.begin_fault(id, "A's requests arrive, responses do not", "A");
    runner.route("A")?.cut_responses()?;
    runner.acquire("A", None)?;
    runner.wait_held()
}
