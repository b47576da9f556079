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
        assert!(text(&script.stdout).contains("TENURE_COMPLETE"), "{shell}");
    }
}

/// The text of a page as man(1) shows it. Without that program the raw page is taken.
fn page(verb: &[&str]) -> String {
    let raw = text(&output(tenure(["man"]).args(verb)).stdout);
    assert!(!raw.contains("EXTRA"), "{raw}");
    let mut groff = std::process::Command::new("groff");
    groff.args(["-man", "-Tutf8", "-ww", "-P-cbou", "-rLL=200n"]).stdin(Stdio::piped());
    let Ok(mut groff) = groff.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        return raw.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-").replace("\\&", "");
    };
    std::io::Write::write_all(&mut groff.stdin.take().unwrap(), raw.as_bytes()).unwrap();
    let shown = groff.wait_with_output().unwrap();
    assert_eq!(text(&shown.stderr), "", "warnings of groff");
    text(&shown.stdout).replace('\u{2010}', "-")
}

#[test]
fn the_manual_has_the_sections_of_a_manual() {
    let run = page(&["run"]);
    for part in [
        "[-n|--no-wait]",
        "[-w|--wait DUR]",
        "KEY...",
        "-- CMD [ARG]...",
        "-c COMMAND",
        "[-s|--shared]",
        "EXAMPLES",
        "tenure run nightly-report -- ./report.sh",
        "EXIT STATUS",
        "127",
        "ENVIRONMENT",
        "TENURE_TOKEN",
        "FILES",
        "/etc/tenure/url",
    ] {
        assert!(run.contains(part), "{part}: {run}");
    }
    assert!(!run.contains("inconclusive"), "the codes of `lab`: {run}");
    let program = page(&[]);
    for part in ["URL", "redis+sentinel:", "password_file=", "tenure hold", "SEE ALSO"] {
        assert!(program.contains(part), "{part}: {program}");
    }
    assert!(page(&["evict"]).contains("[--ask[=DUR]]"), "{}", page(&["evict"]));
    assert!(!page(&["ls"]).contains("127") && page(&["lab"]).contains("inconclusive"));
}

#[test]
fn held_keys_and_commands_are_completed() {
    let store = Store::new();
    let _holders = ["orders/1", "nightly", "$(touch x)"].map(|key| store.hold(key));
    let offered = |words: &[&str]| -> Vec<String> {
        let mut command = store.tenure(["--"].into_iter().chain(words.iter().copied()));
        command.env("TENURE_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        let output = output(&mut command);
        assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""), "{words:?}");
        text(&output.stdout).lines().map(str::to_owned).collect()
    };
    for verb in ["show", "evict", "wait", "status", "run", "elect"] {
        let keys = offered(&["tenure", verb, ""]);
        assert!(keys.starts_with(&["nightly".to_owned(), "orders/1".to_owned()]), "{keys:?}");
        assert!(!keys.iter().any(|key| key.contains('$')), "a shell would execute it: {keys:?}");
        assert_eq!(offered(&["tenure", verb, "ord"]), ["orders/1"]);
    }
    assert_eq!(offered(&["tenure", "run", "nightly", "ord"]), ["orders/1"]);
    for verb in ["run", "elect"] {
        assert!(offered(&["tenure", verb, "k", "--", "slee"]).contains(&"sleep".to_owned()));
        assert_eq!(offered(&["tenure", verb, "k", "--", "sh", "/de"]), ["/dev/"]);
    }
    let dead = offered(&["tenure", "--url", "redis://127.0.0.1:1", "show", "o"]);
    assert_eq!(dead, Vec::<String>::new(), "a dead server offers nothing, without a word");
    assert_eq!(offered(&["tenure", "stat"]), ["status"]);
}

#[test]
fn bash_completes_a_key() {
    let store = Store::new();
    let _holder = store.hold("orders/1");
    let script = "source <(tenure completions bash); COMP_WORDS=(tenure show ord); COMP_CWORD=2
        COMP_TYPE=9; _clap_complete_tenure tenure ord show; echo \"${COMPREPLY[@]}\"";
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let mut bash = std::process::Command::new("bash");
    bash.args(["-c", script]).env("PATH", path).env("TENURE_URL", store.url());
    let output = output(&mut bash);
    assert_eq!(text(&output.stdout), "orders/1\n", "{output:?}");
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
