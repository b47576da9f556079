//! Clients that die or change their mind: F01, F02, F21, F23.

use anyhow::Result;

use crate::stage::Stage;

/// A asks, its request takes effect, and it dies before it hears the answer. B wants the lock.
pub(super) fn between(stage: &mut Stage<'_>) -> Result<()> {
    ask_unheard(stage, "F01")?;
    stage.kill("A", "F01")?;
    recover(stage)
}

/// A asks, its request takes effect, and A drops the future before it hears the answer.
pub(super) fn dropped(stage: &mut Stage<'_>) -> Result<()> {
    ask_unheard(stage, "F21")?;
    stage.abandon("A")?;
    stage.link("A")?.heal()?;
    stage.healed("A hears answers again", "A");
    recover(stage)
}

/// The holder is killed; the next one waits already.
pub(super) fn killed(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.ask("B", None)?;
    stage.kill("A", "F02")?;
    take_over(stage)
}

/// Three waiters are killed in the queue; the one behind them wants the lock when A gives it back.
pub(super) fn dead_waiters(stage: &mut Stage<'_>) -> Result<()> {
    for name in ["A", "B", "W1", "W2", "W3"] {
        stage.client(name)?;
    }
    stage.enter("A")?;
    for name in ["W1", "W2", "W3"] {
        stage.ask(name, None)?;
        stage.wait_waiting()?;
    }
    for name in ["W1", "W2", "W3"] {
        stage.kill(name, "F23")?;
    }
    stage.ask("B", None)?;
    stage.wait_waiting()?;
    stage.finish_work("A")?;
    take_over(stage)
}

/// A's request arrives and takes effect, the answer does not come.
fn ask_unheard(stage: &mut Stage<'_>, id: &str) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.warm("A")?;
    stage.fault(id, "A's requests arrive, answers do not", "A");
    stage.link("A")?.cut_answers()?;
    stage.ask("A", None)?;
    stage.wait_held()
}

fn recover(stage: &mut Stage<'_>) -> Result<()> {
    stage.ask("B", None)?;
    take_over(stage)
}

/// B gets the lock and works, or never gets it.
pub(super) fn take_over(stage: &mut Stage<'_>) -> Result<()> {
    if stage.obtain("B")? {
        stage.read("B")?;
        stage.finish_work("B")?;
    }
    Ok(())
}
