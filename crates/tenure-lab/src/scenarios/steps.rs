//! Steps that several scenarios share. A holds the lock or acquires it first; B is the client that
//! acquires it next.

use anyhow::{Result, bail};
use tenure_servers::Node;
use tenure_servers::wire::redis::{self, Value};

use crate::runner::{AcquireOutcome, Runner};

/// Starts the clients A and B.
pub(super) fn start_both(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client("A")?;
    runner.start_client("B")
}

/// Starts the clients A and B; A acquires the lock and reads.
pub(super) fn hold(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.acquire_and_read("A")
}

/// B acquires the lock and works, or never gets it.
pub(super) fn next_acquires(runner: &mut Runner<'_>) -> Result<()> {
    runner.acquire("B", None)?;
    next_works(runner)
}

/// B, which waits for the lock already, gets it and works, or never gets it.
pub(super) fn next_works(runner: &mut Runner<'_>) -> Result<()> {
    if runner.wait_granted("B")? {
        runner.read("B")?;
        runner.write_and_release("B")?;
    }
    Ok(())
}

/// A, which acquires the lock already, gets it and works; then B does. Ends early if A never gets
/// it.
pub(super) fn one_after_the_other(runner: &mut Runner<'_>) -> Result<()> {
    if !runner.wait_granted("A")? {
        return Ok(());
    }
    runner.read("A")?;
    runner.write_and_release("A")?;
    next_acquires(runner)
}

/// A has checked its lock and read. If B gets the lock now, both write; else they take turns.
pub(super) fn try_to_overlap(runner: &mut Runner<'_>) -> Result<()> {
    // A server that was hit by a fault needs a moment.
    let mut refused_before = false;
    let outcome = loop {
        match runner.try_acquire("B")? {
            AcquireOutcome::NoResponse => {}
            // The first refusal may be about a connection that B has just lost.
            AcquireOutcome::Refused if !refused_before => refused_before = true,
            outcome => break outcome,
        }
    };
    if outcome.is_granted() {
        return both_write(runner);
    }
    runner.write("A")?;
    runner.release("A")?;
    next_acquires(runner)
}

/// B reads; A, whose last check was before the fault, writes; B writes.
pub(super) fn both_write(runner: &mut Runner<'_>) -> Result<()> {
    runner.read("B")?;
    runner.write_unchecked("A")?;
    runner.write_and_release("B")
}

/// Executes a command of the operator on a Redis.
pub(super) fn redis_command(node: &Node, words: &[&str]) -> Result<Value> {
    match redis::execute(node.port(), words)? {
        Value::Error(reason) => bail!("{}: {reason}", words.join(" ")),
        value => Ok(value),
    }
}
