//! `tenure run` on a terminal: the foreground group, Ctrl-C, Ctrl-Z, `fg` and `bg`, and messages.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process_group};
use serde_json::Value;
use support::terminal::Terminal;
use support::*;

/// An interactive shell with job control, `tenure` in its path, on this store. Without a bash on
/// this machine, a test passes with a message.
fn shell(store: &Store) -> Option<Terminal> {
    if Command::new("bash").arg("--version").output().is_err() {
        eprintln!("skipped: there is no bash here");
        return None;
    }
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_tenure"));
    let folder = program.parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    command.args(["--norc", "--noprofile", "-i"]).env("PATH", path).env("TENURE_URL", store.url());
    command.env("PS1", "$ ").env("TERM", "dumb").env_remove("NO_COLOR");
    command.current_dir(store.folder.path());
    let mut shell = Terminal::start(&mut command);
    shell.press("echo shell is $((20 + 1))\n");
    shell.expect("shell is 21");
    Some(shell)
}

#[test]
fn the_command_reads_from_the_terminal() {
    let store = Store::new();
    // The fifth and the eighth field: its own process group, and the one in the foreground.
    let script = "read -r stat </proc/$$/stat; set -- $stat; test $5 = $8 && echo in foreground
        read x; echo got-$x; exit 3";
    let mut terminal = Terminal::start(&mut store.tenure(["run", "k", "--", "sh", "-c", script]));
    terminal.expect("in foreground");
    terminal.press("hello\n");
    terminal.expect("got-hello");
    assert_eq!(terminal.code(), 3);
}

#[test]
fn ctrl_c_goes_to_the_command() {
    let store = Store::new();
    let mut terminal = Terminal::start(&mut store.tenure([
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 60",
    ]));
    terminal.expect("ready");
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.02; done";
    let mut terminal = Terminal::start(&mut store.tenure(["run", "k", "--", "sh", "-c", script]));
    terminal.expect("ready");
    terminal.press("\x03");
    terminal.expect("caught");
    assert_eq!(terminal.code(), 7, "what the command decides");
    let mut terminal = Terminal::start(&mut store.tenure([
        "run",
        "k",
        "--",
        "sh",
        "-c",
        "echo ready; exec sleep 60",
    ]));
    terminal.expect("ready");
    terminal.press("\x1c");
    assert_eq!(terminal.code(), 131);
}

#[test]
fn ctrl_c_ends_the_wait() {
    let store = Store::new();
    let holder = store.hold("k");
    let mut terminal = Terminal::start(&mut store.tenure(["run", "k", "--", "true"]));
    let messages = terminal.expect("waiting for `k`, held by sh on ");
    terminal.expect(&format!("pid {}", holder.launcher()));
    terminal.press("\x03");
    assert_eq!(terminal.code(), 130);
    assert_eq!(store.show("k")["waiters"], 0);
    assert_eq!(messages.matches("waiting for").count(), 1);
}

#[test]
fn the_holder_is_reported_on_a_terminal_only() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let mut waiter = store.start(["run", "k", "--", "true"]);
    store.until_waiting("k", 1);
    holder.signal(Signal::TERM);
    assert_eq!(holder.code(), 143);
    assert_eq!(waiter.code(), 0);
    assert_eq!(waiter.messages(), "");
}

#[test]
fn a_long_wait_is_reported_once_without_a_terminal() {
    let store = Store::new();
    let mut holder = store.hold("k");
    let mut waiter = store.start(["run", "--ttl", "5m", "k", "--", "true"]);
    store.until_waiting("k", 1);
    eventually("the wait is reported", || waiter.written().contains('\n'));
    holder.signal(Signal::TERM);
    assert_eq!((holder.code(), waiter.code()), (143, 0));
    let messages = waiter.messages();
    assert_eq!(messages.lines().count(), 1, "{messages}");
    assert!(messages.contains("waiting for `k`, held by sh on "), "{messages}");
}

#[test]
fn a_hold_in_the_background_leaves_the_keys_to_the_shell() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    shell.press("tenure hold --ttl 1s k &\n");
    shell.expect("holding `k`");
    let token = store.token("k");
    shell.press("echo got $((40 + 2))\n");
    shell.expect("got 42");
    shell.press("fg\n");
    shell.expect("tenure hold");
    shell.press("\x1a");
    shell.expect("Stopped");
    let stopped = Instant::now();
    eventually("two leases pass", || stopped.elapsed() > Duration::from_secs(2));
    assert_eq!(store.token("k"), token, "a stopped hold keeps its lock");
    shell.press("bg\n");
    shell.press("echo got $((40 + 3))\n");
    shell.expect("got 43");
    assert_eq!(store.token("k"), token);
    shell.press("fg\n");
    shell.expect("tenure hold");
    shell.press("\x04");
    eventually("the lock is free", || store.show("k") == Value::Null);
    shell.press("echo code $? $((40 + 4))\n");
    shell.expect("code 0 44");
}

#[test]
fn wait_reports_the_holder_on_a_terminal_and_when_told_to() {
    let store = Store::new();
    let holder = store.hold("k");
    let mut terminal = Terminal::start(&mut store.tenure(["wait", "k"]));
    terminal.expect("waiting until `k` is free, held by sh on ");
    let mut verbose = store.start(["wait", "-v", "k"]);
    eventually("the wait is reported", || verbose.written().contains("held by sh on "));
    let mut quiet = store.start(["wait", "k"]);
    eventually("a long wait is reported", || quiet.written().contains("held by sh on "));
    holder.signal(Signal::TERM);
    assert_eq!((terminal.code(), verbose.code(), quiet.code()), (0, 0, 0));
    assert_eq!((verbose.messages().lines().count(), quiet.messages().lines().count()), (1, 1));
}

#[test]
fn ctrl_c_leaves_a_kept_lock_to_the_background() {
    let store = Store::new();
    let args = ["run", "--at-least", "5s", "k", "--", "sh", "-c", "exit 7"];
    let mut terminal = Terminal::start(&mut store.tenure(args));
    terminal.expect("`k` is kept for another ");
    let begin = Instant::now();
    terminal.press("\x03");
    assert_eq!(terminal.code(), 7);
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    assert_ne!(store.show("k"), Value::Null, "it is still held");
    eventually("the lock is free in the end", || store.show("k") == Value::Null);
}

#[test]
fn ctrl_z_does_not_stop_a_job_without_a_shell() {
    let store = Store::new();
    let script = "echo ready; read x; echo got-$x";
    let mut terminal = Terminal::start(&mut store.tenure(["run", "k", "--", "sh", "-c", script]));
    terminal.expect("ready");
    terminal.press("\x1a");
    terminal.press("on\n");
    terminal.expect("got-on");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn a_script_gets_its_terminal_back_after_a_run() {
    let store = Store::new();
    let script = "$0 run k -- sh -c 'read x; echo one-$x'; read x; echo two-$x";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_tenure")]).env("TENURE_URL", store.url());
    let mut terminal = Terminal::start(&mut command);
    terminal.press("a\n");
    terminal.expect("one-a");
    terminal.press("b\n");
    terminal.expect("two-b");
    assert_eq!(terminal.code(), 0);
}

#[test]
fn stopping_the_whole_job_by_hand_does_not_stop_the_renewals() {
    let store = Store::new();
    let run = ["run", "--ttl", "3s", "k", "--", "sh", "-c", "echo ready; read x; exit 4"];
    let mut terminal = Terminal::start(&mut store.tenure(run));
    terminal.expect("ready");
    let token = store.token("k");
    let job = rustix::process::Pid::from_raw(terminal.pid()).unwrap();
    kill_process_group(job, Signal::STOP).unwrap();
    let begin = Instant::now();
    eventually("two leases are over", || {
        assert_eq!(store.token("k"), token);
        begin.elapsed() > Duration::from_secs(6)
    });
    kill_process_group(job, Signal::CONT).unwrap();
    terminal.press("\n");
    assert_eq!(terminal.code(), 4);
}

#[test]
fn a_stopped_job_keeps_its_lock_and_goes_on_in_the_foreground() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    shell.press("tenure run --ttl 3s k -- sh -c 'echo ready; read x; echo got-$x; exit 3'\n");
    shell.expect("\nready");
    let token = store.token("k");
    shell.press("\x1a");
    shell.expect("Stopped");
    let begin = Instant::now();
    eventually("two leases are over", || {
        assert_eq!(store.token("k"), token, "the lock is kept while the job is stopped");
        begin.elapsed() > Duration::from_secs(6)
    });
    shell.press("fg\n");
    shell.expect("tenure run");
    shell.press("hello\n");
    shell.expect("got-hello");
    shell.press("echo code $?\n");
    shell.expect("code 3");
    assert_eq!(store.show("k"), Value::Null);
}

#[test]
fn a_job_goes_on_in_the_background() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    // Nothing is forked here: a shell stopped between vfork and exec hangs, also without tenure.
    let script = "echo ready; read x <go; echo done-$((40 + 2))";
    shell.press(&format!("mkfifo go; tenure run k -- sh -c '{script}'\n"));
    shell.expect("\nready");
    shell.press("\x1a");
    shell.expect("Stopped");
    shell.press("bg\n");
    shell.expect("&");
    shell.press("echo >go; echo shell has the $((3 * 7)) terminal\n");
    eventually("shell and job both go on", || {
        let screen = shell.all();
        screen.contains("shell has the 21 terminal") && screen.contains("done-42")
    });
}

#[test]
fn a_background_job_that_needs_the_terminal_stops_until_it_gets_it() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    shell.press("tenure run k -- sh -c 'read x; echo got-$x' &\n");
    // The shell reports a stopped job with the next prompt.
    eventually("the job is stopped", || {
        shell.press("jobs\n");
        std::thread::sleep(Duration::from_millis(50));
        shell.all().contains("Stopped")
    });
    shell.press("fg\n");
    shell.expect("Stopped");
    shell.expect("tenure run k -- sh -c 'read x; echo got-$x'\r\n");
    shell.press("line\n");
    shell.expect("got-line");
}

#[test]
fn in_a_pipeline_the_command_gets_the_terminal_when_it_reads() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    shell.press(
        "tenure run k -- sh -c 'echo ready >&2; read x; echo got-$x' | cat; echo then-$((1+1))\n",
    );
    shell.expect("\nready");
    shell.press("typed\n");
    shell.expect("got-typed");
    shell.expect("then-2");
}

#[test]
fn the_shell_gets_its_terminal_back_however_the_run_ended() {
    let store = Store::new();
    let Some(mut shell) = shell(&store) else { return };
    for (command, keys, code) in [
        ("tenure run k -- sh -c 'echo ready; exec sleep 60'", "\x03", "130"),
        ("tenure run --max-hold 100ms k -- sh -c 'echo ready; exec sleep 60'", "", "76"),
        ("tenure run k -- sh -c 'echo ready; kill -9 $PPID; sleep 60'", "", "76"),
        ("tenure run k -- sh -c 'echo ready; exit 5'", "", "5"),
    ] {
        shell.press(&format!("{command}\n"));
        shell.expect("\nready");
        shell.press(keys);
        shell.press("\necho code-$?-\n");
        // Input that was typed too early may be echoed twice; the result is printed once.
        shell.expect(&format!("code-{code}-"));
    }
    shell.press("read -p 'name? ' x; echo hi-$x\n");
    shell.expect("name? ");
    shell.press("me\n");
    shell.expect("hi-me");
}

#[test]
fn colour_is_used_on_terminals_that_support_it() {
    let store = Store::new();
    let screen = |no_colour: Option<&str>, term: &str| {
        let mut command = store.tenure(["run", "k", "--", "no-such-command-here"]);
        no_colour.map(|value| command.env("NO_COLOR", value));
        let mut terminal = Terminal::start(command.env("TERM", term));
        terminal.expect("$PATH");
        terminal.code();
        terminal.all()
    };
    assert!(screen(None, "xterm").contains('\x1b'));
    assert!(screen(Some(""), "xterm").contains('\x1b'), "an empty NO_COLOR is none");
    assert!(!screen(Some("1"), "xterm").contains('\x1b'));
    assert!(!screen(None, "dumb").contains('\x1b'));
    let piped = store.output(["run", "k", "--", "no-such-command-here"]);
    assert!(!text(&piped.stderr).contains('\x1b'));
}
