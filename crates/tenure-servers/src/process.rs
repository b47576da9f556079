//! One child process: started in its own process group, registered with the guardian, its output in
//! a log file, and always reaped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::guardian;
use crate::wait::wait_until;

/// Registers with the guardian, whose pipe is the standard output, then executes the server.
const REGISTER_AND_EXEC: &str = r#"echo "+$$" && exec "$@" >&2"#;
const TAIL_BYTES: u64 = 64 * 1024;

/// How to start a process. It can be started more than once.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) argv: Vec<OsString>,
    /// The environment besides `PATH`, `HOME`, `TMPDIR` and `LANG`. Variables of the developer's
    /// shell are not passed on: servers read options from them (etcd every `ETCD_*`).
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) dir: PathBuf,
    pub(crate) log: PathBuf,
    /// A file to read as standard input.
    pub(crate) stdin: Option<PathBuf>,
}

impl Launch {
    pub(crate) fn new(argv: Vec<OsString>, dir: &Path, log: PathBuf) -> Self {
        Self { argv, env: Vec::new(), dir: dir.to_owned(), log, stdin: None }
    }

    pub(crate) fn spawn(&self) -> io::Result<Process> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let stdin = match &self.stdin {
            Some(path) => Stdio::from(File::open(path)?),
            None => Stdio::null(),
        };
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        let child = Command::new("/bin/sh")
            .args(["-c", REGISTER_AND_EXEC, "sh"])
            .args(&self.argv)
            .env_clear()
            .env("PATH", path)
            .env("HOME", &self.dir)
            .env("TMPDIR", &self.dir)
            .env("LANG", "C")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.dir)
            .stdin(stdin)
            .stdout(guardian::register()?)
            .stderr(log)
            .process_group(0)
            .spawn()?;
        Ok(Process { child, ended: None })
    }

    /// Runs the process to its end.
    ///
    /// # Errors
    /// With the end of its log when it fails or takes longer than `limit`.
    pub(crate) fn run(&self, limit: Duration) -> Result<(), String> {
        let mut process = self.spawn().map_err(|error| error.to_string())?;
        match process.wait(limit) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}{}", log_excerpt(&self.log))),
            None => Err(format!("not done after {limit:?}{}", log_excerpt(&self.log))),
        }
    }
}

/// A running child. Dropping it kills and reaps it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, once it has ended; reaps it.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.ended = Some(status);
            guardian::unregister(self.child.id());
        }
        self.ended
    }

    /// Waits at most this long for the end of the process.
    pub(crate) fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.ended() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a signal to the process alone, if it still runs.
    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            // Not reaped yet, so no other process can have its id.
            send(self.id(), signal);
        }
    }

    /// Sends a signal to the process and then to its children: a stopped parent makes no new
    /// children that would be missed.
    pub(crate) fn signal_tree(&mut self, signal: Signal) {
        if self.ended().is_none() {
            send(self.id(), signal);
            for child in children(self.id()) {
                send(child, signal);
            }
        }
    }

    /// Sends SIGKILL to the process and its children, and waits until all have ended.
    ///
    /// PostgreSQL's children end by themselves some time after the postmaster, but until then a new
    /// postmaster refuses to start.
    pub(crate) fn kill(&mut self) {
        if self.ended().is_some() {
            return;
        }
        self.signal(Signal::STOP);
        // A signal takes effect a moment later; until then there may be one more child.
        wait_for(|| !matches!(state(self.id()), Some('R' | 'S' | 'D')));
        let children = children(self.id());
        self.signal(Signal::KILL);
        for &child in &children {
            send(child, Signal::KILL);
        }
        // SIGKILL always works, but freeing the memory may take a while.
        self.wait(Duration::from_secs(30));
        wait_for(|| children.iter().all(|&child| matches!(state(child), None | Some('Z' | 'X'))));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last lines of a log file; empty if there is no file.
pub(crate) fn tail(log: &Path, lines: usize) -> String {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(log) {
        let length = file.metadata().map_or(0, |meta| meta.len());
        // Best effort: what cannot be read is not shown.
        drop(file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES))));
        drop(file.read_to_end(&mut text));
    }
    let text = String::from_utf8_lossy(&text);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

/// The end of a log as the end of an error message.
pub(crate) fn log_excerpt(log: &Path) -> String {
    match tail(log, 15) {
        text if text.is_empty() => "; it wrote no log".into(),
        text => format!("; the end of its log:\n{text}"),
    }
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // An error means that the process has ended meanwhile.
        kill_process(pid, signal).ok();
    }
}

/// The state of a process: `R`unning, `S`leeping, s`T`opped, `Z`ombie …
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Waits for a condition that takes milliseconds on an idle machine.
fn wait_for(done: impl Fn() -> bool) {
    let waited = wait_until(Duration::from_secs(5), || if done() { Ok(()) } else { Err(()) });
    // Not an error by itself: the next operation fails if it matters.
    waited.ok();
}

fn children(pid: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    list.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
