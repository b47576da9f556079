//! Every way in which the launcher, the supervisor or the command can die or be stopped.

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::*;

#[test]
fn killing_the_launcher_kills_the_whole_tree_and_frees_the_lock() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; setsid sleep 60 & wait' & echo $$; wait";
    let run = store.start(["run", "--ttl", "60s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number(), run.supervisor()];
    run.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}

#[test]
fn killing_the_supervisor_kills_the_whole_tree_and_is_76() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; setsid sleep 60 & wait' & echo $$; wait";
    let mut run = store.start(["run", "--ttl", "60s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number()];
    send(run.supervisor(), Signal::KILL);
    assert_eq!(run.code(), 76);
    for process in tree {
        assert!(!is_alive(process), "the launcher exits last");
    }
    assert!(run.messages().contains("supervisor"));
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}

#[test]
fn a_supervisor_killed_while_waiting_is_70() {
    let store = Store::new();
    let _holder = store.hold("k");
    let mut waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    send(waiter.supervisor(), Signal::KILL);
    assert_eq!(waiter.code(), 70);
}

#[test]
fn killing_both_leaves_the_lock_until_its_lease_ends() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait";
    let run = store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    let (one, other) = (run.number(), run.number());
    let leftovers = [Leftover(one), Leftover(other)];
    let supervisor = run.supervisor();
    let command = children(supervisor)[0];
    let grandchild = if one == command { other } else { one };
    // Stopped first, so that neither can react to the end of the other.
    send(run.launcher(), Signal::STOP);
    send(supervisor, Signal::STOP);
    eventually("both are stopped", || {
        state(run.launcher()) == Some('T') && state(supervisor) == Some('T')
    });
    let begin = Instant::now();
    send(supervisor, Signal::KILL);
    send(run.launcher(), Signal::KILL);
    until_dead(command);
    assert!(is_alive(grandchild), "the known limit: docs/cli.md says so");
    assert_eq!(store.code(["run", "--no-wait", "k", "--", "true"]), 75, "it may still work");
    assert_eq!(store.code(["run", "--wait", "20s", "k", "--", "true"]), 0);
    assert!(begin.elapsed() > Duration::from_millis(1500), "{:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    drop(leftovers);
}

/// Needs a set-uid program, and root to make it; otherwise it passes with a message.
#[test]
fn the_lock_is_kept_while_a_process_cannot_be_killed() {
    let store = Store::new();
    let perl = store.folder.path().join("perl-as-root");
    let made = std::fs::copy("/usr/bin/perl", &perl).is_ok()
        && output(Command::new("chmod").arg("4755").arg(&perl)).status.success()
        && output(Command::new("chmod").arg("777").arg(store.folder.path())).status.success()
        && output(Command::new("setpriv").args(["--reuid=65534", "true"])).status.success();
    if !made {
        return eprintln!("skipped: needs root, perl and setpriv");
    }
    let binary = store.folder.path().join("tenure");
    std::fs::copy(env!("CARGO_BIN_EXE_tenure"), &binary).unwrap();
    let script = "use POSIX; POSIX::setuid(0); $|=1; print \"$<\\n$$\\n\"; sleep 60";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(binary);
    command.args(["run", "--ttl", "3s", "k", "--"]).arg(perl).args(["-e", script]);
    let run = Running::start(command.env("TENURE_URL", store.url()));
    if run.number() != 0 {
        return eprintln!("skipped: set-uid programs do not work in this folder");
    }
    let foreign = Leftover(run.number());
    let supervisor = run.supervisor();
    let token = store.token("k");
    run.signal(Signal::KILL);
    let begin = Instant::now();
    eventually("two leases are over", || {
        assert_eq!(store.token("k"), token, "no other client gets it while the process runs");
        begin.elapsed() > Duration::from_secs(6)
    });
    assert!(is_alive(foreign.0));
    drop(foreign);
    until_dead(supervisor);
    assert_eq!(store.show("k"), Value::Null, "released as soon as it has ended");
}

#[test]
fn a_stopped_launcher_keeps_its_lock() {
    let store = Store::new();
    let mut run =
        store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", "echo $$; exec sleep 60"]);
    let command = run.number();
    let token = store.token("k");
    run.signal(Signal::STOP);
    let begin = Instant::now();
    eventually("two leases are over", || {
        assert_eq!(store.token("k"), token);
        begin.elapsed() > Duration::from_secs(6)
    });
    assert!(is_alive(command));
    run.signal(Signal::CONT);
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
}

#[test]
fn a_stopped_supervisor_is_killed_with_its_command_before_the_lease_ends() {
    let store = Store::new();
    let ttl = Duration::from_secs(2);
    let script = "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait";
    let mut run = store.start(["run", "--ttl", "2s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number()];
    let begin = Instant::now();
    send(run.supervisor(), Signal::STOP);
    tree.into_iter().for_each(until_dead);
    assert!(begin.elapsed() < ttl, "{:?}", begin.elapsed());
    assert_eq!(run.code(), 76);
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}
