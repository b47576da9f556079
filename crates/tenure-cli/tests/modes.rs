//! `--shared`, `--limit` and several keys: how commands hold locks together, and what is shown of
//! it.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use serde_json::Value;
use support::*;

const HOLD: &str = "echo held; exec sleep 60";

fn hold(store: &Store, args: &[&str]) -> Running {
    let command = ["--", "sh", "-c", HOLD];
    let run = store.start(["run"].into_iter().chain(args.iter().copied()).chain(command));
    assert_eq!(run.line(), "held");
    run
}

fn variables(store: &Store, args: &[&str]) -> Vec<String> {
    let command = ["--", "sh", "-c", "env | grep -E '^TENURE_(KEY|TOKEN|MODE)' | sort"];
    let outer = [("TENURE_KEY", "outer"), ("TENURE_TOKEN", "1"), ("TENURE_TOKEN_3", "3")];
    let args = ["run"].into_iter().chain(args.iter().copied()).chain(command);
    let output = output(store.tenure(args).envs(outer));
    assert_eq!(code(&output), 0, "{output:?}");
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn readers_run_together_and_a_writer_alone() {
    let store = Store::new();
    let one = hold(&store, &["--shared", "k"]);
    let two = hold(&store, &["-s", "k"]);
    assert_eq!(store.code(["run", "-n", "k", "--", "true"]), 75);
    let shown = store.show("k");
    assert_eq!(shown["mode"], "shared");
    let pids: Vec<_> = shown["holders"].as_array().unwrap().iter().map(|row| &row["pid"]).collect();
    assert_eq!(pids, [one.launcher(), two.launcher()], "the oldest first");
    let mut writer = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    assert_eq!(store.show("k")["waiting"][0]["mode"], "exclusive");
    assert_eq!(store.code(["run", "-n", "-s", "k", "--", "true"]), 75, "behind the writer");
    drop((one, two));
    assert_eq!(writer.code(), 0);
}

#[test]
fn no_more_run_than_the_limit_allows() {
    let store = Store::new();
    let two = hold(&store, &["--limit", "3", "--permits", "2", "k"]);
    let one = hold(&store, &["--limit", "3", "k"]);
    assert_eq!(store.code(["run", "-n", "--limit", "3", "k", "--", "true"]), 75);
    let shown = store.show("k");
    assert_eq!((&shown["mode"], &shown["permits"]), (&"permits".into(), &2.into()));
    drop(two);
    assert_eq!(
        store.code(["run", "-w", "10", "--limit", "3", "--permits", "2", "k", "-c", ":"]),
        0
    );
    drop(one);
    let other = hold(&store, &["--limit", "3", "k"]);
    let refused = store.output(["run", "-n", "k", "--", "true"]);
    assert_eq!(code(&refused), 64, "a key is a lock or a semaphore");
    assert!(text(&refused.stderr).contains("semaphore"), "{refused:?}");
    drop(other);
}

#[test]
fn the_text_shows_mode_and_holders() {
    let store = Store::new();
    let exclusive = hold(&store, &["a"]);
    let one = hold(&store, &["-s", "b"]);
    let two = hold(&store, &["-s", "b"]);
    let permits = hold(&store, &["--limit", "5", "--permits", "2", "c"]);
    let table = text(&store.output(["ls"]).stdout);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].contains("MODE"), "{table}");
    assert!(lines[1].contains("exclusive"), "{table}");
    assert!(lines[2].contains("shared") && lines[2].ends_with(" and 1 other"), "{table}");
    assert!(lines[3].contains("permits 2/5"), "{table}");
    let shown = text(&store.output(["show", "b"]).stdout);
    for run in [&one, &two] {
        assert!(shown.contains(&format!("(pid {})", run.launcher())), "{shown}");
    }
    assert!(shown.contains("holders   2"), "{shown}");
    let refused = store.output(["evict", "b", "--current", "--yes"]);
    assert_eq!(code(&refused), 64, "{refused:?}");
    let token = store.show("b")["holders"][1]["token"].as_u64().unwrap().to_string();
    assert_eq!(store.code(["evict", "b", "--token", &token]), 0);
    eventually("one holder is left", || store.show("b")["holders"].as_array().unwrap().len() == 1);
    assert_eq!(store.show("b")["pid"], one.launcher());
    drop((exclusive, permits));
}

#[test]
fn the_command_learns_how_its_lock_is_held() {
    let store = Store::new();
    let own = variables(&store, &["k"]);
    assert_eq!(
        (own.len(), own[0].as_str(), own[1].as_str()),
        (3, "TENURE_KEY=k", "TENURE_MODE=exclusive")
    );
    assert!(own[2].starts_with("TENURE_TOKEN=") && own[2].len() > 15, "{own:?}");
    let own = variables(&store, &["-s", "k"]);
    assert_eq!((own.len(), own[1].as_str()), (3, "TENURE_MODE=shared"));
    // Permits fence nothing.
    assert_eq!(variables(&store, &["--limit", "2", "k"]), ["TENURE_KEY=k", "TENURE_MODE=permits"]);
}

#[test]
fn several_keys_are_held_together() {
    let store = Store::new();
    let own = variables(&store, &["b", "a"]);
    assert_eq!(own[..3], ["TENURE_KEY_1=b", "TENURE_KEY_2=a", "TENURE_MODE=exclusive"]);
    assert!(own[3].starts_with("TENURE_TOKEN_1=") && own[4].starts_with("TENURE_TOKEN_2="));
    assert_eq!(own.len(), 5, "{own:?}");
    let set = hold(&store, &["b", "a", "c"]);
    for key in ["a", "b", "c"] {
        assert_eq!(store.code(["run", "-n", key, "--", "true"]), 75, "{key}");
    }
    drop(set);
    let _holder = store.hold("b");
    let busy = store.output(["run", "-n", "c", "b", "a", "--", "echo", "ran"]);
    assert_eq!((code(&busy), text(&busy.stdout).as_str()), (75, ""));
    assert!(text(&busy.stderr).contains("`b` is busy"), "{busy:?}");
    assert_eq!(store.code(["run", "-n", "a", "c", "--", "true"]), 0, "the others are free");
}

#[test]
fn the_loss_of_one_of_several_ends_the_command() {
    let store = Store::new();
    let args = ["run", "--json", "b", "a", "--", "sh", "-c", HOLD];
    let mut run = store.start(args);
    assert_eq!(run.line(), "held");
    let token = store.token("b");
    assert_eq!(store.code(["evict", "b", "--token", &token.to_string()]), 0);
    assert_eq!(run.code(), 76);
    let events: Vec<Value> =
        run.messages().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = |name: &str| events.iter().find(|event| event["event"] == name).unwrap();
    let acquired = event("acquired");
    assert_eq!(acquired["keys"], serde_json::json!(["b", "a"]));
    assert_eq!((&acquired["key"], &acquired["token"]), (&Value::Null, &Value::Null));
    assert_eq!(acquired["tokens"][0], token, "in the order of the keys");
    let lost = event("lost");
    assert_eq!((&lost["key"], &lost["token"]), (&"b".into(), &token.into()));
    assert_eq!(lost["reason"], "evicted");
    assert_eq!((store.show("a"), store.show("b")), (Value::Null, Value::Null));
}

#[test]
fn a_mode_that_cannot_be_is_refused_before_anything_runs() {
    let store = Store::new();
    for (args, part) in [
        (&["--limit", "0", "k"][..], "from 1 to"),
        (&["--limit", "2", "--permits", "3", "k"], "can never be granted"),
        (&["--permits", "2", "k"], "--limit"),
        (&["--shared", "--limit", "2", "k"], "cannot be used with"),
        (&["a", "b", "a"], "`a` is given twice"),
    ] {
        let command = ["--", "echo", "ran"];
        let args = ["run"].into_iter().chain(args.iter().copied()).chain(command);
        let refused = store.output(args);
        assert_eq!((code(&refused), text(&refused.stdout).as_str()), (64, ""), "{refused:?}");
        assert!(text(&refused.stderr).contains(part), "{refused:?}");
    }
}

#[test]
fn a_lock_is_held_without_a_command_in_every_mode() {
    let store = Store::new();
    for (args, mode) in [(&["-s", "k"][..], "shared"), (&["--limit", "2", "k"], "permits")] {
        let mut run = store.start(["hold"].into_iter().chain(args.iter().copied()));
        assert_eq!(run.line(), store.token("k").to_string());
        assert_eq!(store.show("k")["mode"], mode);
        run.signal(rustix::process::Signal::TERM);
        assert_eq!(run.code(), 0);
    }
}
