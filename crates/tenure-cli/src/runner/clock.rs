//! The clock of the runner: CLOCK_BOOTTIME, which counts the time that the machine was suspended,
//! as leases at a server do; and a timer on it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};

/// A point in time, as time since boot.
pub(super) type Moment = Duration;

pub(super) fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// A descriptor that becomes readable at a moment. The timeout of `poll` does not count the time
/// that the machine was suspended; this timer does.
pub(super) struct Timer {
    descriptor: OwnedFd,
    set: Option<Moment>,
}

impl Timer {
    pub(super) fn new() -> io::Result<Timer> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Timer { descriptor: timerfd_create(TimerfdClockId::Boottime, flags)?, set: None })
    }

    /// Sets the timer to a moment, or turns it off. A moment in the past is due at once.
    pub(super) fn set(&mut self, moment: Option<Moment>) -> io::Result<()> {
        if self.set == moment {
            return Ok(());
        }
        // Zero would turn the timer off.
        let at = moment.map_or(Duration::ZERO, |moment| moment.max(Duration::from_nanos(1)));
        let it_value = Timespec {
            tv_sec: i64::try_from(at.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: at.subsec_nanos().into(),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        timerfd_settime(
            &self.descriptor,
            TimerfdTimerFlags::ABSTIME,
            &Itimerspec { it_interval, it_value },
        )?;
        self.set = moment;
        Ok(())
    }

    /// Whether the moment has come.
    pub(super) fn is_due(&self) -> bool {
        self.set.is_some_and(|moment| moment <= now())
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
