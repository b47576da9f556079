//! One lock that goes round among processes, each with a client of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tenure_servers::Topology;

use super::servers;
use crate::compare::{Comparison, Turn};

pub(crate) fn compare_queues(rounds: usize) -> Result<Comparison> {
    let cluster = servers(Topology::Redis)?;
    let mut subjects = Vec::new();
    for (name, processes) in [("2 processes", 2), ("16 processes", 16), ("64 processes", 64)] {
        let starts = (0..processes).map(|_| Process::start(&cluster.url(), name));
        let mut group: Vec<Process> = starts.collect::<Result<_>>()?;
        let turn: Turn<'_> = Box::new(move || {
            group.iter_mut().try_for_each(|process| process.go(HAND_OVERS / processes))?;
            group.iter_mut().try_for_each(Process::done)
        });
        subjects.push((name, turn));
    }
    Ok(Comparison::run(rounds.div_ceil(10), 1, subjects)?.each(HAND_OVERS))
}

/// A process of this program that takes the lock and gives it back as often as it is told.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(url: &str, key: &str) -> Result<Process> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([PASS_ON, url, key]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let orders = child.stdin.take().context("a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Process { child, orders, answers })
    }

    fn go(&mut self, times: u32) -> Result<()> {
        Ok(writeln!(self.orders, "{times}")?)
    }

    fn done(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.trim() == DONE, "a process ended: {line:?}");
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The other end of it: [`PASS_ON`], URL and key are its arguments.
pub(crate) fn pass_on(arguments: &[String]) -> Option<Result<()>> {
    let [PASS_ON, url, key] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(pass_on_as_told(url, key))
}

fn pass_on_as_told(url: &str, key: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(tenure::connect(url))?;
    let lock = client.lock(key);
    for line in std::io::stdin().lines() {
        for _ in 0..line?.trim().parse::<u32>()? {
            runtime.block_on(async { lock.acquire().await?.release().await })?;
        }
        println!("{DONE}");
    }
    Ok(())
}

const PASS_ON: &str = "pass-on";
const DONE: &str = "done";
/// How often the lock changes hands in one turn.
const HAND_OVERS: u32 = 256;
