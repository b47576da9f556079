//! The clock on which the leases in the file are counted, and the id of the boot that it belongs
//! to.

use std::io;

/// A clock that all processes of this machine agree on, and that runs while the machine sleeps.
#[derive(Debug)]
pub(super) struct Boot {
    /// Changes with every start of the machine. The clock then starts again from zero, and commits
    /// that SQLite had not synced may be lost.
    pub(super) id: String,
    #[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "a Linux namespace"))]
    offset_ns: i64,
}

#[cfg(target_os = "linux")]
impl Boot {
    pub(super) fn read() -> io::Result<Boot> {
        let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
        // Kernels without time namespaces have no such file, and no offset.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        Ok(Boot { id, offset_ns: boottime_offset_ns(&offsets) })
    }

    /// Whole milliseconds since boot, the same in every time namespace: the offset is subtracted
    /// before the time is rounded down.
    pub(super) fn now_ms(&self) -> i64 {
        use rustix::time::{ClockId, clock_gettime};
        let time = clock_gettime(ClockId::Boottime);
        let nanos = time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec);
        nanos.saturating_sub(self.offset_ns).div_euclid(1_000_000)
    }
}

/// Other systems have no id of the boot: leases are counted on the wall clock, and every commit is
/// synced (see `layout::schema::SYNC`), so that a restart loses nothing.
#[cfg(not(target_os = "linux"))]
impl Boot {
    pub(super) fn read() -> io::Result<Boot> {
        Ok(Boot { id: "wall clock".to_owned(), offset_ns: 0 })
    }

    pub(super) fn now_ms(&self) -> i64 {
        unix_ms()
    }
}

/// The wall clock in milliseconds.
pub(super) fn unix_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(1).max(1)
}

/// How far the clock of this process's time namespace is ahead of the machine's.
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "a Linux namespace"))]
fn boottime_offset_ns(offsets: &str) -> i64 {
    let parse = |line: &str| {
        let mut fields = line.split_whitespace();
        let (Some("boottime"), Some(seconds), Some(nanos)) =
            (fields.next(), fields.next(), fields.next())
        else {
            return None;
        };
        let (seconds, nanos) = (seconds.parse::<i64>().ok()?, nanos.parse::<i64>().ok()?);
        Some(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    };
    offsets.lines().find_map(parse).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_of_a_time_namespace_is_subtracted() {
        let text = "monotonic           7         0\nboottime      1000000 500000000\n";
        assert_eq!(boottime_offset_ns(text), 1_000_000_500_000_000);
        for text in ["", "boottime", "boottime x 1", "monotonic 1 1"] {
            assert_eq!(boottime_offset_ns(text), 0, "{text:?}");
        }
    }

    #[test]
    fn the_clock_does_not_go_back() {
        let boot = Boot::read().unwrap();
        let before = boot.now_ms();
        assert!(before > 0 && boot.now_ms() >= before);
        assert!(!boot.id.is_empty());
    }
}
