//! The conductor's end of a client process: give orders, stop, continue, kill.

use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::part::{Order, Part};
use super::recorder::Recorder;
use crate::rig::Link;

/// A client process.
#[derive(Debug)]
pub(crate) struct Actor {
    child: Child,
    orders: ChildStdin,
    follower: Option<JoinHandle<()>>,
    pub(crate) link: Link,
    /// The attempt that orders are about.
    pub(crate) hold: u64,
    /// Since when its machine sleeps.
    pub(crate) slept: Option<Instant>,
    /// Where in the record the last order was given.
    pub(crate) since: usize,
}

impl Actor {
    pub(crate) fn start(
        program: &Path,
        part: &Part,
        link: Link,
        extra: &[(&'static str, OsString)],
        recorder: &Arc<Recorder>,
    ) -> Result<Actor> {
        let mut child = Command::new(program)
            .args(["lab", "play", "client"])
            .envs(extra.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a client")?;
        let mut orders = child.stdin.take().context("a client has a stdin")?;
        let output = BufReader::new(child.stdout.take().context("a client has a stdout")?);
        writeln!(orders, "{}", serde_json::to_string(part)?)?;
        let follower = Some(recorder.follow(output));
        let since = recorder.place();
        Ok(Actor { child, orders, follower, link, hold: 0, slept: None, since })
    }

    pub(crate) fn tell(&mut self, order: &Order) -> Result<()> {
        writeln!(self.orders, "{}", serde_json::to_string(order)?).context("the client is gone")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a pid")?, signal)?)
    }

    /// Whether it is stopped, as the kernel has it.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // After the name, which is in brackets and may have any letters in it.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|rest| rest.1.starts_with('T')))
    }

    /// Ends it with SIGKILL, also while it is stopped, and hears what it said last.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        if let Some(follower) = self.follower.take() {
            drop(follower.join());
        }
        Ok(())
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // Whoever has ended needs no killing.
        let _ended = self.kill();
    }
}
