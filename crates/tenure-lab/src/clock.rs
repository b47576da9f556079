//! The clock of a run: nanoseconds of `CLOCK_BOOTTIME` since the run began, the same in every
//! process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::history::LATEST;

/// The clock of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: u64,
}

impl Clock {
    /// The clock of a run that begins now.
    pub(crate) fn begin() -> Clock {
        Clock { start: boot() }
    }

    /// The clock of a run that began at this reading of `CLOCK_BOOTTIME`.
    pub(crate) fn since(start: u64) -> Clock {
        Clock { start }
    }

    /// The reading of `CLOCK_BOOTTIME` at which the run began.
    pub(crate) fn start(self) -> u64 {
        self.start
    }

    pub(crate) fn now(self) -> u64 {
        boot().saturating_sub(self.start)
    }

    /// The moment this far from now, at most [`LATEST`].
    pub(crate) fn after(self, span: Duration) -> u64 {
        self.now().saturating_add(nanos(span)).min(LATEST)
    }
}

/// A span of time in nanoseconds.
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn boot() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
