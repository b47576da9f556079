//! `--at-least`: keeps the lock after the command has ended, until the given time has passed since
//! the grant.
//!
//! Other machines that start the same job must find the lock held. So nothing that happens to the
//! launcher shortens that time: if it receives a signal to exit, or is killed, the supervisor goes
//! on in the background and renews the lock. If the supervisor dies as well, the server keeps the
//! lock, because the lease is at least as long (see `locks`).

use std::time::Duration;

use tenure::GuardSet;

use super::channel::ToLauncher;
use super::clock::{self, Moment};
use super::event_loop::{EventLoop, LoopEvent};
use super::process_tree::{self, Reaped};
use super::reporter::{LossText, Reporter};
use super::{Ending, sys};

/// How often the clock is read if events cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Keeps the lock until the given moment, or until it is lost. Returns whether the lock was still
/// held when this began: then the command held it to its end, and a later loss does not change the
/// command's exit code.
pub(super) fn keep(
    events: &mut EventLoop,
    held: &GuardSet,
    reporter: &Reporter,
    until: Moment,
    ending: &Ending,
) -> bool {
    let left = until.saturating_sub(clock::now());
    if left.is_zero() || held.check().is_err() {
        return false;
    }
    events.send(ToLauncher::Kept(ending.code.into()));
    reporter.kept(ending.code, left);
    let mut detached = false;
    while clock::now() < until {
        if let Err(lost) = held.check() {
            let reason = LossText::from(lost.reason()).text;
            reporter.warn(&format!("the lock was lost before --at-least had passed: {reason}"));
            break;
        }
        if !detached && (events.exit_requested() || !events.has_launcher()) {
            detached = true;
            reporter.exit(ending.code, ending.cause);
            events.send(ToLauncher::Detach(ending.code.into()));
            sys::close_stderr();
        }
        match events.next(Some(until)) {
            Ok(LoopEvent::Child) => while let Reaped::Process(..) = process_tree::reap() {},
            Ok(_) => {}
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
    true
}
