//! How often the poll task polls.

use std::time::Duration;

use crate::support::backoff::jitter;

/// The first and the longest pause between polls with a wake connection.
const WOKEN_FIRST: Duration = Duration::from_millis(20);
const WOKEN_MAX: Duration = Duration::from_secs(1);
/// The first and the longest pause between polls without a wake connection.
const POLL_FIRST: Duration = Duration::from_millis(10);
const POLL_MAX: Duration = Duration::from_millis(250);

/// The pauses between polls without a wake-up: short at first, each one and a half times the one
/// before, with jitter so that clients do not poll in step.
pub(super) struct PollInterval {
    first: Duration,
    longest: Duration,
    current: Duration,
}

impl PollInterval {
    pub(super) fn new(with_wake_connection: bool) -> PollInterval {
        let (first, longest) =
            if with_wake_connection { (WOKEN_FIRST, WOKEN_MAX) } else { (POLL_FIRST, POLL_MAX) };
        PollInterval { first, longest, current: first }
    }

    pub(super) fn reset(&mut self) {
        self.current = self.first;
    }

    /// Between three and five quarters of the pause, which is longer behind other waiters: only the
    /// first one in the queue polls often.
    pub(super) fn next(&mut self, ahead: u32) -> Duration {
        let pause = self.current.saturating_mul(ahead.saturating_add(1)).min(self.longest);
        self.current = (self.current * 3 / 2).min(self.longest);
        jitter(pause * 3 / 4, pause * 5 / 4)
    }
}
