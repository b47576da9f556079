//! `run --at-least`: a lock that is kept after its command has ended, whatever ends `run`.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::terminal::Terminal;
use crate::support::*;

/// Starts a command that ends at once, and waits for its end: from then on the lock is only kept.
fn kept(store: &Store, at_least: &str, script: &str) -> Running {
    let script = format!("echo $$; {script}");
    let run = store.start(["run", "--at-least", at_least, "k", "--", "sh", "-c", &script]);
    let command = run.number();
    eventually("the command is reaped", || state(command).is_none());
    run
}

#[test]
fn three_starts_of_a_short_job_run_it_once() {
    let store = Store::new();
    let log = store.folder.path().join("log");
    let runs = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let job = format!("echo ran >>{}", log.display());
    // What docs/cli.md recommends for cron, with a shorter time.
    let options = ["run", "--no-wait", "--busy-exit", "0", "--at-least", "4s"];
    let mut hosts: Vec<Running> = Vec::new();
    for _ in 0..3 {
        let args = options.into_iter().chain(["nightly", "--", "sh", "-c", &job]);
        hosts.push(store.start(args));
        // The next one starts when the job is over, as with clocks that differ a little.
        eventually("the job ran", || runs() > 0);
        if let Some(late) = hosts.get_mut(1) {
            assert_eq!(late.code(), 0, "busy is fine");
        }
    }
    assert!(hosts.iter_mut().all(|host| host.code() == 0));
    assert_eq!(runs(), 1);
    assert_eq!(store.show("nightly"), Value::Null, "it is free in the end");
}

#[test]
fn the_lock_is_kept_after_a_failed_command_and_its_code_is_returned() {
    let store = Store::new();
    let begin = Instant::now();
    let mut run = kept(&store, "2s", "exit 3");
    assert_eq!(store.code(["run", "--no-wait", "k", "--", "true"]), 75);
    assert_eq!(run.code(), 3);
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
    assert_eq!(run.messages(), "");
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_long_command_is_not_delayed() {
    let store = Store::new();
    let output = store.output(["run", "--json", "--at-least", "50ms", "k", "--", "sleep", "0.2"]);
    assert_eq!(code(&output), 0);
    assert!(!text(&output.stderr).contains("kept"), "{output:?}");
    let output = store.output(["run", "--json", "--at-least", "1s", "k", "--", "true"]);
    let events: Vec<Value> =
        text(&output.stderr).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(names, ["acquired", "kept", "exit"]);
    assert!(events[1]["left_ms"].as_u64().unwrap() <= 1000 && events[1]["code"] == 0);
}

#[test]
fn the_lock_is_not_kept_if_the_command_cannot_start() {
    let store = Store::new();
    let begin = Instant::now();
    assert_eq!(store.code(["run", "--at-least", "1h", "k", "--", "no-such-command-here"]), 127);
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_signal_ends_the_run_but_not_the_lock() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let store = Store::new();
        let mut run = kept(&store, "5s", "exit 3");
        let supervisor = run.supervisor();
        let begin = Instant::now();
        run.signal(signal);
        assert_eq!(run.code(), 3, "the command's own");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        assert_eq!(run.messages(), "", "stderr is closed at once");
        assert!(is_alive(supervisor));
        assert_ne!(store.show("k"), Value::Null, "it is still held");
        eventually("the lock is free in the end", || store.show("k") == Value::Null);
        until_dead(supervisor);
    }
}

#[test]
fn a_signal_that_ends_the_command_does_not_end_the_lock() {
    let store = Store::new();
    let args = ["run", "--at-least", "6s", "k", "--", "sh", "-c", "echo $$; exec sleep 60"];
    let mut run = store.start(args);
    run.number();
    let begin = Instant::now();
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_ne!(store.show("k"), Value::Null, "it is still held");
    eventually("the lock is free in the end", || store.show("k") == Value::Null);
}

#[test]
fn a_killed_launcher_does_not_end_the_lock() {
    let store = Store::new();
    let mut run = kept(&store, "5s", "exit 0");
    let supervisor = run.supervisor();
    run.kill();
    assert!(is_alive(supervisor));
    assert_ne!(store.show("k"), Value::Null, "it is still held");
    eventually("the lock is free in the end", || store.show("k") == Value::Null);
    until_dead(supervisor);
}

#[test]
fn a_launcher_killed_while_the_command_runs_does_not_end_the_lock() {
    let store = Store::new();
    let args = ["run", "--at-least", "5s", "k", "--", "sh", "-c", "echo $$; exec sleep 60"];
    let mut run = store.start(args);
    let command = run.number();
    let supervisor = run.supervisor();
    run.kill();
    until_dead(command);
    assert_eq!(run.messages(), "", "stderr is closed at once");
    assert!(is_alive(supervisor));
    assert_ne!(store.show("k"), Value::Null, "it is still held");
    eventually("the lock is free in the end", || store.show("k") == Value::Null);
}

#[test]
fn a_killed_supervisor_is_reported_and_does_not_change_the_code() {
    let store = Store::new();
    let args = ["run", "--at-least", "1h", "k", "--", "sh", "-c", "exit 3"];
    let mut terminal = Terminal::start(&mut store.tenure(args));
    terminal.expect("`k` is kept for another ");
    let supervisor = children(terminal.pid());
    send(supervisor[0], Signal::KILL);
    terminal.expect("before --at-least had passed");
    assert_eq!(terminal.code(), 3);
}

#[test]
fn a_kept_lock_can_be_evicted() {
    let store = Store::new();
    let mut run = kept(&store, "1h", "exit 3");
    let token = store.token("k").to_string();
    assert_eq!(store.code(["evict", "k", "--token", &token]), 0);
    assert_eq!(run.code(), 3, "the command had it to its end");
    assert!(run.messages().contains("evicted"));
}
