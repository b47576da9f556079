//! Faults of the network between a client and its server: cut off (F10), responses lost (F11), late
//! (F12) or lost once (F13), and a lost wake-up (F14).

use std::ops::Range;

use anyhow::Result;
use tenure_servers::Proxy;

use super::steps::{hold, next_acquires, next_works, one_after_the_other, start_both};
use crate::netns;
use crate::runner::Runner;

/// The ports that A's packets come from: above those that the kernel gives to the others.
const PORTS_OF_A: Range<u16> = 61_000..65_000;

/// The holder is cut off from the server, but not from the resource that the lock protects.
pub(super) fn partition(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.begin_fault("F10", "A is cut off from the server", "A");
    runner.route("A")?.cut()?;
    let granted = next_reads_and_holder_writes(runner)?;
    runner.route("A")?.heal()?;
    finish_partition(runner, granted)
}

/// The holder is cut off by dropped packets, so that the server's own kernel notices that the
/// connection is dead.
pub(super) fn packets_lost(runner: &mut Runner<'_>) -> Result<()> {
    let route = runner.setup.route_from_ports(PORTS_OF_A)?;
    runner.start_client_on("A", route, &[])?;
    runner.start_client("B")?;
    runner.acquire_and_read("A")?;
    runner.begin_fault("F10", "packets between A and the server are lost", "A");
    netns::drop_packets(PORTS_OF_A)?;
    let granted = next_reads_and_holder_writes(runner)?;
    netns::pass_packets(PORTS_OF_A)?;
    finish_partition(runner, granted)
}

/// B gets the lock and reads, or does not get it; A writes. Returns whether B got it.
fn next_reads_and_holder_writes(runner: &mut Runner<'_>) -> Result<bool> {
    runner.acquire("B", None)?;
    let granted = runner.wait_granted("B")?;
    if granted {
        runner.read("B")?;
    }
    runner.write("A")?;
    Ok(granted)
}

fn finish_partition(runner: &mut Runner<'_>, granted: bool) -> Result<()> {
    runner.end_fault("A reaches the server again", "A");
    if !granted {
        runner.release("A")?;
        runner.expect_grant("B")?;
        runner.read("B")?;
    }
    runner.write_and_release("B")
}

/// The holder's requests arrive, responses do not: does the server keep the lock for a client that
/// cannot know that it holds?
pub(super) fn answers_lost(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.begin_fault("F11", "A's requests arrive, responses do not", "A");
    runner.route("A")?.cut_responses()?;
    next_acquires(runner)
}

/// The response to A's acquire arrives when its lease is over and B holds.
pub(super) fn late_grant(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.warm_up("A")?;
    runner.begin_fault("F12", "responses to A are held up", "A");
    runner.route("A")?.cut_responses()?;
    runner.acquire("A", None)?;
    runner.wait_held()?;
    runner.acquire("B", None)?;
    let granted = runner.wait_granted("B")?;
    if granted {
        runner.read("B")?;
    }
    runner.route("A")?.heal()?;
    runner.end_fault("the responses to A arrive", "A");
    let late = runner.lease / 2;
    if granted && runner.outcome_within("A", late)?.is_some_and(|late| late.is_granted()) {
        runner.read("A")?;
        runner.write("A")?;
        return runner.write_and_release("B");
    }
    if granted {
        runner.write_and_release("B")?;
    }
    while !runner.outcome("A")?.is_granted() {
        runner.acquire("A", None)?;
    }
    runner.read("A")?;
    runner.write_and_release("A")?;
    if !granted {
        runner.expect_grant("B")?;
        runner.read("B")?;
        runner.write_and_release("B")?;
    }
    Ok(())
}

/// The response to A's acquire is lost with its connection. A acquires again; then B does.
pub(super) fn answer_lost(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.warm_up("A")?;
    runner.fault_once("F13", "the response to A's acquire is lost", "A");
    runner.route("A")?.each_proxy(|proxy| proxy.drop_response(1))?;
    runner.acquire("A", None)?;
    one_after_the_other(runner)
}

/// B waits; the message that wakes it is lost with its connection.
pub(super) fn wakeup_lost(runner: &mut Runner<'_>) -> Result<()> {
    hold(runner)?;
    runner.acquire("B", None)?;
    runner.wait_for_waiter()?;
    runner.fault_once("F14", "messages to B are lost with its connections", "B");
    runner.route("B")?.cut_responses()?;
    runner.write_and_release("A")?;
    runner.route("B")?.each_proxy(Proxy::reset)?;
    runner.route("B")?.heal()?;
    next_works(runner)
}
