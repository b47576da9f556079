//! A release that fails before the network heals (F27).

use std::time::Duration;

use anyhow::Result;
use tenure_servers::Proxy;

use super::crash::take_over;
use crate::stage::Stage;

/// A holds for one fixed lease. Just before its end the network goes silent, and A's release is
/// lost with its connection. When the lease is over by A's clock, the network heals. Nobody may be
/// kept out then: neither A, which uses the same client again, nor B.
pub(super) fn unheard(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.acquire_fixed("A")?;
    stage.expect_grant("A")?;
    stage.read("A")?;
    stage.write("A")?;
    stage.until_left("A", stage.lease / 6)?;
    stage.fault("F27", "A is cut off from the server", "A");
    stage.link("A")?.cut()?;
    stage.release("A")?;
    stage.until_left("A", Duration::ZERO)?;
    // What was under way is lost: it was held up for longer than A's kernel cared for.
    stage.link("A")?.each(Proxy::reset)?;
    stage.link("A")?.heal()?;
    stage.healed("A reaches the server again", "A");
    stage.ask("A", None)?;
    if !stage.obtain("A")? {
        return Ok(());
    }
    stage.read("A")?;
    stage.finish_work("A")?;
    stage.ask("B", None)?;
    take_over(stage)
}
