//! `tenure elect`: a command that runs while leading, and who leads.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use rustix::process::Signal;
use serde_json::Value;
use support::*;

/// Prints its token, and then runs until it is ended.
const LEAD: &str = "echo $TENURE_TOKEN; exec sleep 60";

fn elect(store: &Store, args: &[&str]) -> Running {
    let args = ["elect"].into_iter().chain(args.iter().copied());
    store.start(args.chain(["k", "--", "sh", "-c", LEAD]))
}

fn token(leader: &Running) -> u64 {
    leader.line().parse().unwrap()
}

fn depose(store: &Store, token: u64) {
    assert_eq!(store.code(["evict", "k", "--token", &token.to_string()]), 0);
}

#[test]
fn the_command_is_started_again_in_the_next_term() {
    let store = Store::new();
    let mut leader = elect(&store, &[]);
    let mut last = 0;
    for _ in 0..3 {
        let token = token(&leader);
        assert!(token > last, "{last}, then {token}");
        assert_eq!(store.token("k"), token);
        depose(&store, token);
        last = token;
    }
    assert!(token(&leader) > last);
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), 143, "the command's own");
    assert_eq!(leader.messages().matches("lost `k`").count(), 3);
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn once_ends_with_the_term() {
    let store = Store::new();
    let mut leader = elect(&store, &["--once"]);
    let token = token(&leader);
    depose(&store, token);
    assert_eq!(leader.code(), 76);
    assert_eq!(leader.rest(), Vec::<String>::new());
}

#[test]
fn a_command_that_ends_by_itself_ends_the_leadership() {
    let store = Store::new();
    assert_eq!(store.code(["elect", "k", "-c", "exit 3"]), 3);
    assert_eq!(store.code(["elect", "k", "--", "/nonexistent"]), 127);
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_candidate_leads_when_the_leader_resigns_or_dies() {
    let store = Store::new();
    let mut first = elect(&store, &[]);
    let one = token(&first);
    let mut second = elect(&store, &[]);
    store.until_waiting("k", 1);
    first.signal(Signal::TERM);
    let two = token(&second);
    assert!(two > one, "{one}, then {two}");
    assert_eq!(first.code(), 143);
    let third = elect(&store, &[]);
    store.until_waiting("k", 1);
    second.kill();
    assert!(token(&third) > two);
}

#[test]
fn a_signal_ends_a_candidate_also_between_two_terms() {
    let store = Store::new();
    let _leader = store.hold("k");
    let mut candidate = elect(&store, &[]);
    store.until_waiting("k", 1);
    candidate.signal(Signal::TERM);
    assert_eq!(candidate.code(), 143);
    store.until_waiting("k", 0);

    let store = Store::new();
    let mut leader = elect(&store, &[]);
    let token = token(&leader);
    // Another one leads next.
    let rival = store.start(["run", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    store.until_waiting("k", 1);
    depose(&store, token);
    assert_eq!(rival.line(), "held");
    store.until_waiting("k", 1);
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), 143);
    assert_eq!(leader.rest(), Vec::<String>::new());
}

#[test]
fn a_signal_before_the_loss_ends_the_election() {
    let store = Store::new();
    let script = "trap 'echo told' TERM; echo $TENURE_TOKEN; while :; do sleep 0.02; done";
    let mut leader = store.start(["elect", "k", "--", "sh", "-c", script]);
    let token = token(&leader);
    leader.signal(Signal::TERM);
    assert_eq!(leader.line(), "told");
    depose(&store, token);
    assert_eq!(leader.code(), 76, "it was to end, and does not lead again");
}

#[test]
fn a_killed_launcher_ends_the_second_term_too() {
    let store = Store::new();
    let script = "echo $TENURE_TOKEN; echo $$; exec sleep 60";
    let mut leader = store.start(["elect", "k", "--", "sh", "-c", script]);
    let (term, _first) = (token(&leader), leader.number());
    depose(&store, term);
    let (_term, second) = (token(&leader), leader.number());
    leader.kill();
    until_dead(second);
    eventually("it is free", || store.show("k") == Value::Null);
}

#[test]
fn a_killed_supervisor_ends_the_second_term_too() {
    let store = Store::new();
    let script = "echo $TENURE_TOKEN; echo $$; exec sleep 60";
    let mut leader = store.start(["elect", "k", "--", "sh", "-c", script]);
    let (term, _first) = (token(&leader), leader.number());
    depose(&store, term);
    let (_term, second) = (token(&leader), leader.number());
    send(leader.supervisor(), Signal::KILL);
    until_dead(second);
    assert_eq!(leader.code(), 76);
}

#[test]
fn who_leads_is_shown() {
    let store = Store::new();
    let none = store.output(["elect", "--who", "k"]);
    assert_eq!((code(&none), text(&none.stdout).as_str()), (1, "`k` has no leader\n"));
    let none = store.output(["elect", "--who", "--json", "k"]);
    assert_eq!((code(&none), text(&none.stdout).as_str()), (1, "null\n"));
    let leader = elect(&store, &["--note", "http://10.0.0.7"]);
    let token = token(&leader);
    let shown = store.output(["elect", "--who", "k"]);
    let line = text(&shown.stdout);
    assert_eq!(code(&shown), 0);
    assert!(line.contains("http://10.0.0.7") && line.contains(&token.to_string()), "{line}");
    let shown = store.output(["elect", "--who", "--json", "k"]).stdout;
    let row: Value = serde_json::from_slice(&shown).unwrap();
    assert_eq!(
        (&row["key"], &row["owner"], &row["token"]),
        (&"k".into(), &"sh".into(), &token.into())
    );
    assert_eq!((&row["note"], &row["candidates"]), (&"http://10.0.0.7".into(), &0.into()));
    assert_eq!(row["pid"], leader.launcher());
}

#[test]
fn every_change_is_one_line() {
    let store = Store::new();
    let seen = store.start(["elect", "--observe", "--json", "k"]);
    let next = || serde_json::from_str::<Value>(&seen.line()).unwrap();
    let first = next();
    assert_eq!((&first["key"], &first["leader"]), (&"k".into(), &Value::Null));
    assert!(first["time"].is_string());
    let mut leader = elect(&store, &[]);
    let token = token(&leader);
    assert_eq!(next()["leader"]["token"], token);
    depose(&store, token);
    let again = leader.line().parse::<u64>().unwrap();
    // The state between two terms need not be seen.
    let line = next();
    let line = if line["leader"].is_null() { next() } else { line };
    assert_eq!(line["leader"]["token"], again);
    leader.signal(Signal::TERM);
    assert_eq!(leader.code(), 143);
    assert_eq!(next()["leader"], Value::Null);
    // An observer is no waiter.
    assert_eq!(store.code(["run", "-n", "k", "--", "true"]), 0);
}

#[test]
fn an_observer_ends_with_its_reader() {
    let store = Store::new();
    let script = "\"$0\" elect --observe k | head -n 1; echo ${PIPESTATUS[0]}";
    let mut shell = std::process::Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_tenure")]).env("TENURE_URL", store.url());
    let mut shell = Running::start(&mut shell);
    assert_eq!(shell.line(), "`k` has no leader");
    let _leader = store.hold("k");
    assert_eq!(shell.line(), "0");
    assert_eq!(shell.code(), 0);
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    for args in [
        &["elect", "--who", "--observe", "k"][..],
        &["elect", "--who", "k", "--", "true"],
        &["elect", "--observe", "--once", "k"],
        &["elect", "k"],
        &["elect", "k", "true"],
        &["elect", "a", "b", "--", "true"],
    ] {
        let refused = Store::new().output(args.iter().copied());
        assert_eq!((code(&refused), text(&refused.stdout).as_str()), (64, ""), "{args:?}");
    }
}
