//! The one clock of a run: nanoseconds of `CLOCK_BOOTTIME` since the run began, in every process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::history::LATEST;

/// The clock of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    /// A run begins.
    pub(crate) fn begin() -> Clock {
        Clock { start: boot() }
    }

    /// The clock of a run that began then.
    pub(crate) fn since(start: u64) -> Clock {
        Clock { start }
    }

    /// When the run began.
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    pub(crate) fn now(self) -> u64 {
        boot().saturating_sub(self.start)
    }

    /// The point this far from now, or the latest that a history may name.
    pub(crate) fn after(self, span: Duration) -> u64 {
        self.now().saturating_add(nanos(span)).min(LATEST)
    }
}

/// A span in nanoseconds.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn boot() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
