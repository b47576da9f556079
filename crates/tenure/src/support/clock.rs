//! The clock that leases are measured on. It runs while the machine sleeps, which `Instant` does
//! not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A point in time of one [`Clock`], in nanoseconds since its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Later than every real moment.
    pub(crate) const NEVER: Moment = Moment(u64::MAX);

    pub(crate) fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add<Duration> for Moment {
    type Output = Moment;
    fn add(self, span: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A moment that threads share. It orders nothing else.
#[derive(Debug)]
pub(crate) struct AtomicMoment(AtomicU64);

impl AtomicMoment {
    pub(crate) const fn new(moment: Moment) -> AtomicMoment {
        AtomicMoment(AtomicU64::new(moment.0))
    }

    pub(crate) fn get(&self) -> Moment {
        Moment(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn set(&self, moment: Moment) {
        self.0.store(moment.0, Ordering::Relaxed);
    }
}

/// Where a client reads the time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    /// Time since boot, suspend included: for every lock that another process could acquire.
    Boot,
    /// Tokio's clock, which tests can pause: for locks that reach only within this process.
    Tokio(tokio::time::Instant),
}

impl Clock {
    pub(crate) fn tokio() -> Clock {
        Clock::Tokio(tokio::time::Instant::now())
    }

    pub(crate) fn now(&self) -> Moment {
        Moment(0)
            + match self {
                Clock::Boot => since_boot(),
                Clock::Tokio(start) => start.elapsed(),
            }
    }

    pub(crate) async fn sleep_until(&self, moment: Moment) {
        // Timers stand still during suspend: read the real clock at least this often.
        let longest = match self {
            Clock::Boot => Duration::from_secs(1),
            Clock::Tokio(_) => Duration::MAX,
        };
        if moment == Moment::NEVER {
            return std::future::pending().await;
        }
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            // A timer that fires a little early would make this loop hot.
            tokio::time::sleep(left.min(longest).max(Duration::from_micros(200))).await;
        }
    }

    pub(crate) async fn sleep(&self, span: Duration) {
        self.sleep_until(self.now() + span).await;
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::Boottime);
    let part = |n: i64| u64::try_from(n).unwrap_or(0);
    Duration::new(part(time.tv_sec), time.tv_nsec.try_into().unwrap_or(0))
}

/// Other systems: `Instant` runs during sleep on macOS only in part, and the page says so.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_boot() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_time_does_not_wrap() {
        assert_eq!(Moment::NEVER + Duration::from_secs(1), Moment::NEVER);
        assert_eq!(Moment(0).since(Moment(5)), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_runtime_pauses_its_clock() {
        let clock = Clock::tokio();
        let before = clock.now();
        clock.sleep(Duration::from_secs(3600)).await;
        let passed = clock.now().since(before);
        assert!(passed >= Duration::from_secs(3600) && passed < Duration::from_secs(3601));
    }
}
