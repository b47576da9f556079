//! Names that are meant to confuse: F25.

use std::time::Duration;

use anyhow::Result;

use crate::stage::Stage;

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
