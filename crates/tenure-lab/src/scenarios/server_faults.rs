//! Faults of the server: lost data (F06), a clock that jumps (F07, F08), an evicted holder (F15), a
//! lost leader (F17) and a full memory (F20); and a client's clock that is wrong (F09).

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_servers::Node;
use tenure_servers::wire::redis::{self, Value};

use super::steps::{both_write, hold, next_acquires, next_works, try_to_overlap};
use crate::runner::{Runner, SERVER};

const HOUR_MS: i64 = 3_600_000;

/// The server restarts and has lost everything that it did not write to disk.
pub(super) fn amnesia(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.fault_once("F06", "the server is killed and starts again without its data", SERVER);
    let cluster = runner.setup.cluster()?;
    let majority = majority(cluster.nodes());
    for node in majority {
        node.kill()?;
    }
    for node in majority {
        node.restart()?;
    }
    cluster.wait_ready()?;
    try_to_overlap(runner)
}

/// The server's clock jumps forward, past the end of every lease.
pub(super) fn clock_forward(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.fault_once("F07", "the server's clock jumps forward by an hour", SERVER);
    shift_clock(runner, HOUR_MS)?;
    try_to_overlap(runner)
}

/// The server's clock jumps back; the holder is killed, and its lease ends in an hour.
pub(super) fn clock_back(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.fault_once("F08", "the server's clock jumps back by an hour", SERVER);
    shift_clock(runner, -HOUR_MS)?;
    runner.kill("A", "F08")?;
    next_acquires(runner)
}

fn shift_clock(runner: &Runner<'_>, offset_ms: i64) -> Result<()> {
    let cluster = runner.setup.cluster()?;
    majority(cluster.nodes()).iter().try_for_each(|node| node.shift_clock(offset_ms))?;
    Ok(())
}

/// The servers that the fault hits: the only one, or three of Redlock's five.
fn majority(nodes: &[Node]) -> &[Node] {
    &nodes[..nodes.len() / 2 + 1]
}

/// B's wall clock is an hour ahead of A's.
pub(super) fn client_clocks(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client("A")?;
    runner.start_client_with_clock("B", HOUR_MS)?;
    runner.fault_once("F09", "B's clock is an hour ahead", "B");
    runner.acquire_and_read("A")?;
    try_to_overlap(runner)
}

/// An operator evicts a holder that is alive.
pub(super) fn session_killed(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    let token = runner.token("A");
    runner.fault_once("F15", "an operator evicts A", "A");
    runner.evict(token)?;
    let evicted = runner.now();
    // B waits: some servers take a moment to end a connection.
    runner.acquire("B", None)?;
    if runner.wait_granted("B")? {
        both_write(runner)?;
    }
    if runner.lock.is_tenure() && runner.lost_within("A", Duration::from_secs(5))? {
        let lost = runner.lost_at("A").unwrap_or(evicted);
        let delay = lost.saturating_sub(evicted);
        runner.measure("loss told after", delay as f64 / 1e6, "ms");
    }
    Ok(())
}

/// The server runs out of memory and evicts the keys that expire soonest: locks.
pub(super) fn eviction(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.fault_once("F20", "the server is full and evicts keys", SERVER);
    for node in runner.setup.cluster()?.members() {
        fill(node)?;
    }
    try_to_overlap(runner)
}

fn fill(node: &Node) -> Result<()> {
    redis::execute(node.port(), &["CONFIG", "SET", "maxmemory-policy", "volatile-ttl"])?;
    redis::execute(node.port(), &["CONFIG", "SET", "maxmemory", "4mb"])?;
    let filler = "x".repeat(10_000);
    for number in 0..2000 {
        let set = redis::execute(node.port(), &["SET", &format!("filler:{number}"), &filler])?;
        // Refused when no key is left that may be evicted.
        if let Value::Error(_) = set {
            return Ok(());
        }
    }
    bail!("the server never became full")
}

/// The holder is killed, and the leader of the servers with it.
pub(super) fn leader_lost(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.acquire("B", None)?;
    let cluster = runner.setup.cluster()?;
    let leader = cluster.leader()?.context("the servers have no leader")?;
    runner.kill("A", "F17")?;
    runner.fault_once("F17", "the leader is killed, too", SERVER);
    leader.kill()?;
    next_works(runner)
}
