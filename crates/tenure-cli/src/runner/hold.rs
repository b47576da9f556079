//! `tenure hold`: holds the lock until the user ends it, or until it is lost.
//!
//! There is no command to end when the lock is lost: what works under it is whatever reads the
//! output of this program. So a loss is reported, and the program ends, as early as `run` would
//! send SIGTERM.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tenure::GuardSet;

use super::channel::ToLauncher;
use super::clock;
use super::event_loop::EventLoop;
use super::lease_end::LeaseEnd;
use super::monitor::Outcome;
use super::process_tree::{self, Reaped};
use super::reporter::Reporter;
use crate::exit;

/// How often the clock is read if events cannot be waited for.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Reports the grant, and holds the lock until its input ends, a signal comes, the launcher has
/// ended, or it is lost.
pub(super) fn until_end(
    events: &mut EventLoop,
    held: &GuardSet,
    reporter: &Reporter,
    deadline: &'static AtomicU64,
    waited: Duration,
) -> Outcome {
    let mut lease = LeaseEnd::new(held, deadline);
    // From here on the launcher watches the deadline, which is set.
    events.send(ToLauncher::Held);
    // Only now: after the token was printed, the exit code has to tell of every loss.
    reporter.acquired(held, waited);
    loop {
        let lost = lease.read();
        let not_renewed = clock::now() >= lease.give_up_at();
        if let Some(loss) = lost.or_else(|| not_renewed.then(|| lease.not_renewed())) {
            reporter.lost(&loss);
            return Outcome::Lost;
        }
        if events.input_ended() {
            return Outcome::Done { code: exit::DONE, cause: "input_end" };
        }
        if events.exit_requested() || !events.has_launcher() {
            return Outcome::Done { code: exit::DONE, cause: "signal" };
        }
        match events.next(Some(lease.give_up_at())) {
            Ok(_) => while let Reaped::Process(..) = process_tree::reap() {},
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
