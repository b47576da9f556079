//! A release that is lost, and a network that heals only when the lease is over (F27).

use std::time::Duration;

use anyhow::Result;
use tenure_servers::Proxy;

use super::steps::{one_after_the_other, start_both};
use crate::runner::Runner;

/// A holds for one fixed lease. Just before its end A is cut off, and its release is lost with its
/// connection. When the lease is over by A's clock, the network heals. Neither A, which uses the
/// same client again, nor B may be kept out then.
pub(super) fn release_lost(runner: &mut Runner<'_>) -> Result<()> {
    start_both(runner)?;
    runner.acquire_fixed("A")?;
    runner.expect_grant("A")?;
    runner.read("A")?;
    runner.write("A")?;
    runner.sleep_until_left("A", runner.lease / 6)?;
    runner.begin_fault("F27", "A is cut off from the server", "A");
    runner.route("A")?.cut()?;
    runner.release("A")?;
    runner.sleep_until_left("A", Duration::ZERO)?;
    // Drops what was held up, as a kernel does that has retransmitted for too long.
    runner.route("A")?.each_proxy(Proxy::reset)?;
    runner.route("A")?.heal()?;
    runner.end_fault("A reaches the server again", "A");
    runner.acquire("A", None)?;
    one_after_the_other(runner)
}
