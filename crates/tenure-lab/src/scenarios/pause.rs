//! The holder is stopped: paused past its lease (F03), releasing a lock that is no longer its own
//! (F04), and suspended with its machine (F26).

use anyhow::Result;

use crate::runner::Runner;

/// A is stopped between its check of the lock and its write. B gets the lock and reads; A goes on,
/// writes and releases; C tries to acquire. Where A's release deletes B's lock, C gets it beside B,
/// then B deletes C's lock, and so on: a chain reaction.
pub(super) fn pause(runner: &mut Runner<'_>) -> Result<()> {
    if !pause_past_the_lease(runner)? {
        return take_turns(runner);
    }
    runner.write_unchecked("A")?;
    runner.release("A")?;
    if !runner.try_acquire("C")?.is_granted() {
        runner.write_and_release("B")?;
        runner.acquire_and_read("C")?;
        return runner.write_and_release("C");
    }
    // B does not know that its lock was deleted.
    runner.read("C")?;
    runner.write_and_release("B")?;
    let again = runner.try_acquire("A")?.is_granted();
    if again {
        runner.read("A")?;
    }
    runner.write_and_release("C")?;
    if again {
        runner.write_and_release("A")?;
    }
    Ok(())
}

/// A's lease ends while A is stopped; A goes on and releases while B works.
pub(super) fn wrong_owner(runner: &mut Runner<'_>) -> Result<()> {
    for name in ["A", "B", "C"] {
        runner.start_client(name)?;
    }
    runner.acquire_and_read("A")?;
    runner.pause("A", "F04")?;
    // B begins when the lock is free, so that no wait for the end of the lease is measured.
    if !runner.free_within(runner.limit)? {
        runner.acquire("B", None)?;
        runner.resume("A")?;
        return take_turns(runner);
    }
    runner.acquire_and_read("B")?;
    runner.resume("A")?;
    runner.release("A")?;
    if !runner.try_acquire("C")?.is_granted() {
        return runner.write_and_release("B");
    }
    runner.read("C")?;
    runner.write("B")?;
    runner.write("C")?;
    runner.release("B")?;
    runner.release("C").map(drop)
}

/// A's machine is suspended past A's lease. When it wakes up, A checks its lock before it writes. A
/// deadline on a clock that was suspended too does not notice.
pub(super) fn suspend(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client_with_clock("A", 0)?;
    runner.start_client("B")?;
    runner.acquire_and_read("A")?;
    runner.suspend("A", "F26")?;
    let granted = next_reads(runner)?;
    runner.wake("A")?;
    if !granted {
        return take_turns(runner);
    }
    runner.write("A")?;
    runner.write_and_release("B")
}

/// A holds and is stopped past its lease; B gets the lock and reads before A goes on. Returns
/// whether B got it; else B still waits.
fn pause_past_the_lease(runner: &mut Runner<'_>) -> Result<bool> {
    for name in ["A", "B", "C"] {
        runner.start_client(name)?;
    }
    runner.acquire_and_read("A")?;
    runner.pause("A", "F03")?;
    let granted = next_reads(runner)?;
    runner.resume("A")?;
    Ok(granted)
}

/// B gets the lock and reads, or does not get it: whether it did.
fn next_reads(runner: &mut Runner<'_>) -> Result<bool> {
    runner.acquire("B", None)?;
    let granted = runner.wait_granted("B")?;
    if granted {
        runner.read("B")?;
    }
    Ok(granted)
}

/// The lock lasts as long as its holder's connection: B has to wait for A.
fn take_turns(runner: &mut Runner<'_>) -> Result<()> {
    runner.write_unchecked("A")?;
    runner.release("A")?;
    runner.expect_grant("B")?;
    runner.read("B")?;
    runner.write_and_release("B")
}
