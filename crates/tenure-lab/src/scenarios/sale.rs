//! Oversell: a shop with three tickets and two clerks, one of whom dozes off between reading how
//! many are sold and writing that one more is.

use anyhow::Result;

use crate::stage::{Stage, Step};

const TICKETS: u64 = 3;

/// Each sale: take the lock, read how many are sold, sell one more if there is one left. A dozes
/// off during its first sale, past its lease, and B goes on selling meanwhile.
pub(super) fn oversell(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.stop("A", "F03")?;
    stage.ask("B", None)?;
    let overtaken = stage.obtain("B")?;
    if overtaken {
        stage.read("B")?;
        stage.go_on("A")?;
        stage.write_blind("A")?;
        stage.write("B")?;
        stage.release("A")?;
    } else {
        stage.go_on("A")?;
        stage.write_blind("A")?;
        stage.release("A")?;
        stage.expect_grant("B")?;
        stage.read("B")?;
        stage.write("B")?;
    }
    stage.release("B")?;
    sell_out(stage)?;
    let sold = stage.sales();
    stage.measure("tickets", TICKETS as f64, "");
    stage.measure("tickets sold", sold as f64, "");
    Ok(())
}

/// Both sell what the register says is left.
fn sell_out(stage: &mut Stage<'_>) -> Result<()> {
    for name in ["A", "B"].into_iter().cycle().take(2 * TICKETS as usize) {
        stage.enter(name)?;
        if stage.plain_value() < TICKETS && stage.write(name)? == Step::Stopped {
            stage.remark(name, "does not sell");
        }
        stage.release(name)?;
    }
    Ok(())
}
