//! `tenure run`: exit codes, signals, and every way in which command, keeper or front can die.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::*;

#[test]
fn the_exact_code_of_the_command_is_passed_on() {
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
fn the_command_learns_its_key_and_token() {
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
fn a_url_with_a_login_is_kept_from_the_command() {
    let store = Store::new();
    let seen = |url: &str| {
        let mut command = tenure([
            "--url",
            &store.url(),
            "run",
            "k",
            "--",
            "sh",
            "-c",
            "echo ${TENURE_URL-none}",
        ]);
        text(&output(command.env("TENURE_URL", url)).stdout)
    };
    assert_eq!(seen("redis://me:secret@host/0"), "none\n");
    assert_eq!(seen("redis://host/0"), "redis://host/0\n");
}

#[test]
fn signals_to_the_runner_reach_the_command() {
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
fn what_the_caller_ignores_stays_ignored() {
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
fn what_the_caller_ignores_is_not_passed_on() {
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

/// `tenure run` with a command, started by somebody who ignores HUP.
fn under_nohup(store: &Store, command: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_tenure")]);
    shell.args(["run", "k", "--"]).args(command).env("TENURE_URL", store.url());
    shell
}

#[test]
fn the_command_finds_signals_as_our_caller_left_them() {
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
fn a_signal_to_the_keeper_alone_changes_nothing() {
    let store = Store::new();
    let script = "echo $$; while ! test -e go; do sleep 0.01; done; exit 4";
    let mut run = Running::start(
        store.tenure(["run", "k", "--", "sh", "-c", script]).current_dir(store.folder.path()),
    );
    run.number();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        send(run.keeper(), signal);
    }
    let token = store.token("k");
    assert!(!run.is_over());
    std::fs::write(store.folder.path().join("go"), "").unwrap();
    assert_eq!(run.code(), 4);
    assert!(token > 0);
}

#[test]
fn an_interrupted_wait_gives_its_place_back() {
    let store = Store::new();
    let holder = store.start(["run", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::USR1, 138)] {
        let mut waiter = store.start(["run", "k", "--", "true"]);
        store.until_waiting("k", 1);
        waiter.signal(signal);
        assert_eq!(waiter.code(), code);
        assert_eq!(store.show("k")["waiters"], 0);
    }
    let waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    let keeper = waiter.keeper();
    waiter.signal(Signal::KILL);
    until_dead(keeper);
    assert_eq!(store.show("k")["waiters"], 0, "also when the front is killed");
}

#[test]
fn busy_is_75_and_says_who() {
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
    let talk = text(&output.stderr);
    let pid = format!("pid {}", holder.front());
    assert!(talk.contains(&pid) && talk.contains("big job") && talk.contains("sh on "), "{talk}");

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
    let mut holder = store.start(["run", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
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
    let mut holder = store.start(["run", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
    let mut waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));
    let left: Vec<_> = std::fs::read_dir(store.folder.path().join("locks.db.d")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_evicted_command_is_asked_to_end_and_the_code_is_76() {
    let store = Store::new();
    let script = "trap 'echo bye; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let mut run = store.start(["run", "k", "--", "sh", "-c", script]);
    run.line();
    let token = store.token("k").to_string();
    assert_eq!(store.code(["evict", "k", "--token", &token]), 0);
    assert_eq!(run.line(), "bye");
    assert_eq!(run.code(), 76, "even if the command exits with 0");
    let talk = run.talk();
    assert!(talk.contains("lost `k`") && talk.contains("evicted"), "{talk}");
    let next = store.output(["run", "k", "--", "sh", "-c", "echo $TENURE_TOKEN"]);
    assert!(text(&next.stdout).trim().parse::<u64>().unwrap() > token.parse().unwrap());
}

#[test]
fn who_ignores_the_request_is_killed_before_the_lease_can_have_ended() {
    let store = Store::new();
    let script = "trap '' TERM; setsid sh -c 'echo $$; exec sleep 60' & echo $$
        while :; do sleep 0.02; done";
    // With a short lease its end decides, with a long one the patience of two seconds.
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
    let script = "trap 'echo asked' TERM; echo $$; while :; do sleep 0.02; done";
    let mut run = store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    let command = run.number();
    // Nobody can write while this transaction is open.
    let base = rusqlite::Connection::open(store.folder.path().join("locks.db")).unwrap();
    base.busy_timeout(LIMIT).unwrap();
    base.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begin = Instant::now();
    assert_eq!(run.line(), "asked");
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
    let base = rusqlite::Connection::open(store.folder.path().join("locks.db")).unwrap();
    base.busy_timeout(LIMIT).unwrap();
    base.execute_batch("BEGIN IMMEDIATE").unwrap();
    run.signal(Signal::TERM);
    assert_eq!(run.code(), 143);
    assert!(run.talk().contains("not confirmed"));
}

#[test]
fn a_command_that_holds_too_long_is_ended() {
    let store = Store::new();
    let mut run = store.start(["run", "--max-hold", "200ms", "k", "--", "sleep", "60"]);
    assert_eq!(run.code(), 76);
    assert!(run.talk().contains("--max-hold"));
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn killing_the_front_kills_the_whole_tree_and_frees_the_lock() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; setsid sleep 60 & wait' & echo $$; wait";
    let run = store.start(["run", "--ttl", "60s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number(), run.keeper()];
    run.signal(Signal::KILL);
    tree.into_iter().for_each(until_dead);
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}

#[test]
fn killing_the_keeper_kills_the_whole_tree_and_is_76() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; setsid sleep 60 & wait' & echo $$; wait";
    let mut run = store.start(["run", "--ttl", "60s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number()];
    send(run.keeper(), Signal::KILL);
    assert_eq!(run.code(), 76);
    for process in tree {
        assert!(!is_alive(process), "the front leaves last");
    }
    assert!(run.talk().contains("keeper"));
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}

#[test]
fn a_keeper_that_dies_while_waiting_is_a_fault() {
    let store = Store::new();
    let holder = store.start(["run", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
    let mut waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    send(waiter.keeper(), Signal::KILL);
    assert_eq!(waiter.code(), 70);
}

#[test]
fn killing_both_leaves_the_lock_until_its_lease_ends() {
    let store = Store::new();
    let script = "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait";
    let run = store.start(["run", "--ttl", "3s", "k", "--", "sh", "-c", script]);
    let (one, other) = (run.number(), run.number());
    let leftovers = [Leftover(one), Leftover(other)];
    let keeper = run.keeper();
    let command = children(keeper)[0];
    let grandchild = if one == command { other } else { one };
    // Stopped first, so that neither can react to the other's death.
    send(run.front(), Signal::STOP);
    send(keeper, Signal::STOP);
    eventually("both are stopped", || {
        state(run.front()) == Some('T') && state(keeper) == Some('T')
    });
    let begin = Instant::now();
    send(keeper, Signal::KILL);
    send(run.front(), Signal::KILL);
    until_dead(command);
    assert!(is_alive(grandchild), "the known limit: docs/cli.md says so");
    assert_eq!(store.code(["run", "--no-wait", "k", "--", "true"]), 75, "it may still work");
    assert_eq!(store.code(["run", "--wait", "20s", "k", "--", "true"]), 0);
    assert!(begin.elapsed() > Duration::from_millis(1500), "{:?}", begin.elapsed());
    assert!(begin.elapsed() < Duration::from_secs(6), "{:?}", begin.elapsed());
    drop(leftovers);
}

/// Needs a set-uid program, so root to make it; elsewhere it says so and passes.
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
    let keeper = run.keeper();
    let token = store.token("k");
    run.signal(Signal::KILL);
    let begin = Instant::now();
    eventually("two leases are over", || {
        assert_eq!(store.token("k"), token, "nobody gets it under a process that works");
        begin.elapsed() > Duration::from_secs(6)
    });
    assert!(is_alive(foreign.0));
    drop(foreign);
    until_dead(keeper);
    assert_eq!(store.show("k"), Value::Null, "released as soon as it has ended");
}

#[test]
fn a_stopped_front_keeps_its_lock() {
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
fn a_stopped_keeper_is_killed_with_its_command_before_the_lease_ends() {
    let store = Store::new();
    let ttl = Duration::from_secs(2);
    let script = "setsid sh -c 'echo $$; exec sleep 60' & echo $$; wait";
    let mut run = store.start(["run", "--ttl", "2s", "k", "--", "sh", "-c", script]);
    let tree = [run.number(), run.number()];
    let begin = Instant::now();
    send(run.keeper(), Signal::STOP);
    tree.into_iter().for_each(until_dead);
    assert!(begin.elapsed() < ttl, "{:?}", begin.elapsed());
    assert_eq!(run.code(), 76);
    assert_eq!(store.code(["run", "--wait", "10s", "k", "--", "true"]), 0);
}

#[test]
fn readers_see_the_end_when_the_command_closes_its_output() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "echo $$; exec >&-; exec sleep 60"]);
    let command = run.number();
    assert_eq!(run.rest(), Vec::<String>::new());
    assert!(is_alive(command));
    assert!(!run.is_over());
}

#[test]
fn other_descriptors_reach_the_command_and_only_it() {
    let store = Store::new();
    // The reader of descriptor 3 sees its end while the command goes on without it.
    let script = "{ \"$@\" 3>&1 >&2 & } | cat; echo closed";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_tenure"), "run", "k", "--"]);
    command.args(["sh", "-c", "echo through >&3; exec 3>&-; echo $$ >pid; exec sleep 60"]);
    command.env("TENURE_URL", store.url()).current_dir(store.folder.path());
    let run = Running::start(&mut command);
    assert_eq!(run.line(), "through");
    assert_eq!(run.line(), "closed");
    let mut pid = 0;
    eventually("the command has written its pid", || {
        let text = std::fs::read_to_string(store.folder.path().join("pid")).unwrap_or_default();
        pid = text.trim().parse().unwrap_or(0);
        pid != 0
    });
    let command = Leftover(pid);
    assert!(is_alive(command.0));
}

#[test]
fn a_command_whose_reader_leaves_ends_by_sigpipe() {
    let store = Store::new();
    let mut run = store.tenure(["run", "k", "--", "yes"]);
    let mut child = run.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn children_left_in_the_background_live_on_without_the_lock() {
    let store = Store::new();
    let mut run = store.start(["run", "k", "--", "sh", "-c", "sleep 60 >&- 2>&- & echo $!"]);
    let child = Leftover(run.number());
    assert_eq!(run.code(), 0);
    assert!(is_alive(child.0));
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn orphans_leave_no_zombies() {
    let store = Store::new();
    let script = "(sh -c 'echo $$' & ) ; exec sleep 60";
    let run = store.start(["run", "k", "--", "sh", "-c", script]);
    let orphan = run.number();
    let keeper = run.keeper();
    eventually("the orphan is reaped", || state(orphan).is_none());
    assert!(children(keeper).iter().all(|child| state(*child) != Some('Z')));
}

#[test]
fn json_tells_what_happens() {
    let store = Store::new();
    let events = |talk: &str| -> Vec<Value> {
        talk.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let mut holder =
        store.start(["run", "--json", "k", "--", "sh", "-c", "echo held; exec sleep 60"]);
    holder.line();
    let token = store.token("k");
    let mut waiter = store.start(["run", "--json", "k", "--", "sh", "-c", "exit 3"]);
    store.until_waiting("k", 1);
    let busy =
        events(&text(&store.output(["run", "--json", "--no-wait", "k", "--", "true"]).stderr));
    assert_eq!(busy[0]["event"], "busy");
    assert_eq!(busy[0]["holder"]["token"], token);
    assert_eq!((&busy[1]["event"], &busy[1]["cause"]), (&"exit".into(), &"busy".into()));
    assert_eq!(store.code(["evict", "k", "--token", &token.to_string()]), 0);
    assert_eq!((holder.code(), waiter.code()), (76, 3));

    let events_of = |run: &mut Running| events(&run.talk());
    let held = events_of(&mut holder);
    assert_eq!(held[0]["event"], "acquired");
    assert_eq!((&held[0]["key"], &held[0]["token"]), (&"k".into(), &token.into()));
    assert_eq!((&held[1]["event"], &held[1]["reason"]), (&"lost".into(), &"evicted".into()));
    assert_eq!((&held[2]["event"], &held[2]["code"]), (&"exit".into(), &76.into()));
    let waited = events_of(&mut waiter);
    assert_eq!(
        (&waited[0]["event"], &waited[0]["holder"]["pid"]),
        (&"waiting".into(), &holder.front().into())
    );
    assert_eq!(waited[1]["event"], "acquired");
    assert!(waited[1]["waited_ms"].is_u64());
    assert_eq!((&waited[2]["code"], &waited[2]["cause"]), (&3.into(), &"command".into()));
}
