//! The holder stops: paused past its lease (F03), and giving back what is no longer its own (F04).

use anyhow::Result;

use crate::stage::Stage;

/// A is stopped between its look at the lock and its write. B gets the lock and reads; A wakes up,
/// writes and gives back; C asks. Where A's release deletes B's lock, C comes in, B deletes C's,
/// and so on: the chain reaction.
pub(super) fn pause(stage: &mut Stage<'_>) -> Result<()> {
    if !overtake(stage)? {
        return in_turn(stage);
    }
    stage.write_blind("A")?;
    stage.release("A")?;
    if !stage.attempt("C")?.is_granted() {
        stage.finish_work("B")?;
        stage.enter("C")?;
        return stage.finish_work("C");
    }
    // B does not know that its lock is gone.
    stage.read("C")?;
    stage.finish_work("B")?;
    let again = stage.attempt("A")?.is_granted();
    if again {
        stage.read("A")?;
    }
    stage.finish_work("C")?;
    if again {
        stage.finish_work("A")?;
    }
    Ok(())
}

/// A's lease ends while it is stopped; it wakes up and gives back, while B works.
pub(super) fn wrong_owner(stage: &mut Stage<'_>) -> Result<()> {
    for name in ["A", "B", "C"] {
        stage.client(name)?;
    }
    stage.enter("A")?;
    stage.stop("A", "F04")?;
    // B comes when the lock is free, so that nobody has to wait for it.
    if !stage.freed_within(stage.limit)? {
        stage.ask("B", None)?;
        stage.go_on("A")?;
        return in_turn(stage);
    }
    stage.enter("B")?;
    stage.go_on("A")?;
    stage.release("A")?;
    if !stage.attempt("C")?.is_granted() {
        return stage.finish_work("B");
    }
    stage.read("C")?;
    stage.write("B")?;
    stage.write("C")?;
    stage.release("B")?;
    stage.release("C").map(drop)
}

/// A holds and is stopped past its lease; B holds and has read when A goes on. If nobody gets in
/// while A is stopped, B still waits.
fn overtake(stage: &mut Stage<'_>) -> Result<bool> {
    for name in ["A", "B", "C"] {
        stage.client(name)?;
    }
    stage.enter("A")?;
    stage.stop("A", "F03")?;
    stage.ask("B", None)?;
    let granted = stage.obtain("B")?;
    if granted {
        stage.read("B")?;
    }
    stage.go_on("A")?;
    Ok(granted)
}

/// A lock that lives as long as its holder's connection: B had to wait.
fn in_turn(stage: &mut Stage<'_>) -> Result<()> {
    stage.write_blind("A")?;
    stage.release("A")?;
    stage.expect_grant("B")?;
    stage.read("B")?;
    stage.finish_work("B")
}

/// A's machine sleeps past its lease. When it wakes up, A looks at its lock before it writes. A
/// deadline on a clock that slept too knows nothing of it.
pub(super) fn suspend(stage: &mut Stage<'_>) -> Result<()> {
    stage.client_ahead("A", 0)?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.suspend("A", "F26")?;
    stage.ask("B", None)?;
    let granted = stage.obtain("B")?;
    if granted {
        stage.read("B")?;
    }
    stage.wake("A")?;
    if !granted {
        return in_turn(stage);
    }
    stage.write("A")?;
    stage.finish_work("B")
}
