//! `tenure evict --current` and `--ask`: which grant ends, after which question, and how its holder
//! is told.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::terminal::Terminal;
use support::*;

/// A command that takes its time after TERM, and says when it has ended.
fn slow_holder(store: &Store, key: &str, end: &str) -> Running {
    let script = format!("trap '{end}' TERM; echo held; while :; do sleep 0.05; done");
    let run = store.start(["run", key, "--", "sh", "-c", &script]);
    assert_eq!(run.line(), "held");
    run
}

#[test]
fn the_current_holder_is_evicted_after_yes() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let output = store.output(["evict", "k", "--current"]);
    assert_eq!(code(&output), 64, "there is no terminal to ask on: {output:?}");
    assert!(text(&output.stderr).contains("--yes"), "{output:?}");
    assert!(!holder.is_over());
    assert_eq!(store.code(["evict", "k", "--current", "--yes"]), 0);
    assert_eq!(holder.code(), 76);
    let output = store.output(["evict", "k", "--current", "-y"]);
    assert_eq!(code(&output), 1, "{output:?}");
    assert!(text(&output.stderr).contains("`k` is free"), "{output:?}");
    let both = store.output(["evict", "k", "--current", "--token", "1"]);
    assert_eq!(code(&both), 64, "{both:?}");
}

#[test]
fn a_terminal_is_asked_and_only_y_evicts() {
    let store = Store::new();
    let mut holder = store.hold("k");
    for answer in ["\n", "n\n", "nay\n", "\x04"] {
        let mut terminal = Terminal::start(&mut store.tenure(["evict", "k", "--current"]));
        terminal.expect(&format!("token {}", store.token("k")));
        terminal.expect("sh on ");
        terminal.expect("evict this holder? [y/N]");
        terminal.press(answer);
        assert_eq!(terminal.code(), 1, "{answer:?}");
    }
    assert!(!holder.is_over());
    let mut terminal = Terminal::start(&mut store.tenure(["evict", "k", "--current"]));
    terminal.expect("[y/N]");
    terminal.press("y\n");
    assert_eq!((terminal.code(), holder.code()), (0, 76));
}

#[test]
fn the_answer_is_about_the_grant_that_was_shown() {
    let store = Store::new();
    let mut first = store.hold("k");
    let mut terminal = Terminal::start(&mut store.tenure(["evict", "k", "--current"]));
    terminal.expect("[y/N]");
    first.signal(Signal::TERM);
    assert_eq!(first.code(), 143);
    let mut second = store.hold("k");
    terminal.press("y\n");
    assert_eq!(terminal.code(), 1, "{}", terminal.all());
    assert!(!second.is_over(), "the next holder was not meant");
}

#[test]
fn a_holder_that_is_asked_releases_the_lock_itself() {
    let store = Store::new();
    let mut holder = slow_holder(&store, "k", "sleep 0.5; echo cleaned up; exit 5");
    let mut waiter = store.start(["run", "k", "--", "echo", "next"]);
    store.until_waiting("k", 1);
    let output = store.output(["evict", "k", "--ask", "--yes"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(text(&output.stderr).contains("sent TERM to sh on "), "{output:?}");
    assert_eq!(holder.code(), 5, "it was not lost");
    assert_eq!(holder.line(), "cleaned up");
    assert_eq!((waiter.line().as_str(), waiter.code()), ("next", 0));
    let mut hold = store.start(["hold", "k"]);
    hold.line();
    assert_eq!(store.code(["evict", "k", "--ask=1m", "--yes"]), 0);
    assert_eq!(hold.code(), 0);
}

#[test]
fn a_holder_that_does_not_end_is_evicted_after_the_given_time() {
    let store = Store::new();
    let mut holder = slow_holder(&store, "k", "");
    let begin = Instant::now();
    let token = store.token("k").to_string();
    let output = store.output(["evict", "k", "--token", &token, "--ask=400ms"]);
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(begin.elapsed() >= Duration::from_millis(400));
    assert_eq!(holder.code(), 76);
    let output = store.output(["evict", "k", "--token", &token, "--ask"]);
    assert_eq!(code(&output), 1, "that grant is over: {output:?}");
}

#[test]
fn a_holder_that_ignores_the_request_is_not_evicted_without_a_time() {
    let store = Store::new();
    let holder = slow_holder(&store, "k", "echo ignored");
    let token = store.token("k");
    let mut ask = store.start(["evict", "k", "--ask", "--yes"]);
    assert_eq!(holder.line(), "ignored");
    assert!(!ask.is_over());
    ask.signal(Signal::INT);
    eventually("the request ends", || ask.is_over());
    assert_eq!(store.token("k"), token);
}

/// What other clients write about themselves must not make this program signal another process.
#[test]
fn only_a_tenure_of_this_machine_is_signalled() {
    let store = Store::new();
    let _holder = store.hold("k");
    let mut victim = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let path = store.folder.path().join("locks.db");
    let base = rusqlite::Connection::open(path).unwrap();
    let stored: String =
        base.query_row("SELECT note FROM claim WHERE key = 'k'", [], |row| row.get(0)).unwrap();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let fields: Vec<&str> = stored.split('\t').collect();
    let refused = |forged: &str, part: &str| {
        assert_ne!(forged, stored);
        base.execute("UPDATE claim SET note = ?1 WHERE key = 'k'", [forged]).unwrap();
        let output = store.output(["evict", "k", "--ask=0", "--yes"]);
        assert_eq!(code(&output), 64, "{output:?}");
        assert!(text(&output.stderr).contains(part), "{output:?}");
        assert_ne!(store.show("k"), Value::Null, "it was not evicted either");
    };
    assert!(stored.contains(&host) && fields.len() >= 4, "{stored:?}");
    let launcher = store.show("k")["pid"].to_string();
    let victim_pid = victim.id().to_string();
    let mark = format!("[run {launcher}]");
    let not_here = "not a process of this machine";
    refused(&stored.replace(&mark, &format!("[run {victim_pid}]")), not_here);
    refused(&stored.replace(&mark, "[run 4294967295]"), not_here);
    // A pair of processes that do belong together, and are not this program.
    let parent = std::process::id();
    let forged = [fields[0], fields[1], &victim_pid, &format!("[run {parent}]")].join("\t");
    refused(&forged, not_here);
    refused(&stored.replace(&host, "elsewhere"), "another machine");
    refused(&stored.replace(&mark, ""), "not a `tenure run`");
    assert!(victim.try_wait().unwrap().is_none(), "it was signalled");
    victim.kill().unwrap();
    victim.wait().unwrap();
}
