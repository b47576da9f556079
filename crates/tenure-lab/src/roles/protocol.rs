//! The lines that the runner and a client process exchange: a client reads its configuration,
//! then one command per line, and writes one event per line.

use std::io::Write;

use anyhow::{Context, Result};
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::history::{Event, EventKind};

/// Note that a client writes when it is connected.
pub(crate) const READY: &str = "ready";
/// Begins the note that a client writes when a step of its work is done; the sequence number of
/// its last effect on the resource follows.
pub(crate) const DONE: &str = "done ";
/// Begins the note that a client writes when a command failed; the reason follows.
pub(crate) const FAILED: &str = "failed: ";
/// Begins the note with two figures in nanoseconds: how long ago the client requested the lock, by
/// `Instant` and by the clock that runs while the machine sleeps.
pub(crate) const CLOCKS: &str = "clocks ";
/// Note that a client writes when it skipped a step because it knows that it no longer holds.
pub(crate) const STOPPED: &str = "does not go on: it knows that its lock is gone";

/// The first line that a client process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClientConfig {
    /// Name of the client, which is also its lane in the history.
    pub(crate) name: String,
    /// Name of the lock under test.
    pub(crate) lock: String,
    /// URL or addresses of the server, through the client's own proxies.
    pub(crate) url: String,
    pub(crate) lease_ms: u64,
    /// Port of the protected resource.
    pub(crate) resource: u16,
    /// Start of the run, as a reading of `CLOCK_BOOTTIME`.
    pub(crate) start: u64,
}

/// One command to a client. `hold` is the number of the attempt that the command is about. The
/// client responds to each command with an event.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub(crate) enum ClientCommand {
    /// Acquires the lock, and waits for it as long as the limit says, or without a limit. A fixed
    /// lease is not renewed.
    Acquire { hold: u64, key: String, wait_limit_ms: Option<u64>, fixed_lease: bool },
    /// Drops an `Acquire` that is still waiting.
    Cancel { hold: u64 },
    /// Checks whether the client still holds, as far as the lock can tell, and reads the three
    /// registers.
    Read { hold: u64 },
    /// Writes the values that were read plus one; `unchecked` skips the check whether the client
    /// still holds.
    Write { hold: u64, unchecked: bool },
    /// Releases the lock.
    Release { hold: u64 },
    /// Reports how long ago the client requested the lock, by two clocks.
    CompareClocks { hold: u64 },
}

/// Writes an event to stdout, as one line.
pub(crate) fn emit(clock: Clock, lane: &str, kind: EventKind) {
    let event = Event { at: clock.now(), lane: lane.to_owned(), kind };
    let Ok(line) = serde_json::to_string(&event) else { return };
    // Fails only if the runner has ended; then this process is about to end, too.
    let _ignored = writeln!(std::io::stdout().lock(), "{line}");
}

/// Makes the kernel kill this process when the lab ends, also while this process is stopped and
/// cannot notice that its input was closed.
pub(crate) fn end_with_parent() -> Result<()> {
    let parent = getppid();
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    tied.context("cannot request a signal at the end of the parent process")?;
    // The lab may have ended before that call.
    anyhow::ensure!(getppid() == parent && parent.is_some(), "the lab has ended");
    Ok(())
}
