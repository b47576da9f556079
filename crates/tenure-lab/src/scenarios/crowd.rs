//! Many waiters, and many names: F22, F25.

use std::time::Duration;

use anyhow::Result;
use tenure_servers::wire::redis::ask;

use crate::stage::Stage;

const WAITERS: [&str; 12] = ["B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L", "M"];

/// Twelve wait; each gets its turn. What does one hand-over cost the server?
pub(super) fn herd(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    for name in WAITERS {
        stage.client(name)?;
    }
    stage.enter("A")?;
    let mut waiting = Vec::new();
    for name in WAITERS {
        waiting.push((name, stage.ask(name, None)?));
    }
    stage.wait_waiting()?;
    ask(stage.rig.cluster()?.node().port(), &["CONFIG", "RESETSTAT"])?;
    stage.finish_work("A")?;
    for _ in WAITERS {
        let Some(place) = stage.wait_granted(&waiting)? else { break };
        let (name, _) = waiting.swap_remove(place);
        stage.read(name)?;
        stage.finish_work(name)?;
    }
    let cost = requests(stage)? as f64 / WAITERS.len() as f64;
    stage.measure("requests for one hand-over", cost, "");
    stage.measure("limit: requests for one hand-over", 3.0, "");
    Ok(())
}

/// How many requests the server has had. What a script does counts as well, so where scripts are
/// used only they are counted.
fn requests(stage: &Stage<'_>) -> Result<u64> {
    let info = ask(stage.rig.cluster()?.node().port(), &["INFO", "commandstats"])?;
    let (mut all, mut scripts) = (0, 0);
    for line in info.text().unwrap_or_default().lines() {
        let Some((name, rest)) = line.split_once(":calls=") else { continue };
        let calls: u64 = rest.split(',').next().unwrap_or_default().parse()?;
        all += calls;
        scripts += if name.starts_with("cmdstat_eval") { calls } else { 0 };
    }
    Ok(if scripts > 0 { scripts } else { all })
}

/// A takes locks with names that are meant to confuse; B must get none of them, and every name is a
/// lock of its own.
pub(super) fn names(stage: &mut Stage<'_>) -> Result<()> {
    stage.client("A")?;
    stage.client("B")?;
    stage.blow("F25", "names that are meant to confuse", "A");
    let (mut collisions, mut invalid) = (0u32, 0u32);
    let prefix = stage.key.clone();
    for name in NAMES {
        let key = format!("{prefix}{name}");
        let hold = stage.ask_for("A", &key, Some(Duration::ZERO))?;
        if stage.answer("A")?.is_granted() {
            stage.ask_for("B", &key, Some(Duration::ZERO))?;
            collisions += u32::from(stage.answer("B")?.is_granted());
        } else if stage.said_invalid(hold) {
            invalid += 1;
        } else {
            collisions += 1;
        }
    }
    stage.measure("names", NAMES.len() as f64, "");
    stage.measure("names refused as invalid", f64::from(invalid), "");
    stage.measure("names that collide", f64::from(collisions), "");
    stage.measure("limit: names that collide", 0.0, "");
    Ok(())
}

/// Each is taken in this order and kept.
const NAMES: &[&str] = &[
    "x",
    "x:token",
    "x:",
    "X",
    "x ",
    "x/",
    "x/y",
    "x/../y",
    "..",
    "x%2fy",
    "x?y#z",
    "*",
    "{x}",
    "x{",
    "'; DROP TABLE locks; --",
    "\"",
    "]] return 1 --",
    "\\",
    "é",
    "e\u{301}",
    "🔒",
    "\u{202e}x",
    "0",
    "00",
    "a-name-of-more-than-sixty-four-characters-whose-end-decides-which-it-is-1",
    "a-name-of-more-than-sixty-four-characters-whose-end-decides-which-it-is-2",
];
