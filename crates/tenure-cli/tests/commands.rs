//! `ls`, `show`, `evict` and `wait` on a store that other processes use.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::*;

fn rows(store: &Store, args: &[&str]) -> Vec<Value> {
    let output = store.output(["ls", "--json"].into_iter().chain(args.iter().copied()));
    assert_eq!(code(&output), 0);
    assert_eq!(text(&output.stdout).lines().count(), 1, "one line");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_empty_store_lists_nothing() {
    let store = Store::new();
    let output = store.output(["ls"]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (0, ""));
    assert_eq!(rows(&store, &[]), Vec::<Value>::new());
}

#[test]
fn a_row_has_the_promised_fields() {
    let store = Store::new();
    let mut command = store.tenure([
        "run",
        "--note",
        "for v42",
        "--ttl",
        "20s",
        "orders/1",
        "--",
        "sh",
        "-c",
        "echo held; exec sleep 60",
    ]);
    let holder = Running::start(&mut command);
    holder.line();
    let waiter = store.start(["run", "orders/1", "--", "true"]);
    store.until_waiting("orders/1", 1);
    let rows = rows(&store, &[]);
    assert_eq!(rows.len(), 1);
    let row = &rows[0];
    assert_eq!(row["key"], "orders/1");
    assert_eq!(row["owner"], "sh");
    assert_eq!(row["host"].as_str(), rustix::system::uname().nodename().to_str().ok());
    assert_eq!(row["pid"], holder.launcher(), "the process to signal");
    assert!(row["token"].as_u64().is_some_and(|token| token > 0));
    assert!(row["ttl_left_ms"].as_u64().is_some_and(|left| left > 0 && left <= 20_000), "{row}");
    assert!(row["held_for_ms"].is_u64());
    assert_eq!(row["waiters"], 1);
    assert_eq!(row["note"], "for v42");
    let names: Vec<_> = row.as_object().unwrap().keys().map(String::as_str).collect();
    let promised = [
        "held_for_ms",
        "holders",
        "host",
        "key",
        "mode",
        "note",
        "owner",
        "pid",
        "token",
        "ttl_left_ms",
        "waiters",
        "waiting",
    ];
    assert_eq!(names, promised, "a new field needs a line in docs/cli.md");
    let shown = store.show("orders/1");
    assert_eq!(shown["token"], row["token"]);
    let waiting = shown["waiting"].as_array().unwrap();
    assert_eq!(waiting.len(), 1);
    assert_eq!(waiting[0]["owner"], "true");
    assert_eq!(waiting[0]["pid"], waiter.launcher(), "the process to signal");
    let library = tenure::blocking::connect(&store.url()).unwrap().list("").unwrap();
    assert_same(&rows, &serde_json::to_value(library).unwrap());
    drop(waiter);
}

/// The program and a service that uses the library show the same of a lock, but for the time
/// between the two reads.
fn assert_same(program: &[Value], library: &Value) {
    let without_times = |rows: &[Value]| {
        let mut rows = rows.to_vec();
        for row in &mut rows {
            for name in ["held_for_ms", "ttl_left_ms"] {
                assert!(row[name].take().is_u64(), "{name}");
                assert!(row["holders"][0][name].take().is_u64(), "{name}");
            }
            for waiter in row["waiting"].as_array_mut().unwrap() {
                assert!(waiter["waiting_for_ms"].take().is_u64());
            }
        }
        rows
    };
    assert_eq!(without_times(program), without_times(library.as_array().unwrap()));
}

#[test]
fn ls_shows_the_keys_with_the_prefix() {
    let store = Store::new();
    let _held = ["b/2", "a/1", "b/1"].map(|key| store.hold(key));
    let keys = |args: &[&str]| -> Vec<String> {
        rows(&store, args).iter().map(|row| row["key"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(keys(&[]), ["a/1", "b/1", "b/2"]);
    assert_eq!(keys(&["b/"]), ["b/1", "b/2"]);
    assert_eq!(keys(&["c"]), Vec::<String>::new());
    assert_eq!(keys(&["%"]), Vec::<String>::new(), "a prefix is not a pattern");
    let table = text(&store.output(["ls"]).stdout);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 4, "{table}");
    assert!(lines[0].starts_with("KEY ") && lines[0].contains("TTL LEFT"), "{table}");
    assert!(lines[1].starts_with("a/1 ") && lines[1].contains("sh on "), "{table}");
    assert!(!table.contains('\x1b'), "{table:?}");
}

#[test]
fn show_exits_with_0_if_held_and_1_if_free() {
    let store = Store::new();
    let output = store.output(["show", "k"]);
    assert_eq!((code(&output), text(&output.stdout).as_str()), (1, "`k` is free\n"));
    assert_eq!(store.show("k"), Value::Null);
    let _holder = store.hold("k");
    let output = store.output(["show", "k"]);
    assert_eq!(code(&output), 0);
    let shown = text(&output.stdout);
    assert!(shown.contains("sh on ") && shown.contains(&store.token("k").to_string()), "{shown}");
    assert_eq!(store.code(["show", "k2"]), 1, "another key");
}

#[test]
fn a_note_cannot_control_the_terminal() {
    let store = Store::new();
    let note = "\u{1b}]0;owned\u{7}\u{202e}\u{9b}2J";
    let run =
        store.start(["run", "--note", note, "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    run.line();
    for args in [&["ls"][..], &["show", "k"], &["ls", "--json"], &["show", "--json", "k"]] {
        let shown = text(&store.output(args.iter().copied()).stdout);
        let controls = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!shown.contains(controls), "{args:?}: {shown:?}");
    }
    assert_eq!(store.show("k")["note"], note, "JSON carries the value unchanged");
}

#[test]
fn evict_ends_exactly_that_grant() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let token = store.token("k");
    // A grant owns the 1,023 tokens above its own.
    for (wrong, reason) in [(token + 1024, "token"), (token - 1, "token")] {
        let output = store.output(["evict", "k", "--token", &wrong.to_string()]);
        assert_eq!(code(&output), 1);
        assert!(text(&output.stderr).contains(reason), "{output:?}");
    }
    assert!(!holder.is_over());
    assert_eq!(store.token("k"), token);
    assert_eq!(store.code(["break", "k", "--token", &token.to_string()]), 0, "the alias");
    assert_eq!(holder.code(), 76);
    assert_eq!(store.code(["evict", "k", "--token", &token.to_string()]), 1, "it was evicted");
    let _next = store.hold("k");
    assert!(store.token("k") > token);
}

#[test]
fn wait_returns_when_the_lock_is_free_without_acquiring_it() {
    let store = Store::new();
    assert_eq!(store.code(["wait", "k"]), 0);
    let holder = store.hold("k");
    let begin = Instant::now();
    let output = store.output(["wait", "k", "--wait", "300ms"]);
    assert_eq!(code(&output), 75);
    assert!(text(&output.stderr).contains("sh on "), "{output:?}");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!(store.code(["wait", "--wait", "0s", "k"]), 75);
    let mut waiting = store.start(["wait", "k"]);
    let mut bounded = store.start(["wait", "k", "--wait", "1h"]);
    assert!(!waiting.is_over() && !bounded.is_over());
    holder.signal(Signal::TERM);
    assert_eq!((waiting.code(), bounded.code()), (0, 0));
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn prefix_and_default_lease_come_from_the_url() {
    let store = Store::new();
    let url = format!("{}?prefix=app/&ttl=5s&owner=me", store.url());
    let run = Running::start(
        tenure(["--url", &url, "run", "k", "--", "sh", "-c", "echo $TENURE_KEY; exec sleep 60"])
            .env_remove("X"),
    );
    assert_eq!(run.line(), "k");
    let shown = store.show("app/k");
    assert_eq!(shown["owner"], "me");
    assert!(shown["ttl_left_ms"].as_u64().unwrap() <= 5000);
    let listed = output(&mut tenure(["ls", "--json", "--url", &url]));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed[0]["key"], "k", "the prefix is removed from the output");
}

#[test]
fn doctor_finds_no_fault_in_a_good_store() {
    let store = Store::new();
    let output = store.output(["doctor"]);
    assert_eq!(code(&output), 0);
    assert!(text(&output.stdout).ends_with("sqlite: 0 faults, 0 warnings\n"), "{output:?}");
    let output = store.output(["doctor", "--json"]);
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let fields = ["severity", "subject", "detail", "advice"];
    assert!(rows.iter().all(|row| fields.iter().all(|field| row[field].is_string())), "{rows:?}");
}

/// A server without TLS does not respond to the first bytes of TLS.
#[test]
fn a_server_without_tls_is_suspected() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    for (scheme, is_named) in [("rediss", true), ("redis", false)] {
        let url = format!("{scheme}://127.0.0.1:{port}");
        let output = output(&mut tenure(["--url", &url, "ls"]));
        assert_eq!(code(&output), 69, "{output:?}");
        let messages = text(&output.stderr);
        assert_eq!(messages.contains("without TLS"), is_named, "{messages}");
        assert!(messages.contains(&port.to_string()), "{messages}");
    }
}

/// No process listens: there is nothing to wait for.
#[test]
fn a_dead_server_fails_at_once_with_address_and_reason() {
    for (scheme, path) in
        [("etcd", ""), ("zk", ""), ("redis", ""), ("consul", ""), ("postgres", "a"), ("mysql", "a")]
    {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let begin = Instant::now();
        let url = format!("{scheme}://{address}/{path}");
        let output = output(&mut tenure(["--url", &url, "run", "k", "--", "true"]));
        let messages = text(&output.stderr);
        assert_eq!(code(&output), 69, "{scheme}: {messages}");
        assert!(messages.contains(&address) && messages.contains("refused"), "{messages}");
        assert!(begin.elapsed() < Duration::from_secs(2), "{scheme}: {:?}", begin.elapsed());
    }
}

/// The server accepts connections and never responds.
#[test]
fn wait_also_limits_a_server_that_does_not_respond() {
    let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = server.local_addr().unwrap().port();
    for (scheme, path) in [("postgres", "app"), ("etcd", ""), ("redis", ""), ("mysql", "app")] {
        for verb in
            [&["wait", "--wait", "1s", "k"][..], &["run", "--wait", "1s", "k", "--", "true"]]
        {
            let url = format!("{scheme}://127.0.0.1:{port}/{path}");
            let begin = Instant::now();
            let output = output(tenure(["--url", &url]).args(verb));
            assert_eq!(code(&output), 69, "{scheme} {verb:?}: {output:?}");
            assert!(begin.elapsed() < Duration::from_millis(2500), "{:?}", begin.elapsed());
        }
    }
}
