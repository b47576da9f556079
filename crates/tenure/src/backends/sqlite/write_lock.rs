//! Which process holds SQLite's write lock on the file when no other one gets it: most likely a
//! process that was stopped in the middle of a change. For error messages only.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::store_path::StorePath;

/// The byte of the index file that the writer of a log locks (SQLite's `WAL_WRITE_LOCK`).
const WRITE_LOCK: u64 = 120;

/// The message for a file that stayed locked. Does not open the index file to query its locks:
/// closing it would drop SQLite's own locks.
pub(super) fn describe(path: &StorePath) -> String {
    let shown = path.file.display();
    let Some(pid) = find_writer(path) else {
        return format!("`{shown}` stayed locked by another process; try again");
    };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.trim().escape_debug();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match state(&stat) {
        Some('T' | 't') => format!(
            "`{shown}` is locked by process {pid} ({name}), which was stopped in the middle of a \
             change; resume it with `kill -CONT {pid}`, or end it"
        ),
        _ => format!("`{shown}` stayed locked by process {pid} ({name}); try again, or end it"),
    }
}

fn find_writer(path: &StorePath) -> Option<u32> {
    let index = fs::metadata(path.beside("-shm")).ok()?;
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

/// The state of a process: the third field of `/proc/<pid>/stat`. The second is a name that may
/// contain anything.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

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
