//! The runner's end of a client process: start it, send it commands and signals, kill it.

use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::recorder::Recorder;
use crate::roles::protocol::{ClientCommand, ClientConfig};
use crate::server_setup::Route;

/// A client process.
#[derive(Debug)]
pub(super) struct ClientProcess {
    child: Child,
    commands: ChildStdin,
    /// The thread that records the client's events.
    follower: Option<JoinHandle<()>>,
    pub(super) route: Route,
    /// Number of the client's current attempt.
    pub(super) hold: u64,
    /// When its machine was suspended.
    pub(super) suspended_at: Option<Instant>,
    /// Position in the record at which the last command was sent.
    pub(super) since: usize,
}

impl ClientProcess {
    pub(super) fn start(
        program: &Path,
        config: &ClientConfig,
        route: Route,
        environment: &[(&'static str, OsString)],
        recorder: &Arc<Recorder>,
    ) -> Result<ClientProcess> {
        let mut child = Command::new(program)
            .args(["lab", "play", "client"])
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a client")?;
        let mut commands = child.stdin.take().context("the client has no stdin")?;
        let output = BufReader::new(child.stdout.take().context("the client has no stdout")?);
        writeln!(commands, "{}", serde_json::to_string(config)?)?;
        let follower = Some(recorder.follow(output));
        let since = recorder.position();
        Ok(ClientProcess { child, commands, follower, route, hold: 0, suspended_at: None, since })
    }

    pub(super) fn send(&mut self, command: &ClientCommand) -> Result<()> {
        let line = serde_json::to_string(command)?;
        writeln!(self.commands, "{line}").context("the client process has ended")
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("the client has no valid pid")?, signal)?)
    }

    /// Whether the kernel shows the process as stopped.
    pub(super) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        // The state follows the name, which is in brackets and may have any letters in it.
        stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|rest| rest.1.starts_with('T')))
    }

    /// Ends the process with SIGKILL, also while it is stopped, and records its last events.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        if let Some(follower) = self.follower.take() {
            drop(follower.join());
        }
        Ok(())
    }
}

impl Drop for ClientProcess {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        let _ignored = self.kill();
    }
}
