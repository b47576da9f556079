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

/// The verbs that run or hold, the ones that wait, and the ones with a server.
const RUNS: &[&str] = &["run", "hold", "elect"];
const COMMANDS: &[&str] = &["run", "elect"];
const WAITS: &[&str] = &["run", "hold", "wait"];
const SERVER: &[&str] = &["run", "hold", "elect", "ls", "show", "evict", "wait", "doctor"];
const ALL: &[&str] = &[];

/// Every exit code of the program, what it means, and which verbs have it: all, if none is named.
pub(crate) const TABLE: &[(&str, &str, &[&str])] = &[
    (
        "0",
        "done; `show`: the lock is held; `run`, `elect`: the command exited with 0; `elect --who`: \
         there is a leader",
        ALL,
    ),
    (
        "1",
        "`show`: the lock is free; `evict`: that grant is not there, or the answer was no; \
         `elect --who`: there is no leader; `doctor`: a fault was found; `lab`: not as expected",
        &["show", "evict", "elect", "doctor", "lab"],
    ),
    ("2", "`lab`: inconclusive, the run was not able to show what it should", &["lab"]),
    ("3", "`lab`: skipped, the run cannot be played here", &["lab"]),
    ("64", "usage: a flag, key, URL or store that cannot be right, change it", ALL),
    ("69", "unavailable: the server or store does not respond, check it, try again", SERVER),
    ("70", "internal: an error of tenure or of the machine", ALL),
    ("75", "busy: another client holds the lock and the wait limit has passed, try later", WAITS),
    (
        "76",
        "lost: the lock was lost; `run`: the command was ended; `elect`: with --once, or when it \
         was to end anyway",
        RUNS,
    ),
    ("77", "denied: the server or the file system refuses, change rights or login", SERVER),
    ("126", "`run`, `elect`: the command was found but cannot be executed", COMMANDS),
    ("127", "`run`, `elect`: the command was not found", COMMANDS),
    (
        "128+n",
        "signal n ended the wait for the lock; `run`, `elect`: or it ended the command",
        RUNS,
    ),
    ("other", "`run`, `elect`: the command's own code", COMMANDS),
];

/// The exit codes of a verb, or of all, without what is said about other verbs.
pub(crate) fn of_verb(verb: Option<&str>) -> Vec<(&'static str, String)> {
    let Some(verb) = verb else {
        return TABLE.iter().map(|(code, meaning, _)| (*code, (*meaning).to_owned())).collect();
    };
    // A part begins with the verbs that it is about, as in "`run`, `elect`: …".
    let own = |part: &&str| {
        let about = part.split(": ").next().unwrap_or_default();
        !part.starts_with('`') || about.contains(&format!("`{verb}"))
    };
    let codes = TABLE.iter().filter(|(.., verbs)| verbs.is_empty() || verbs.contains(&verb));
    let meaning = |text: &str| text.split("; ").filter(own).collect::<Vec<_>>().join("; ");
    codes.map(|(code, text, _)| (*code, meaning(text))).collect()
}

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
    for (code, meaning, _) in TABLE {
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
            assert!(TABLE.iter().any(|(text, ..)| *text == code.to_string()), "{code}");
        }
    }

    #[test]
    fn a_verb_has_its_own_codes_only() {
        let codes =
            |verb| of_verb(Some(verb)).into_iter().map(|(code, _)| code).collect::<Vec<_>>();
        assert_eq!(codes("ls"), ["0", "64", "69", "70", "77"]);
        assert_eq!(codes("lab"), ["0", "1", "2", "3", "64", "70"]);
        assert!(of_verb(Some("run")).iter().all(|(_, text)| !text.contains("`lab`")));
    }

    #[test]
    fn a_signal_becomes_128_plus_its_number() {
        assert_eq!(by_signal(2), 130);
        assert_eq!(by_signal(9), 137);
    }
}
