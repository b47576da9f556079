//! The exit codes: one table, printed by `tenure help exit-codes` and in the manual page. They
//! follow sysexits.h where it has a code for the case, because commands rarely use those codes
//! themselves.

use tenure::ErrorKind;

pub(crate) const DONE: u8 = 0;
/// `show`: the lock is free; `evict`: there is no such grant.
pub(crate) const NO: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const INTERNAL: u8 = 70;
pub(crate) const BUSY: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const DENIED: u8 = 77;
pub(crate) const CANNOT_EXECUTE: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// Every exit code of the program, and what it means.
pub(crate) const TABLE: &[(&str, &str)] = &[
    ("0", "done; `show`: the lock is held; `run`: the command exited with 0"),
    ("1", "`show`: the lock is free; `evict`: that grant is not there; `lab`: not as expected"),
    ("2", "`lab`: inconclusive, the run was not able to show what it should"),
    ("3", "`lab`: skipped, the run cannot be played here"),
    ("64", "usage: a flag, key, URL or store that cannot be right; change it"),
    ("69", "unavailable: the server or store does not respond; check it, try again"),
    ("70", "internal: an error of tenure or of the machine"),
    ("75", "busy: another client holds the lock and the wait limit has passed; try later"),
    ("76", "lost: the lock was lost, `run` has ended its command; `hold`: it was lost"),
    ("77", "denied: the server or the file system refuses; change rights or login"),
    ("126", "`run`: the command was found but cannot be executed"),
    ("127", "`run`: the command was not found"),
    ("128+n", "signal n ended the command of `run`, or the wait for the lock of `run` and `hold`"),
    ("other", "`run`: the command's own code"),
];

/// The code of a process that a signal ended, as shells report it.
pub(crate) fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// The exit code for an error of the library.
pub(crate) fn of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Busy => BUSY,
        ErrorKind::Denied => DENIED,
        ErrorKind::Invalid | ErrorKind::Unsupported => USAGE,
        ErrorKind::Lost => LOST,
        ErrorKind::Unavailable => UNAVAILABLE,
        _ => INTERNAL,
    }
}

/// The table, as `tenure help exit-codes` prints it.
pub(crate) fn table() -> String {
    let mut text = String::from("Exit codes of tenure\n\n");
    for (code, meaning) in TABLE {
        text.push_str(&format!("  {code:>5}  {meaning}\n"));
    }
    text.push_str(
        "\n`run` exits with the code of its command, which may be one of those above; the\n\
         last line of `run --json` names the cause, and --busy-exit changes the code for busy.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_in_the_table() {
        for code in
            [DONE, NO, USAGE, UNAVAILABLE, INTERNAL, BUSY, LOST, DENIED, CANNOT_EXECUTE, NOT_FOUND]
        {
            assert!(TABLE.iter().any(|(text, _)| *text == code.to_string()), "{code}");
        }
    }

    #[test]
    fn a_signal_becomes_128_plus_its_number() {
        assert_eq!(by_signal(2), 130);
        assert_eq!(by_signal(9), 137);
    }
}
