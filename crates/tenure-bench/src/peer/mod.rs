//! Locks in other languages, and this program started again: processes that take commands by a pipe
//! and answer each with a line of JSON, so that their turns fit between those of other subjects.
//!
//! | command | what it does | what the answer has |
//! |---|---|---|
//! | `turn CYCLES TASKS` | acquires and releases, each task on a key of its own | `elapsed_us`, `p50_us`, `p99_us` |
//! | `hot MS TASKS HOLD_MS` | all tasks on one key, for so long | `grants` of each task until then, `total` of all, `p50_us`, `p99_us`, `max_us` of the waits; of Rust and Java also `first_p50_us`, `first_max_us` of the first task |

mod recipes;
mod worker;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tenure_peers::last_lines;
use tenure_servers::Node;

pub(crate) use self::recipes::{
    CONSUL, CURATOR, ETCD, KAZOO, NODE_REDLOCK, REDIS_PY, REDISSON, REDSYNC, Recipe,
};
pub(crate) use self::worker::{own, work};
use crate::warm::{Subject, Timing};

/// A virtual machine on a busy computer needs many seconds until its libraries are loaded.
const START: Duration = Duration::from_secs(60);
/// The longest answer: a warm-up.
const ANSWER: Duration = Duration::from_secs(180);

/// A process that does what it is told.
pub(crate) struct Process {
    child: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
    warm_up: usize,
}

impl Process {
    /// Starts a program that uses this server; it has said that it is ready.
    pub(crate) fn start(
        mut command: Command,
        node: &Node,
        kind: &str,
        warm_up: usize,
    ) -> Result<Process> {
        let log = tempfile::NamedTempFile::new()?;
        command.env("TENURE_PEER_ADDRESS", node.address()).env("TENURE_PEER_KIND", kind);
        // Not in its arguments, which every user can read.
        command.env("TENURE_PEER_PASSWORD", node.password().unwrap_or_default());
        command.env("TENURE_PEER_URL", node.url());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.reopen()?);
        let mut child = command.spawn().with_context(|| format!("start {command:?}"))?;
        let commands = child.stdin.take().context("a pipe")?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let (sender, answers) = channel();
        // Ends with the process.
        std::thread::spawn(move || {
            let lines = output.lines().map_while(Result::ok);
            lines.take_while(|line| sender.send(line.clone()).is_ok()).for_each(drop);
        });
        let process = Process { child, commands, answers, warm_up };
        let first = process.answers.recv_timeout(START).unwrap_or_default();
        if first != "ready" {
            bail!("it did not start: {first} {}", last_lines(log.as_file()));
        }
        Ok(process)
    }

    pub(crate) fn send(&mut self, command: &str) -> Result<()> {
        writeln!(self.commands, "{command}").context("the process has ended")
    }

    pub(crate) fn answer(&mut self) -> Result<Value> {
        let line = self.answers.recv_timeout(ANSWER).context("no answer of the process")?;
        let answer: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
        ensure!(answer["error"].is_null(), "{}", answer["error"]);
        Ok(answer)
    }
}

impl Subject for Process {
    fn turn(&mut self, cycles: usize, tasks: usize) -> Result<Timing> {
        self.send(&format!("turn {cycles} {tasks}"))?;
        let answer = self.answer()?;
        let figure = |name: &str| answer[name].as_f64().with_context(|| format!("no {name}"));
        Ok(Timing {
            elapsed: Duration::from_secs_f64(figure("elapsed_us")? / 1e6),
            p50_us: figure("p50_us")?,
            p99_us: figure("p99_us")?,
        })
    }

    fn pid(&self) -> Option<u32> {
        Some(self.child.id())
    }

    fn warm_up(&self) -> usize {
        self.warm_up
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
