//! The results of `tenure run`: exit codes, messages, JSON events, and the command's environment.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::*;

#[test]
fn the_exact_code_of_the_command_is_returned() {
    let store = Store::new();
    for code in [0, 1, 37, 75, 255] {
        assert_eq!(store.code(["run", "k", "--", "sh", "-c", &format!("exit {code}")]), code);
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139), ("INT", 130)] {
        let script = format!("kill -{signal} $$");
        assert_eq!(store.code(["run", "k", "--", "sh", "-c", &script]), code);
    }
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_command_that_cannot_start_leaves_the_lock_free() {
    let store = Store::new();
    let output = store.output(["run", "k", "--", "no-such-command-here"]);
    assert_eq!(code(&output), 127);
    assert!(text(&output.stderr).contains("`no-such-command-here`"), "{output:?}");
    let folder = store.folder.path().to_str().unwrap();
    assert_eq!(store.code(["run", "k", "--", folder]), 126);
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn the_command_gets_its_key_and_token() {
    let store = Store::new();
    let script = "echo $TENURE_KEY; echo $TENURE_TOKEN; read end";
    let mut run = Running::start(
        store
            .tenure(["run", "a key/ü", "--", "sh", "-c", script])
            .stdin(std::process::Stdio::piped()),
    );
    assert_eq!(run.line(), "a key/ü");
    assert_eq!(run.line(), store.token("a key/ü").to_string());
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
}

#[test]
fn busy_is_75_and_names_the_holder() {
    let store = Store::new();
    let holder = store.start([
        "run",
        "--note",
        "big job",
        "k",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 60",
    ]);
    holder.line();
    let output = store.output(["run", "--no-wait", "k", "--", "echo", "ran"]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (75, ""));
    let messages = text(&output.stderr);
    let pid = format!("pid {}", holder.launcher());
    assert!(
        messages.contains(&pid) && messages.contains("big job") && messages.contains("sh on "),
        "{messages}"
    );

    let begin = Instant::now();
    assert_eq!(store.code(["run", "--wait", "400ms", "k", "--", "echo", "ran"]), 75);
    assert!(begin.elapsed() >= Duration::from_millis(400));
    assert!(begin.elapsed() < Duration::from_secs(5));

    assert_eq!(store.code(["run", "--no-wait", "--busy-exit", "9", "k", "--", "true"]), 9);
    let output = store.output(["run", "--no-wait", "--busy-exit", "0", "k", "--", "true"]);
    assert_eq!((code(&output), text(&output.stderr).as_str()), (0, ""));
}

#[test]
fn a_waiter_gets_the_lock_when_it_is_released() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let first = store.token("k");
    let mut waiter = store.start(["run", "k", "--", "sh", "-c", "echo $TENURE_TOKEN"]);
    store.until_waiting("k", 1);
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert!(waiter.line().parse::<u64>().unwrap() > first);
    assert_eq!(waiter.code(), 0);
}

#[test]
fn a_finished_run_leaves_no_files_behind() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let mut waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));
    let left: Vec<_> = std::fs::read_dir(store.folder.path().join("locks.db.d")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn json_events_report_what_happens() {
    let store = Store::new();
    let events = |messages: &str| -> Vec<Value> {
        messages.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut holder =
        store.start(["run", "--json", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
    let token = store.token("k");
    let mut waiter = store.start(["run", "--json", "k", "--", "sh", "-c", "exit 3"]);
    store.until_waiting("k", 1);
    let busy =
        events(&text(&store.output(["run", "--json", "--no-wait", "k", "--", "true"]).stderr));
    let times: Vec<_> = busy.iter().map(|event| event["time"].as_str().unwrap()).collect();
    assert!(times.is_sorted() && times.iter().all(|time| time.ends_with('Z')), "{times:?}");
    assert_eq!(busy[0]["event"], "busy");
    assert_eq!(busy[0]["holder"]["token"], token);
    assert_eq!((&busy[1]["event"], &busy[1]["cause"]), (&"exit".into(), &"busy".into()));
    assert_eq!(store.code(["evict", "k", "--token", &token.to_string()]), 0);
    assert_eq!((holder.code(), waiter.code()), (76, 3));

    let events_of = |run: &mut Running| events(&run.messages());
    let held = events_of(&mut holder);
    assert_eq!(held[0]["event"], "acquired");
    assert_eq!((&held[0]["key"], &held[0]["token"]), (&"k".into(), &token.into()));
    assert_eq!((&held[1]["event"], &held[1]["reason"]), (&"lost".into(), &"evicted".into()));
    assert_eq!((&held[2]["event"], &held[2]["code"]), (&"exit".into(), &76.into()));
    let waited = events_of(&mut waiter);
    assert_eq!(
        (&waited[0]["event"], &waited[0]["holder"]["pid"]),
        (&"waiting".into(), &holder.launcher().into())
    );
    assert_eq!(waited[0]["reason"], Value::Null, "it is for a holder");
    assert_eq!(waited[1]["event"], "acquired");
    assert!(waited[1]["waited_ms"].is_u64());
    assert_eq!((&waited[2]["code"], &waited[2]["cause"]), (&3.into(), &"command".into()));
}
