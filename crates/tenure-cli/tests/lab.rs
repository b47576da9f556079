//! `tenure lab` through the real program, on the lock that needs no server.

#![cfg(all(feature = "lab", target_os = "linux"))]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use support::{
    Running, children, code, eventually, is_alive, output, state, tenure, text, until_dead,
};

#[test]
fn the_list_names_scenarios_locks_and_verdicts() {
    let output = output(&mut tenure(["lab", "list"]));
    let list = text(&output.stdout);
    assert_eq!(code(&output), 0);
    for part in ["oversell", "pause", "redis-set-nx", "DEL deletes any client's lock"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    let one = output_of(&["lab", "list", "crash-between"]);
    for part in ["stuck until an operator comes\n    redis-setnx-expire\n", "does not happen: "] {
        assert!(one.contains(part), "{part}: {one}");
    }
    let is_private = |word: &str| {
        let fault = word.strip_prefix('F').is_some_and(|n| n.len() == 2 && n.parse::<u8>().is_ok());
        fault || ["U", "U!", "T", "T+", "$", "T|T+"].contains(&word)
    };
    for text in [&list, &one] {
        let found = text.split_whitespace().find(|word| is_private(word));
        assert_eq!(found, None, "words instead of letters: {text}");
    }
    assert_eq!(code(&support::output(&mut tenure(["lab", "list", "flood"]))), 64);
    let output = output_of(&["lab", "list", "--json"]);
    let list: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(list["scenarios"][0]["name"], "oversell");
    assert_eq!(list["scenarios"][0]["expected"]["sqlite"], "U");
}

#[test]
fn a_run_is_judged_and_its_history_can_be_checked_again() {
    let folder = tempfile::tempdir().unwrap();
    let [history, report] = ["a.jsonl", "a.json"].map(|name| folder.path().join(name));
    let files = ["--history", history.to_str().unwrap(), "--json", report.to_str().unwrap()];
    let args = ["lab", "run", "oversell", "--lock", "sqlite", "--fence", "read+write"];
    let output = output(&mut tenure(args.into_iter().chain(files)));
    let printed = text(&output.stdout);
    assert_eq!(code(&output), 0, "{printed}");
    assert!(printed.contains("1 of 4 updates lost"), "{printed}");
    assert!(printed.contains("fence on reads and writes: 0 of"), "{printed}");
    assert!(printed.contains("A is stopped\n") && !printed.contains("F03"), "{printed}");
    let lane = printed.lines().find(|line| line.starts_with("read+write")).unwrap();
    assert!(lane.contains('⊘'), "the refused write is drawn: {printed}");
    assert!(printed.contains("\nOverlap: two holders; a read+write fence saves"), "{printed}");

    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(report["judgement"]["measured"], "overlap");
    assert_eq!(report["header"]["lock"], "sqlite");
    let again = tenure(["lab", "replay", history.to_str().unwrap()]).output().unwrap();
    assert_eq!(code(&again), 0, "{again:?}");
}

#[test]
fn an_inapplicable_cell_is_skipped_and_unknown_names_are_refused() {
    let cell = output(&mut tenure(["lab", "run", "failover", "--lock", "sqlite"]));
    assert_eq!(code(&cell), 3, "{cell:?}");
    for args in
        [["lab", "run", "flood", "--lock", "sqlite"], ["lab", "run", "pause", "--lock", "x"]]
    {
        let output = output(&mut tenure(args));
        assert_eq!(code(&output), 64, "{output:?}");
        assert!(text(&output.stderr).contains("known: "), "{output:?}");
    }
    for wrong in [["--times", "0"], ["--times", "x"], ["--lease", "5ms"], ["--lease", "soon"]] {
        let args = ["lab", "run", "pause", "--lock", "sqlite"].into_iter().chain(wrong);
        let output = output(&mut tenure(args));
        assert_eq!(code(&output), 64, "{output:?}");
        assert!(text(&output.stderr).contains(wrong[0]), "{output:?}");
    }
    assert_eq!(code(&output(&mut tenure(["lab", "matrix", "--jobs", "0"]))), 64);
}

#[test]
fn an_environment_variable_does_not_open_the_machines_own_network() {
    // An `ip` that only creates a file: the real one would delete the routes of this machine.
    let folder = tempfile::tempdir().unwrap();
    let (ip, called) = (folder.path().join("ip"), folder.path().join("called"));
    std::fs::write(&ip, format!("#!/bin/sh\ntouch '{}'\nexit 1\n", called.display())).unwrap();
    std::fs::set_permissions(&ip, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    for value in ["1", "net:[1]"] {
        let mut play = tenure(["lab", "play", "network:packets-lost:redis:0"]);
        let output = output(play.env("PATH", &path).env("TENURE_LAB_NETWORK", value));
        assert_ne!(code(&output), 0, "{output:?}");
        assert!(text(&output.stderr).contains("not a network of the lab's"), "{output:?}");
        assert!(!called.exists(), "with {value}: `ip` was called in the machine's own network");
    }
}

#[test]
fn a_matrix_prints_a_table_of_measured_verdicts() {
    let args = ["lab", "matrix", "--locks", "sqlite", "--scenarios", "pause,names,failover"];
    let more = ["--times", "2", "--jobs", "2"];
    let output = output(&mut tenure(args.into_iter().chain(more)));
    let table = text(&output.stdout);
    assert_eq!(code(&output), 0, "{output:?}");
    let row = |name: &str| {
        let line = table.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!([row("pause"), row("names"), row("failover")], ["U", "✔", "–"]);
    assert!(text(&output.stderr).contains("4 runs in "), "{output:?}");
    assert!(table.contains("U  two holders; a read+write fence saves the data\n"), "{table}");
    assert!(text(&output.stderr).contains("pause on sqlite: overlap  "), "{output:?}");
}

#[test]
fn nothing_outlives_a_lab_that_is_interrupted_or_killed() {
    for signal in [Signal::INT, Signal::KILL] {
        let mut lab = Running::start(&mut tenure(["lab", "run", "pause", "--lock", "sqlite"]));
        let mut processes = Vec::new();
        // The resource, the guardian, three clients, and one of them stopped.
        eventually("a client is stopped", || {
            processes = children(lab.launcher());
            processes.len() >= 5 && processes.iter().any(|pid| state(*pid) == Some('T'))
        });
        lab.signal(signal);
        eventually("the lab ends", || lab.is_over());
        for pid in processes {
            until_dead(pid);
            assert!(!is_alive(pid));
        }
    }
}

fn output_of(args: &[&str]) -> String {
    text(&output(&mut tenure(args.iter().copied())).stdout)
}
