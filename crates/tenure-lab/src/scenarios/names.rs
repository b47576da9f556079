//! Keys that are meant to confuse (F25).

use std::time::Duration;

use anyhow::Result;

use crate::runner::Runner;

/// A acquires and keeps them in this order.
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

/// A acquires locks with keys that are meant to confuse. B must get none of them, and no key may
/// collide with another.
pub(super) fn names(runner: &mut Runner<'_>) -> Result<()> {
    runner.start_client("A")?;
    runner.start_client("B")?;
    runner.fault_once("F25", "names that are meant to confuse", "A");
    let (mut collisions, mut invalid) = (0u32, 0u32);
    let prefix = runner.key.clone();
    for name in NAMES {
        let key = format!("{prefix}{name}");
        let hold = runner.acquire_key("A", &key, Some(Duration::ZERO))?;
        if runner.outcome("A")?.is_granted() {
            runner.acquire_key("B", &key, Some(Duration::ZERO))?;
            collisions += u32::from(runner.outcome("B")?.is_granted());
        } else if runner.refused_as_invalid(hold) {
            invalid += 1;
        } else {
            collisions += 1;
        }
    }
    runner.measure("names", NAMES.len() as f64, "");
    runner.measure("names refused as invalid", f64::from(invalid), "");
    runner.measure("names that collide", f64::from(collisions), "");
    runner.measure("limit: names that collide", 0.0, "");
    Ok(())
}
