//! The network between a client and its server: F10 to F14.

use std::ops::Range;

use anyhow::Result;
use tenure_servers::Proxy;

use super::crash::take_over;
use crate::network;
use crate::stage::Stage;

/// The holder is cut off from the server, but not from what the lock protects.
pub(super) fn partition(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.fault("F10", "A is cut off from the server", "A");
    stage.link("A")?.cut()?;
    let granted = overtake(stage)?;
    stage.link("A")?.heal()?;
    recover(stage, granted)
}

/// The same by the loss of packets, so that the server's own kernel sees that nobody is there.
pub(super) fn packets_lost(stage: &mut Stage<'_>) -> Result<()> {
    let link = stage.rig.link_from(APART)?;
    stage.client_on("A", link, &[])?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.fault("F10", "packets between A and the server are lost", "A");
    network::lose(APART)?;
    let granted = overtake(stage)?;
    network::pass(APART)?;
    recover(stage, granted)
}

/// B gets the lock and reads, or does not get it; A writes.
fn overtake(stage: &mut Stage<'_>) -> Result<bool> {
    stage.ask("B", None)?;
    let granted = stage.obtain("B")?;
    if granted {
        stage.read("B")?;
    }
    stage.write("A")?;
    Ok(granted)
}

fn recover(stage: &mut Stage<'_>, granted: bool) -> Result<()> {
    stage.healed("A reaches the server again", "A");
    if !granted {
        stage.release("A")?;
        stage.expect_grant("B")?;
        stage.read("B")?;
    }
    stage.finish_work("B")
}

/// The holder's requests arrive, answers do not: is the lock kept for one who cannot know it?
pub(super) fn answers_lost(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.fault("F11", "A's requests arrive, answers do not", "A");
    stage.link("A")?.cut_answers()?;
    stage.ask("B", None)?;
    take_over(stage)
}

/// The answer to A's ask comes when its lease is over and B holds.
pub(super) fn late_grant(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.warm("A")?;
    stage.fault("F12", "answers to A are held up", "A");
    stage.link("A")?.cut_answers()?;
    stage.ask("A", None)?;
    stage.wait_held()?;
    stage.ask("B", None)?;
    let granted = stage.obtain("B")?;
    if granted {
        stage.read("B")?;
    }
    stage.link("A")?.heal()?;
    stage.healed("A's answers arrive", "A");
    if granted && stage.answer_within("A", stage.lease / 2)?.is_some_and(|a| a.is_granted()) {
        stage.read("A")?;
        stage.write("A")?;
        return stage.finish_work("B");
    }
    if granted {
        stage.finish_work("B")?;
    }
    while !stage.answer("A")?.is_granted() {
        stage.ask("A", None)?;
    }
    stage.read("A")?;
    stage.finish_work("A")?;
    if !granted {
        stage.expect_grant("B")?;
        stage.read("B")?;
        stage.finish_work("B")?;
    }
    Ok(())
}

/// The answer to A's ask is lost with its connection. A asks again; then B has its turn.
pub(super) fn answer_lost(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.warm("A")?;
    stage.blow("F13", "the answer to A's ask is lost", "A");
    stage.link("A")?.each(|proxy| proxy.swallow_answer(1))?;
    stage.ask("A", None)?;
    if !stage.obtain("A")? {
        return Ok(());
    }
    stage.read("A")?;
    stage.finish_work("A")?;
    stage.ask("B", None)?;
    take_over(stage)
}

/// B waits; the message that wakes it is lost with its connection.
pub(super) fn wakeup_lost(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")?;
    stage.ask("B", None)?;
    stage.wait_waiting()?;
    stage.blow("F14", "what B should hear is lost with its connections", "B");
    stage.link("B")?.cut_answers()?;
    stage.finish_work("A")?;
    stage.link("B")?.each(Proxy::reset)?;
    stage.link("B")?.heal()?;
    take_over(stage)
}

/// The ports that A's packets come from: above those that the kernel gives to the others.
const APART: Range<u16> = 61_000..65_000;
