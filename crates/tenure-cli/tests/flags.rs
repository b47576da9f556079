//! Flags and verbs that users of flock(1) type, and what a wrong command line is answered with.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::time::{Duration, Instant};

use support::*;

/// The exit code and the lines on stderr.
fn refusal(args: &[&str]) -> (i32, Vec<String>) {
    let output = Store::new().output(args.iter().copied());
    assert_eq!(text(&output.stdout), "", "{args:?}");
    (code(&output), text(&output.stderr).lines().map(str::to_owned).collect())
}

#[test]
fn the_short_flags_of_flock_work() {
    let store = Store::new();
    let _holder = store.hold("k");
    assert_eq!(store.code(["run", "-n", "k", "--", "true"]), 75);
    assert_eq!(store.code(["run", "-n", "-E", "9", "k", "--", "true"]), 9);
    for limit in ["0.3", "300ms"] {
        let begin = Instant::now();
        assert_eq!(store.code(["run", "-w", limit, "k", "--", "true"]), 75, "{limit}");
        assert!(begin.elapsed() >= Duration::from_millis(300), "{limit}");
        assert_eq!(store.code(["wait", "-w", limit, "k"]), 75, "{limit}");
    }
    let begin = Instant::now();
    assert_eq!(store.code(["run", "-w", "1", "k", "-c", "true"]), 75, "a number is in seconds");
    assert!(begin.elapsed() >= Duration::from_secs(1) && begin.elapsed() < LIMIT);
}

#[test]
fn a_shell_command_runs_under_the_lock() {
    let store = Store::new();
    let output = store.output(["run", "k", "-c", "echo $TENURE_KEY | tr k x; exit 4"]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (4, "x\n"));
    let mut with_shell = store.tenure(["run", "k", "-c", "echo $0"]);
    let output = support::output(with_shell.env("SHELL", "/bin/false"));
    assert_eq!((code(&output), text(&output.stdout).as_str()), (0, "/bin/sh\n"));
    assert_eq!(store.code(["run", "-s", "k", "-c", "true"]), 0, "flock's flag for a shared lock");
    let (code, lines) = refusal(&["run", "k", "-c", "true", "--", "true"]);
    assert!(code == 64 && lines[0].contains("cannot be used with"), "{lines:?}");
}

#[test]
fn a_number_that_is_no_time_is_refused() {
    for limit in ["-1", "1e3", ".", "1.2.3", "inf", "nan", "999999999999", "", "5 s", "٥"] {
        let (code, lines) = refusal(&["run", &format!("--wait={limit}"), "k", "--", "true"]);
        assert_eq!(code, 64, "{limit}: {lines:?}");
    }
    let (code, lines) = refusal(&["run", "--ttl", "5", "k", "--", "true"]);
    assert!(code == 64 && lines[0].contains("not a duration"), "{lines:?}");
}

#[test]
fn a_missing_separator_is_named() {
    for args in [
        &["run", "x", "sleep", "0"][..],
        &["run", "-n", "x", "make", "-j4"],
        &["run", "--ttl", "9s", "-w=1", "x", "make", "--jobs=4"],
        &["elect", "--once", "x", "sleep", "0"],
    ] {
        let (code, lines) = refusal(args);
        assert_eq!((code, lines.len()), (64, 2), "{lines:?}");
        assert!(lines[0].contains("`--` is missing before"), "{lines:?}");
        assert!(lines[1].contains("put `--` before"), "{lines:?}");
    }
    let (_, lines) = refusal(&["show", "x", "sleep"]);
    assert!(lines[0].contains("too many"), "{lines:?}");
    let (_, lines) = refusal(&["elect", "x", "y", "--", "sleep"]);
    assert!(lines[0].contains("too many"), "{lines:?}");
    let (_, lines) = refusal(&["run", "x", "y"]);
    assert!(lines[0].contains("`--` is missing before `y`"), "{lines:?}");
}

#[test]
fn every_usage_error_has_the_same_two_lines() {
    for (args, part, advice) in [
        (&["frobnicate"][..], "there is no verb `frobnicate`", "tenure --help"),
        (&["lst"], "there is no verb `lst`", "ls"),
        (&["run", "--no-wat", "k", "--", "true"], "no flag `--no-wat`", "--no-wait"),
        (&["run", "--", "true"], "missing: <KEY>", "tenure run [OPTIONS] <KEY>... -- <CMD>"),
        (&["run", "k"], "<CMD>", "-- ./deploy.sh"),
        (&["run", "-w"], "`--wait <DUR>` needs a value", "tenure run --help"),
        (&["run", "-n", "-n", "k", "--", "true"], "more than once", "tenure run"),
        (&["completions", "cobol"], "`cobol`", "bash"),
        (&["--reach", "moon", "ls"], "`moon`", "network"),
    ] {
        let (code, lines) = refusal(args);
        assert_eq!((code, lines.len()), (64, 2), "{args:?}: {lines:?}");
        assert!(lines[0].starts_with("tenure: ") && lines[0].contains(part), "{lines:?}");
        assert!(lines[1].starts_with("  try: ") && lines[1].contains(advice), "{lines:?}");
    }
}

#[test]
fn other_names_of_verbs_work() {
    let store = Store::new();
    let _holder = store.hold("k");
    assert!(text(&store.output(["list"]).stdout).contains("sh on "));
    assert_eq!((store.code(["status", "k"]), store.code(["status", "free"])), (0, 1));
}
