//! A lock that is lost, held for too long, or cannot be released.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::*;

#[test]
fn an_evicted_command_gets_sigterm_and_the_code_is_76() {
    let store = Store::new();
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut run = store.start(["run", "k", "--", "sh", "-c", script]);
    run.line();
    let token = store.token("k").to_string();
    assert_eq!(store.code(["evict", "k", "--token", &token]), 0);
    assert_eq!(run.line(), "bye");
    assert_eq!(run.code(), 76, "even if the command exits with 0");
    let messages = run.messages();
    assert!(messages.contains("lost `k`") && messages.contains("evicted"), "{messages}");
    let next = store.output(["run", "k", "--", "sh", "-c", "echo $TENURE_TOKEN"]);
    assert!(text(&next.stdout).trim().parse::<u64>().unwrap() > token.parse().unwrap());
}

#[test]
fn a_command_that_ignores_sigterm_is_killed_before_the_lease_ends() {
    let store = Store::new();
    let script = "trap '' TERM; setsid sh -c 'echo $$; exec sleep 60' & echo $$
        while :; do sleep 0.02; done";
    // With a short lease its end decides, with a long one the grace period of two seconds.
    for (ttl, limit) in [("2s", 2), ("60s", 10)] {
        let mut run = store.start(["run", "--ttl", ttl, "k", "--", "sh", "-c", script]);
        let tree = [run.number(), run.number()];
        let token = store.token("k").to_string();
        let begin = Instant::now();
        assert_eq!(store.code(["evict", "k", "--token", &token]), 0);
        tree.into_iter().for_each(until_dead);
        assert!(begin.elapsed() < Duration::from_secs(limit), "{ttl}: {:?}", begin.elapsed());
        assert_eq!(run.code(), 76);
    }
}

#[test]
fn a_command_whose_lock_cannot_be_renewed_is_dead_before_its_lease_ends() {
    let store = Store::new();
    let script = "trap 'echo terminated' TERM; echo $$; while :; do sleep 0.02; done";
    let mut run = store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    let command = run.number();
    let base = blocked(&store);
    let begin = Instant::now();
    assert_eq!(run.line(), "terminated");
    until_dead(command);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    base.execute_batch("ROLLBACK").unwrap();
    assert_eq!(run.code(), 76);
}

#[test]
fn a_release_that_cannot_be_confirmed_does_not_change_the_code() {
    let store = Store::new();
    let script = "echo ready; exec sleep 60";
    let mut run = store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    run.line();
    let _base = blocked(&store);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    assert!(run.messages().contains("not confirmed"));
}

#[test]
fn a_signal_does_not_interrupt_a_release() {
    let store = Store::new();
    let script = "echo $$; read end";
    let mut command = store.tenure(["run", "--ttl", "20s", "k", "--", "sh", "-c", script]);
    let mut run = Running::start(command.stdin(std::process::Stdio::piped()));
    let command = run.number();
    let base = blocked(&store);
    send(command, Signal::KILL);
    eventually("the command is reaped", || state(command).is_none());
    run.signal(Signal::TERM);
    // An interrupted release would end the program within a second.
    let end = Instant::now() + Duration::from_millis(1500);
    while Instant::now() < end {
        assert!(!run.is_over(), "{}", run.messages());
        std::thread::sleep(Duration::from_millis(10));
    }
    base.execute_batch("ROLLBACK").unwrap();
    assert_eq!(run.code(), 137);
    assert_eq!(run.messages(), "");
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_command_that_holds_too_long_is_ended() {
    let store = Store::new();
    let mut run = store.start(["run", "--max-hold", "200ms", "k", "--", "sleep", "60"]);
    assert_eq!(run.code(), 76);
    assert!(run.messages().contains("--max-hold"));
    assert_eq!(store.show("k"), Value::Null);
}

/// Opens a transaction that blocks every other writer of the store.
fn blocked(store: &Store) -> rusqlite::Connection {
    let base = rusqlite::Connection::open(store.folder.path().join("locks.db")).unwrap();
    base.busy_timeout(LIMIT).unwrap();
    base.execute_batch("BEGIN IMMEDIATE").unwrap();
    base
}
