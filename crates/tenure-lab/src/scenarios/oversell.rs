//! Oversell: a shop with three tickets and two clerks. One clerk is paused (SIGSTOP) between
//! reading how many tickets are sold and writing that one more is (F03).

use anyhow::Result;

use crate::runner::{Runner, StepOutcome};

const TICKETS: u64 = 3;

/// Each sale: acquire the lock, read how many tickets are sold, and sell one more if there is one
/// left. A is paused past its lease during its first sale, while B goes on selling.
pub(super) fn oversell(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client("A")?;
    runner.start_client("B")?;
    runner.acquire_and_read("A")?;
    runner.pause("A", "F03")?;
    runner.acquire("B", None)?;
    if runner.wait_granted("B")? {
        runner.read("B")?;
        runner.resume("A")?;
        runner.write_unchecked("A")?;
        runner.write("B")?;
        runner.release("A")?;
    } else {
        runner.resume("A")?;
        runner.write_unchecked("A")?;
        runner.release("A")?;
        runner.expect_grant("B")?;
        runner.read("B")?;
        runner.write("B")?;
    }
    runner.release("B")?;
    sell_out(runner)?;
    let sold = runner.plain_writes();
    runner.measure("tickets", TICKETS as f64, "");
    runner.measure("tickets sold", sold as f64, "");
    Ok(())
}

/// Both sell what is left by the register.
fn sell_out(runner: &mut Runner<'_>) -> Result<()> {
    for name in ["A", "B"].into_iter().cycle().take(2 * TICKETS as usize) {
        runner.acquire_and_read(name)?;
        if runner.plain_value() < TICKETS && runner.write(name)? == StepOutcome::Stopped {
            runner.note(name, "does not sell");
        }
        runner.release(name)?;
    }
    Ok(())
}
