//! Signals: which of them reach the command, and what they do to a wait.

use std::process::Command;

use rustix::process::Signal;

use crate::support::*;

#[test]
fn signals_to_the_launcher_reach_the_command() {
    let store = Store::new();
    let script = "for s in INT TERM HUP QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done
        echo ready; while :; do sleep 0.02; done";
    let run = store.start(["run", "k", "--", "sh", "-c", script]);
    assert_eq!(run.line(), "ready");
    for (signal, name) in [
        (Signal::USR1, "USR1"),
        (Signal::USR2, "USR2"),
        (Signal::HUP, "HUP"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
        (Signal::WINCH, "WINCH"),
        (Signal::TERM, "TERM"),
    ] {
        run.signal(signal);
        assert_eq!(run.line(), name);
    }
}

#[test]
fn signals_reach_the_whole_group() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "sleep 60 & echo $!; wait"]);
    let child = Leftover(run.number());
    run.signal(Signal::TERM);
    until_dead(child.0);
    assert_eq!(run.code(), 143);
}

#[test]
fn a_stopped_command_can_be_terminated() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "echo $$; exec sleep 60"]);
    let command = run.number();
    send(command, Signal::STOP);
    eventually("the command is stopped", || state(command) == Some('T'));
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
}

#[test]
fn signals_ignored_by_the_caller_stay_ignored() {
    let store = Store::new();
    let script = "trap 'echo usr1; exit 3' USR1; kill -HUP $$; echo ready
        while :; do sleep 0.02; done";
    let mut run = Running::start(&mut under_nohup(&store, &["sh", "-c", script]));
    assert_eq!(run.line(), "ready", "the command ignores HUP as its caller does");
    run.signal(Signal::USR1);
    assert_eq!(run.line(), "usr1");
    assert_eq!(run.code(), 3);
}

#[test]
fn signals_ignored_by_the_caller_are_not_forwarded() {
    let store = Store::new();
    let reset = ["env", "--default-signal=HUP"];
    if !output(Command::new(reset[0]).args([reset[1], "true"])).status.success() {
        return eprintln!("skipped: this `env` has no --default-signal");
    }
    let script = "trap 'echo hup' HUP; trap 'echo usr1; exit 3' USR1; echo ready
        while :; do sleep 0.02; done";
    let listens_again = [&reset[..], &["sh", "-c", script]].concat();
    let mut run = Running::start(&mut under_nohup(&store, &listens_again));
    assert_eq!(run.line(), "ready");
    run.signal(Signal::HUP);
    run.signal(Signal::USR1);
    assert_eq!(run.line(), "usr1");
    assert_eq!(run.code(), 3);
}

/// `tenure run` with a command, started by a shell that ignores HUP.
fn under_nohup(store: &Store, command: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tenure")]);
    shell.args(["run", "k", "--"]).args(command).env("TENURE_URL", store.url());
    shell
}

#[test]
fn the_command_gets_the_signal_mask_of_the_caller() {
    let store = Store::new();
    // Not through a shell: some shells empty the mask themselves.
    let grep = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    // 32 and 33 belong to the C library, which uses them for threads.
    let masks = |output: std::process::Output| -> Vec<u64> {
        let mask = |line: &str| u64::from_str_radix(line.split_whitespace().last().unwrap(), 16);
        text(&output.stdout).lines().map(|line| mask(line).unwrap() & 0x7fff_ffff).collect()
    };
    let plain = masks(output(Command::new(grep[0]).args(&grep[1..])));
    assert_eq!(plain.len(), 2);
    assert_eq!(masks(store.output(["run", "k", "--"].into_iter().chain(grep))), plain);
}

#[test]
fn a_signal_to_the_supervisor_alone_changes_nothing() {
    let store = Store::new();
    let script = "echo $$; while ! test -e go; do sleep 0.01; done; exit 4";
    let mut run = Running::start(
        store.tenure(["run", "k", "--", "sh", "-c", script]).current_dir(store.folder.path()),
    );
    run.number();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        send(run.supervisor(), signal);
    }
    let token = store.token("k");
    assert!(!run.is_over());
    std::fs::write(store.folder.path().join("go"), "").unwrap();
    assert_eq!(run.code(), 4);
    assert!(token > 0);
}

#[test]
fn an_interrupted_wait_removes_its_queue_entry() {
    let store = Store::new();
    let _holder = store.hold("k");
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::USR1, 138)] {
        let mut waiter = store.start(["run", "k", "--", "true"]);
        store.until_waiting("k", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        assert_eq!(store.show("k")["waiters"], 0);
    }
    let waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    let supervisor = waiter.supervisor();
    waiter.signal(Signal::KILL);
    until_dead(supervisor);
    assert_eq!(store.show("k")["waiters"], 0, "also when the launcher is killed");
}
