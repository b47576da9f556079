//! Whether the run was able to show a fault: a run in which even the register without a fence lost
//! no update proves nothing about fences.

use serde::Serialize;

use super::overlap::Overlaps;
use super::resource::Resource;

/// The control of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Control {
    /// Whether clients wrote to the register without a fence.
    pub written: bool,
    /// Whether there was harm: a lost update there or, where no client wrote, a certain overlap.
    pub harmed: bool,
}

/// Checks the register without a fence.
pub fn check(overlap: &Overlaps, resource: &Resource) -> Control {
    let written = resource.plain.accepted > 0;
    let overlapped = overlap.certain.count > 0;
    let harmed = if written { resource.plain.lost > 0 } else { overlapped };
    Control { written, harmed }
}
