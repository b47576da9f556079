//! What a process of a run is told: its part at the start, then one order after another.

use std::io::Write;

use anyhow::{Context, Result};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use crate::history::{Event, What};

/// The first line that a client process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    /// What its events call it.
    pub(crate) name: String,
    /// The lock under test.
    pub(crate) lock: String,
    /// Its own way to the server.
    pub(crate) url: String,
    pub(crate) lease_ms: u64,
    /// The port of the protected resource.
    pub(crate) resource: u16,
    /// When the run began.
    pub(crate) start: u64,
}

/// One order to a client. Each is answered by an event; `hold` says which attempt it is about.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub(crate) enum Order {
    /// Asks for the lock, waiting for as long as patience lasts, or for ever.
    /// A `fixed` lease is not renewed.
    Take { hold: u64, key: String, patience_ms: Option<u64>, fixed: bool },
    /// Drops a `Take` that is under way.
    Abandon { hold: u64 },
    /// Looks whether it still holds, as far as the lock can tell, and reads the three registers.
    Read { hold: u64 },
    /// Writes what it read plus one; `blind` without looking whether it still holds.
    Write { hold: u64, blind: bool },
    /// Gives the lock back.
    Release { hold: u64 },
    /// Tells how long ago it asked for the lock, by two clocks.
    Clocks { hold: u64 },
}

/// Says what happened on stdout, as one line.
pub(crate) fn say(clock: Clock, lane: &str, what: What) {
    let event = Event { at: clock.now(), lane: lane.to_owned(), what };
    let Ok(line) = serde_json::to_string(&event) else { return };
    // Without a conductor there is nobody to tell; the process is about to end.
    let _gone = writeln!(std::io::stdout().lock(), "{line}");
}

/// Makes this process end with the lab, also while it is stopped and cannot see its input close.
pub(crate) fn end_with_parent() -> Result<()> {
    let parent = getppid();
    set_parent_process_death_signal(Some(Signal::KILL)).context("cannot tie the process")?;
    // The lab may have ended before that call.
    anyhow::ensure!(getppid() == parent && parent.is_some(), "the lab has ended");
    Ok(())
}
