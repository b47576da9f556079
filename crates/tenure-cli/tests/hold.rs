//! `tenure hold`: what ends it, what it prints, and what a loss does.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use support::terminal::Terminal;
use support::*;

/// Starts `hold` without input, and waits until it holds. Returns its token, too.
fn hold(store: &Store, args: &[&str]) -> (Running, u64) {
    let run = store.start(["hold"].into_iter().chain(args.iter().copied()));
    let token = run.line().parse().unwrap();
    (run, token)
}

#[test]
fn a_signal_releases_the_lock_with_code_0() {
    let store = Store::new();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let (mut run, token) = hold(&store, &["k"]);
        let shown = store.show("k");
        assert_eq!((&shown["token"], &shown["owner"]), (&token.into(), &"tenure-hold".into()));
        assert_eq!(shown["pid"], run.launcher(), "the process to signal");
        assert_eq!(store.code(["run", "-n", "k", "--", "true"]), 75);
        run.signal(signal);
        assert_eq!((run.code(), run.messages().as_str()), (0, ""), "{signal:?}");
        assert_eq!(store.show("k"), Value::Null);
    }
}

#[test]
fn the_end_of_the_input_releases_the_lock() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut run = Running::start(store.tenure(["hold", "k"]).stdin(reader));
    let _token = run.line();
    // What is written is not read, and does not end it.
    std::io::Write::write_all(&mut &writer, b"words\n").unwrap();
    assert!(!run.is_over());
    assert_ne!(store.show("k"), Value::Null);
    drop(writer);
    assert_eq!(run.code(), 0);
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_file_without_input_does_not_end_it() {
    let store = Store::new();
    let file = store.folder.path().join("empty");
    std::fs::write(&file, "").unwrap();
    let file = std::fs::File::open(file).unwrap();
    let run = Running::start(store.tenure(["hold", "file"]).stdin(file));
    run.line();
    let null = Running::start(store.tenure(["hold", "null"]).stdin(Stdio::null()));
    null.line();
    // Both had their chance to end: another lock was acquired and released since.
    assert_eq!(store.code(["run", "other", "--", "true"]), 0);
    assert!(["file", "null"].iter().all(|key| store.show(key) != Value::Null));
}

#[test]
fn a_section_of_a_script_is_under_the_lock() {
    let store = Store::new();
    let script = r#"
        coproc tenure hold k
        read -r token <&"${COPROC[0]}"
        tenure run -n k -- true; echo "busy $?"
        eval "exec ${COPROC[1]}>&-"
        wait "$COPROC_PID"; echo "released $?"
        tenure run -n k -- sh -c 'test "$TENURE_TOKEN" -gt "$1"' sh "$token"; echo "free $?"
    "#;
    let mut command = Command::new("bash");
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_tenure")).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    command.args(["-c", script]).env("PATH", path).env("TENURE_URL", store.url());
    let output = output(&mut command);
    assert_eq!(text(&output.stdout), "busy 75\nreleased 0\nfree 0\n", "{output:?}");
}

#[test]
fn a_lost_lock_ends_it_with_76() {
    let store = Store::new();
    let (mut run, token) = hold(&store, &["k"]);
    assert_eq!(store.code(["evict", "k", "--token", &token.to_string()]), 0);
    assert_eq!(run.code(), 76);
    assert!(run.messages().contains("it was evicted"), "{}", run.written());
}

#[test]
fn the_lock_of_a_killed_hold_is_free() {
    let store = Store::new();
    let (mut run, _) = hold(&store, &["k"]);
    let supervisor = run.supervisor();
    run.kill();
    until_dead(supervisor);
    assert_eq!(store.code(["run", "-w", "10", "k", "--", "true"]), 0);
    let (mut run, _) = hold(&store, &["k"]);
    send(run.supervisor(), Signal::KILL);
    assert_eq!(run.code(), 76);
    assert_eq!(store.code(["run", "-w", "10", "k", "--", "true"]), 0);
}

#[test]
fn a_stopped_launcher_keeps_the_lock_and_a_stopped_supervisor_is_given_up() {
    let store = Store::new();
    let (mut run, token) = hold(&store, &["--ttl", "1s", "k"]);
    run.signal(Signal::STOP);
    let stopped = std::time::Instant::now();
    eventually("two leases pass", || stopped.elapsed() > std::time::Duration::from_secs(2));
    assert_eq!(store.token("k"), token, "it was renewed");
    run.signal(Signal::CONT);
    send(run.supervisor(), Signal::STOP);
    assert_eq!(run.code(), 76);
}

#[test]
fn a_wait_for_the_lock_can_be_ended() {
    let store = Store::new();
    let (_holder, _) = hold(&store, &["k"]);
    assert_eq!(store.code(["hold", "-n", "k"]), 75);
    assert_eq!(store.code(["hold", "-n", "-E", "0", "k"]), 0);
    let mut run = store.start(["hold", "k"]);
    store.until_waiting("k", 1);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    let (reader, writer) = std::io::pipe().unwrap();
    let mut run = Running::start(store.tenure(["hold", "k"]).stdin(reader));
    store.until_waiting("k", 1);
    drop(writer);
    assert_eq!(run.code(), 75);
    assert!(run.messages().contains("the input ended"), "{}", run.written());
    eventually("the queue is empty", || store.show("k")["waiters"] == 0);
}

#[test]
fn json_lines_are_on_stdout_and_have_a_time() {
    let store = Store::new();
    let mut run = store.start(["hold", "--json", "k"]);
    let first: Value = serde_json::from_str(&run.line()).unwrap();
    assert_eq!((&first["event"], &first["token"]), (&"acquired".into(), &store.token("k").into()));
    run.signal(Signal::TERM);
    assert_eq!((run.code(), run.messages().as_str()), (0, ""));
    let rest: Vec<Value> =
        run.rest().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&rest[0]["event"], &rest[0]["cause"]), (&"exit".into(), &"signal".into()));
    let lines = [&first, &rest[0]];
    assert!(lines.iter().all(|line| line["time"].as_str().is_some_and(|t| t.ends_with('Z'))));
}

#[test]
fn ctrl_c_and_ctrl_d_release_the_lock() {
    let store = Store::new();
    for key in ["\x03", "\x04"] {
        let mut terminal = Terminal::start(&mut store.tenure(["hold", "k"]));
        terminal.expect("holding `k`, until Ctrl-C or Ctrl-D");
        terminal.press("words\n");
        terminal.expect("words");
        assert_ne!(store.show("k"), Value::Null);
        terminal.press(key);
        assert_eq!(terminal.code(), 0);
        assert_eq!(store.show("k"), Value::Null);
    }
}

#[test]
fn verbose_reports_where_the_lock_lives_and_what_happens() {
    let store = Store::new();
    let output = store.output(["run", "-v", "k", "--", "true"]);
    let messages = text(&output.stderr);
    let parts = ["`sqlite:`; the URL is given by", "acquired `k` (token ", "released `k`"];
    assert!(messages.lines().zip(parts).all(|(line, part)| line.contains(part)), "{messages}");
    assert_eq!(messages.lines().count(), 3, "{messages}");
    let (_holder, _) = hold(&store, &["k"]);
    let output = store.output(["run", "-v", "-w", "0.2", "k", "--", "true"]);
    assert!(text(&output.stderr).contains("waiting for `k`, held by tenure-hold"), "{output:?}");
}
