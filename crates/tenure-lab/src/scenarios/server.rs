//! The server forgets, jumps in time, or loses its leader: F06 to F09, F15, F17, F20.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_servers::Node;
use tenure_servers::wire::redis::{Value, ask};

use super::crash::take_over;
use crate::stage::{Answer, SERVER, Stage};

/// The server restarts and has forgotten everything that it did not write down.
pub(super) fn amnesia(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    stage.blow("F06", "the server is killed and starts again without its memory", SERVER);
    let cluster = stage.rig.cluster()?;
    // Of Redlock's five a majority.
    let hit = cluster.nodes().len() / 2 + 1;
    for node in &cluster.nodes()[..hit] {
        node.kill()?;
    }
    for node in &cluster.nodes()[..hit] {
        node.restart()?;
    }
    cluster.wait_ready()?;
    overlap(stage)
}

/// The server's clock jumps forward, past the end of every lease.
pub(super) fn clock_forward(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    stage.blow("F07", "the server's clock jumps forward by an hour", SERVER);
    shift(stage, 3_600_000)?;
    overlap(stage)
}

/// The server's clock jumps back; the holder dies, and its lease ends in an hour.
pub(super) fn clock_back(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    stage.blow("F08", "the server's clock jumps back by an hour", SERVER);
    shift(stage, -3_600_000)?;
    stage.kill("A", "F08")?;
    stage.ask("B", None)?;
    take_over(stage)
}

fn shift(stage: &Stage<'_>, offset_ms: i64) -> Result<()> {
    let cluster = stage.rig.cluster()?;
    let hit = cluster.nodes().len() / 2 + 1;
    cluster.nodes()[..hit].iter().try_for_each(|node| node.shift_clock(offset_ms))?;
    Ok(())
}

/// B's wall clock is an hour ahead of A's.
pub(super) fn client_clocks(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client_ahead("B", 3_600_000)?;
    stage.blow("F09", "B's clock is an hour ahead", "B");
    stage.enter("A")?;
    overlap(stage)
}

/// The lock is taken away from its holder, who lives.
pub(super) fn session_killed(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    let token = stage.token("A");
    stage.blow("F15", "A's lock is taken away from it", "A");
    stage.evict(token)?;
    let since = stage.now();
    // Some servers take a moment to end a connection.
    stage.ask("B", None)?;
    if stage.obtain("B")? {
        both_write(stage)?;
    }
    if stage.lock.is_own() && stage.lost_within("A", Duration::from_secs(5))? {
        let told = stage.lost_at("A").unwrap_or(since).saturating_sub(since);
        stage.measure("loss told after", told as f64 / 1e6, "ms");
    }
    Ok(())
}

/// The server runs out of memory and throws away what ends soonest: locks.
pub(super) fn eviction(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    stage.blow("F20", "the server is full and evicts keys", SERVER);
    for node in stage.rig.cluster()?.members() {
        fill(node)?;
    }
    overlap(stage)
}

fn fill(node: &Node) -> Result<()> {
    let tell = |words: &[&str]| -> Result<Value> { Ok(ask(node.port(), words)?) };
    tell(&["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"])?;
    tell(&["CONFIG", "SET", "maxmemory", "4mb"])?;
    let filler = "x".repeat(10_000);
    for number in 0..2000 {
        // Refused when nothing is left that may be thrown away.
        if let Value::Error(_) = tell(&["SET", &format!("filler:{number}"), &filler])? {
            return Ok(());
        }
    }
    bail!("the server never became full")
}

/// The holder dies, and the leader of the servers with it.
pub(super) fn leader_lost(stage: &mut Stage<'_>) -> Result<()> {
    hold(stage)?;
    stage.ask("B", None)?;
    let cluster = stage.rig.cluster()?;
    let leader = cluster.leader()?.context("no leader")?;
    stage.kill("A", "F17")?;
    stage.blow("F17", "the leader dies too", SERVER);
    leader.kill()?;
    take_over(stage)
}

fn hold(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.enter("A")
}

/// A has looked at its lock and read. If B gets in now, both write.
pub(super) fn overlap(stage: &mut Stage<'_>) -> Result<()> {
    // A server that was hurt needs a moment; whoever is busy is told so at once.
    let mut again = true;
    let answer = loop {
        match stage.attempt("B")? {
            Answer::Unanswered => {}
            // Over a connection that B has just lost, busy may only mean that it was lost.
            Answer::Refused if again => again = false,
            answer => break answer,
        }
    };
    if !answer.is_granted() {
        stage.write("A")?;
        stage.release("A")?;
        stage.ask("B", None)?;
        return take_over(stage);
    }
    both_write(stage)
}

/// B reads, A writes as one who looked before, and B writes.
pub(super) fn both_write(stage: &mut Stage<'_>) -> Result<()> {
    stage.read("B")?;
    stage.write_blind("A")?;
    stage.finish_work("B")
}
