//! The command line: invalid input, help, manual pages, completions, and stores that cannot be
//! used.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::process::Stdio;

use support::*;

/// Asserts that the program reports what is wrong and what to try, without control characters.
fn refuses(args: &[&str], wanted_code: i32, part: &str) {
    let store = Store::new();
    let output = store.output(args.iter().copied());
    assert_eq!(code(&output), wanted_code, "{args:?}: {output:?}");
    let messages = text(&output.stderr);
    assert!(messages.contains(part), "{args:?}: {messages}");
    assert!(messages.contains("try"), "no advice: {messages}");
    assert!(!messages.contains(|c: char| c.is_control() && c != '\n'), "{messages:?}");
    assert_eq!(text(&output.stdout), "");
}

#[test]
fn bad_usage_is_64_with_advice() {
    refuses(&[], 64, "the verb is missing");
    refuses(&["frobnicate"], 64, "frobnicate");
    refuses(&["run", "k"], 64, "<CMD>");
    refuses(&["run", "k", "true"], 64, "--");
    refuses(&["run", "k", "--"], 64, "<CMD>");
    refuses(&["run", "--", "true"], 64, "<KEY>");
    refuses(&["run", "--wait", "1s", "--no-wait", "k", "--", "true"], 64, "cannot be used with");
    refuses(&["run", "--wait", "soon", "k", "--", "true"], 64, "not a duration");
    refuses(&["run", "--ttl", "0", "k", "--", "true"], 64, "not a duration");
    refuses(&["run", "--ttl", "0s", "k", "--", "true"], 64, "longer than nothing");
    refuses(&["run", "--ttl", "-5s", "k", "--", "true"], 64, "-5");
    refuses(&["run", "--ttl", "999d", "k", "--", "true"], 64, "ttl");
    refuses(&["run", "--busy-exit", "256", "k", "--", "true"], 64, "256");
    refuses(&["evict", "k"], 64, "--token");
    refuses(&["evict", "k", "--token", "0"], 64, "fencing token");
    refuses(&["completions", "cobol"], 64, "cobol");
    refuses(&["help", "cobol"], 64, "cobol");
    refuses(&["man", "cobol"], 64, "cobol");
}

#[test]
fn invalid_keys_are_refused_and_shown_escaped() {
    let long = "k".repeat(513);
    for (key, part) in [
        ("", "empty"),
        ("a\nb", "control character"),
        ("\u{1b}[2J", "control character"),
        ("\u{202e}evil", "control character"),
        (&long, "bytes"),
    ] {
        refuses(&["run", key, "--", "true"], 64, part);
        refuses(&["show", key], 64, part);
        refuses(&["wait", key], 64, part);
        refuses(&["evict", key, "--token", "1"], 64, part);
    }
    refuses(&["run", "--wait", "\u{1b}[2J", "k", "--", "true"], 64, "not a duration");
}

#[test]
fn unusual_keys_work() {
    let store = Store::new();
    for key in ["../../etc/passwd", "'; DROP TABLE claim; --", "日本 🦀", "%", "-", "a b", "$(id)"]
    {
        assert_eq!(store.code(["run", key, "--", "true"]), 0, "{key}");
        assert_eq!(store.code(["show", key]), 1, "{key}");
    }
}

#[test]
fn a_bad_url_is_64_and_names_the_thing() {
    for (url, part) in [
        ("nothing", "not a URL"),
        ("foo:", "unknown scheme `foo`"),
        ("sqlite:?pol=1", "unknown option `pol`"),
        ("sqlite:?ttl=x", "option `ttl`"),
        ("sqlite://host", "sqlite"),
        ("sqlite::memory:", "memory:"),
    ] {
        for verb in [&["run", "k", "--", "true"][..], &["ls"], &["show", "k"], &["wait", "k"]] {
            let output = output(tenure(["--url", url]).args(verb));
            assert_eq!(code(&output), 64, "{url} {verb:?}: {output:?}");
            let messages = text(&output.stderr);
            assert!(messages.contains(part) && messages.contains("try"), "{url}: {messages}");
        }
    }
}

#[test]
fn run_refuses_a_lock_in_memory() {
    let output = output(&mut tenure(["--url", "memory:", "run", "k", "--", "true"]));
    assert_eq!(code(&output), 64);
    assert!(text(&output.stderr).contains("sqlite:"), "{output:?}");
}

#[test]
fn an_empty_url_means_the_default() {
    let store = Store::new();
    let mut command = tenure(["run", "k", "--", "true"]);
    command.env("TENURE_URL", "").env("XDG_STATE_HOME", store.folder.path());
    assert_eq!(code(&output(&mut command)), 0);
    assert!(store.folder.path().join("tenure/locks.db").exists());
}

#[test]
fn a_file_that_is_no_store_is_refused_and_not_changed() {
    let store = Store::new();
    let path = store.folder.path().join("locks.db");
    let words = "dear diary, ".repeat(1000);
    std::fs::write(&path, &words).unwrap();
    for verb in [&["run", "k", "--", "true"][..], &["ls"], &["show", "k"]] {
        let output = store.output(verb.iter().copied());
        assert_eq!(code(&output), 64, "{output:?}");
        let messages = text(&output.stderr);
        assert!(messages.contains("locks.db") && messages.contains("try"), "{messages}");
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), words);
}

#[test]
fn a_damaged_store_is_refused() {
    let store = Store::new();
    let mut run = store.hold("k");
    run.signal(rustix::process::Signal::TERM);
    run.code();
    let path = store.folder.path().join("locks.db");
    // Move everything into the main file, then truncate it to half.
    let base = rusqlite::Connection::open(&path).unwrap();
    base.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(base);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    let output = store.output(["run", "k", "--", "true"]);
    assert!(matches!(code(&output), 64 | 69), "{output:?}");
    assert!(text(&output.stderr).contains("locks.db"), "{output:?}");
}

#[test]
fn a_folder_that_may_not_be_written_is_denied() {
    // Not even root may create files there.
    for verb in [&["run", "k", "--", "true"][..], &["ls"], &["show", "k"]] {
        let output =
            output(tenure(["--url", "sqlite:///sys/kernel/locks.db?network=allow"]).args(verb));
        assert_eq!(code(&output), 77, "{output:?}");
        let messages = text(&output.stderr);
        assert!(messages.contains("/sys/kernel") && messages.contains("try: "), "{messages}");
        assert!(messages.contains("rights"), "{messages}");
    }
}

#[test]
fn help_is_data_and_covers_every_verb() {
    for args in [&["help"][..], &["--help"], &["-h"]] {
        let output = output(&mut tenure(args.iter().copied()));
        assert_eq!(code(&output), 0);
        let help = text(&output.stdout);
        for verb in ["run", "ls", "show", "evict", "wait", "completions", "man", "help"] {
            assert!(help.contains(&format!("  {verb} ")), "{args:?} lacks {verb}: {help}");
            let one = support::output(&mut tenure(["help", verb]));
            assert_eq!(code(&one), 0);
            assert!(text(&one.stdout).contains(&format!("Usage: tenure {verb}")), "{one:?}");
        }
    }
    assert!(text(&output(&mut tenure(["--version"])).stdout).starts_with("tenure "));
}

#[test]
fn the_exit_codes_are_explained() {
    let table = text(&output(&mut tenure(["help", "exit-codes"])).stdout);
    for code in ["0", "1", "64", "69", "70", "75", "76", "77", "126", "127", "128+n"] {
        assert!(
            table.lines().any(|line| line.trim_start().starts_with(&format!("{code} "))),
            "{code}"
        );
    }
}

#[test]
fn pages_and_scripts_are_printed() {
    let man = text(&output(&mut tenure(["man"])).stdout);
    assert!(man.contains(".TH tenure 1") && man.contains("EXIT STATUS"), "{man}");
    assert!(man.contains("TENURE_REACH") && man.contains("/etc/tenure/url"), "{man}");
    let man = text(&output(&mut tenure(["man", "run"])).stdout);
    assert!(man.contains("no\\-wait") && man.contains("tenure\\-run"), "{man}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = output(&mut tenure(["completions", shell]));
        assert_eq!(code(&script), 0);
        assert!(text(&script.stdout).contains("evict"), "{shell}");
    }
}

#[test]
fn a_closed_reader_is_no_error() {
    for args in [&["help"][..], &["--help"], &["man"], &["completions", "bash"], &["ls", "--json"]]
    {
        let store = Store::new();
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            output(store.tenure(args.iter().copied()).stdout(writer).stderr(Stdio::piped()));
        assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn a_closed_reader_does_not_change_the_exit_code() {
    let store = Store::new();
    for (args, wanted) in [
        (&["show", "free"][..], 1),
        (&["show", "--json", "free"], 1),
        (&["run", "k"], 64),
        (&["--url", "foo:", "ls"], 64),
    ] {
        let closed = || {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            writer
        };
        let mut command = store.tenure(args.iter().copied());
        let output = output(command.stdout(closed()).stderr(closed()));
        assert_eq!(code(&output), wanted, "{args:?}");
    }
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = output(tenure(["help", "exit-codes"]).stdout(full).stderr(Stdio::piped()));
    assert_eq!(code(&output), 70);
    assert!(text(&output.stderr).contains("cannot write"), "{output:?}");
}
