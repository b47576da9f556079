//! Who keeps the file's write lock, when nobody gets through: most likely a process that was
//! stopped in the middle of a change.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::place::Place;

/// What to say when the file stayed locked. Never opens the index file to ask: to close it would
/// drop SQLite's own locks.
pub(super) fn describe(place: &Place) -> String {
    let shown = place.file.display();
    let Some(pid) = find(place) else {
        return format!("`{shown}` stayed locked by another process; try again");
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim().escape_debug();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match state(&stat) {
        Some('T' | 't') => format!(
            "`{shown}` is locked by process {pid} ({name}), which was stopped in the middle of a \
             change; let it go on with `kill -CONT {pid}`, or end it"
        ),
        _ => format!("`{shown}` stayed locked by process {pid} ({name}); try again, or end it"),
    }
}

fn find(place: &Place) -> Option<u32> {
    let index = fs::metadata(place.beside("-shm")).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let (major, minor) = (rustix::fs::major(index.dev()), rustix::fs::minor(index.dev()));
    writer(&locks, &format!("{major:02x}:{minor:02x}:{}", index.ino()))
}

/// The process that has the write lock of the log, from the text of `/proc/locks`.
fn writer(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(3);
        let (kind, pid, of) = (fields.next()?, fields.next()?, fields.next()?);
        let (start, end) = (fields.next()?.parse::<u64>().ok()?, fields.next()?);
        let covers =
            start <= WRITE_LOCK && end.parse().map_or(end == "EOF", |end| WRITE_LOCK <= end);
        (kind == "WRITE" && of == file && covers).then(|| pid.parse().ok()).flatten()
    })
}

/// The third field of `/proc/<pid>/stat`; the second is a name that may hold anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The byte of the index file that the writer of a log locks (SQLite's `WAL_WRITE_LOCK`).
const WRITE_LOCK: u64 = 120;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_is_found_among_other_locks() {
        let locks = "1: POSIX  ADVISORY  READ 11 fe:00:42 123 123\n\
                     2: FLOCK  ADVISORY  WRITE 12 fe:00:7 0 EOF\n\
                     2: -> POSIX  ADVISORY  WRITE 9 fe:00:42 120 120\n\
                     3: POSIX  ADVISORY  WRITE 13 fe:00:42 121 121\n\
                     4: POSIX  ADVISORY  WRITE 14 fe:00:42 120 120\n";
        assert_eq!(writer(locks, "fe:00:42"), Some(14));
        assert_eq!(writer(locks, "fe:00:7"), Some(12));
        assert_eq!(writer(locks, "fe:00:43"), None);
        assert_eq!(writer("garbage\n", "x"), None);
    }

    #[test]
    fn a_program_cannot_hide_its_state_behind_its_name() {
        assert_eq!(state("12 (a) R (b) T 1 2"), Some('T'));
        assert_eq!(state(""), None);
    }
}
