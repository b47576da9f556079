//! What the tests of the program share: a store per test, the real binary, and the states of
//! processes. Nothing here sleeps for a fixed time: everything waits for an event, with a limit.

#![allow(dead_code, reason = "each test binary uses a part of it")]

pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Long enough for a loaded machine, short enough to fail.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A store that only this test uses.
pub(crate) struct Store {
    pub(crate) folder: tempfile::TempDir,
}

impl Store {
    pub(crate) fn new() -> Store {
        reset_signals();
        Store { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}/locks.db", self.folder.path().display())
    }

    /// The program with these arguments, on this store.
    pub(crate) fn tenure<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = tenure(args);
        command.env("TENURE_URL", self.url());
        command
    }

    /// Runs the program to its end.
    pub(crate) fn output<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        output(&mut self.tenure(args))
    }

    /// Runs the program and returns its exit code.
    pub(crate) fn code<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> i32 {
        code(&self.output(args))
    }

    /// Starts the program without waiting for its end.
    pub(crate) fn start<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Running {
        Running::start(&mut self.tenure(args))
    }

    /// Starts a command that holds this lock, and waits until it does.
    pub(crate) fn hold(&self, key: &str) -> Running {
        let run = self.start(["run", key, "--", "sh", "-c", "echo held; exec sleep 60"]);
        assert_eq!(run.line(), "held");
        run
    }

    /// The output of `show --json`: `null` if the lock is free.
    pub(crate) fn show(&self, key: &str) -> Value {
        let output = self.output(["show", "--json", key]);
        assert!(matches!(code(&output), 0 | 1), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub(crate) fn token(&self, key: &str) -> u64 {
        self.show(key)["token"].as_u64().expect("the lock is held")
    }

    pub(crate) fn until_waiting(&self, key: &str, waiters: u64) {
        eventually("a waiter is in the queue", || self.show(key)["waiters"] == waiters);
    }
}

/// Sets the signals back to their defaults: a shell ignores INT and QUIT in what it runs in the
/// background, and every process that a test starts would inherit that.
#[expect(unsafe_code, reason = "only libc can set what a signal does")]
pub(crate) fn reset_signals() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1] {
            // SAFETY: the default action needs no handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    });
}

/// The program with these arguments, without variables of the environment that could change it.
pub(crate) fn tenure<'a>(args: impl IntoIterator<Item = &'a str>) -> Command {
    reset_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(args).env_remove("TENURE_URL").env_remove("TENURE_REACH");
    command.env_remove("NO_COLOR").env("TERM", "xterm");
    // Not the file of the user who runs the tests.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command.stdin(Stdio::null());
    command
}

pub(crate) fn output(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    let messages = text(&output.stderr);
    assert!(!messages.contains("panicked") && !messages.contains("RUST_BACKTRACE"), "{messages}");
    output
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"))
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A program that runs, with its output line by line. Killed when dropped.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    messages: Option<std::thread::JoinHandle<()>>,
    /// What it has written to stderr so far.
    written: Arc<Mutex<Vec<u8>>>,
    status: Option<ExitStatus>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Running {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut stderr = child.stderr.take().unwrap();
        let written = Arc::<Mutex<Vec<u8>>>::default();
        let messages = std::thread::spawn({
            let written = written.clone();
            move || {
                let mut bytes = [0; 4096];
                while let Ok(read @ 1..) = stderr.read(&mut bytes) {
                    written.lock().unwrap().extend_from_slice(&bytes[..read]);
                }
            }
        });
        Running { child, lines, messages: Some(messages), written, status: None }
    }

    /// The next line on stdout.
    pub(crate) fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).expect("another line")
    }

    /// The next line as a number.
    pub(crate) fn number(&self) -> i32 {
        self.line().trim().parse().unwrap()
    }

    /// Waits until stdout is closed. Returns the lines that were still in it.
    pub(crate) fn rest(&self) -> Vec<String> {
        let end = Instant::now() + LIMIT;
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("stdout stays open"),
            }
        }
    }

    pub(crate) fn launcher(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    /// The only child of the launcher.
    pub(crate) fn supervisor(&self) -> i32 {
        let mut found = None;
        eventually("the supervisor is there", || {
            found = children(self.launcher()).first().copied();
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.launcher(), signal);
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.status = self.status.or_else(|| self.child.try_wait().unwrap());
        self.status.is_some()
    }

    /// Kills the launcher alone.
    pub(crate) fn kill(&mut self) {
        let _ended = self.child.kill();
        self.status = self.child.wait().ok();
    }

    /// Waits for the end of the program. Returns its exit code.
    pub(crate) fn code(&mut self) -> i32 {
        eventually("the program ends", || self.is_over());
        let status = self.status.unwrap();
        status.code().unwrap_or_else(|| panic!("ended by a signal: {status:?}"))
    }

    /// Waits for the end of the program. Returns what it wrote to stderr.
    pub(crate) fn messages(&mut self) -> String {
        eventually("the program ends", || self.is_over());
        self.messages.take().unwrap().join().unwrap();
        self.written()
    }

    /// What it has written to stderr so far.
    pub(crate) fn written(&self) -> String {
        text(&self.written.lock().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over() {
            let _ended = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

/// A process that a test has left behind. Killed when dropped.
pub(crate) struct Leftover(pub(crate) i32);

impl Drop for Leftover {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.0).filter(|_| is_alive(self.0)) {
            let _ended = kill_process(pid, Signal::KILL);
        }
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Waits until something is true.
pub(crate) fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_true() {
        assert!(Instant::now() < end, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The letter of a process's state; `None` if it is gone.
pub(crate) fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a process exists and is more than a zombie.
pub(crate) fn is_alive(pid: i32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

pub(crate) fn until_dead(pid: i32) {
    eventually("a process is dead", || !is_alive(pid));
}

/// The children of a process, zombies included.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let lists = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let lists: Vec<_> = lists.collect();
    lists.iter().flat_map(|list| list.split_whitespace()).filter_map(|n| n.parse().ok()).collect()
}
