//! One lock that passes between processes, each with its own client.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tenure_servers::Topology;

use super::servers;
use crate::compare::{Comparison, Turn};

/// The first argument of a worker process.
const WORKER: &str = "worker";
/// What a worker prints after each request.
const DONE: &str = "done";
/// The number of handoffs in one turn.
const HANDOFFS: u32 = 256;

pub(crate) fn compare_queues(rounds: usize) -> Result<Comparison> {
    let cluster = servers(Topology::Redis)?;
    let mut subjects = Vec::new();
    for (name, processes) in [("2 processes", 2), ("16 processes", 16), ("64 processes", 64)] {
        let starts = (0..processes).map(|_| Worker::start(&cluster.url(), name));
        let mut group: Vec<Worker> = starts.collect::<Result<_>>()?;
        let turn: Turn<'_> = Box::new(move || {
            group.iter_mut().try_for_each(|worker| worker.go(HANDOFFS / processes))?;
            group.iter_mut().try_for_each(Worker::done)
        });
        subjects.push((name, turn));
    }
    Ok(Comparison::run(rounds.div_ceil(10), 1, subjects)?.per_operation(HANDOFFS))
}

/// A process of this program that acquires and releases the lock as often as it is told.
struct Worker {
    child: Child,
    requests: ChildStdin,
    responses: BufReader<ChildStdout>,
}

impl Worker {
    fn start(url: &str, key: &str) -> Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([WORKER, url, key]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let requests = child.stdin.take().context("a pipe")?;
        let responses = BufReader::new(child.stdout.take().context("a pipe")?);
        Ok(Worker { child, requests, responses })
    }

    fn go(&mut self, times: u32) -> Result<()> {
        Ok(writeln!(self.requests, "{times}")?)
    }

    fn done(&mut self) -> Result<()> {
        let mut line = String::new();
        self.responses.read_line(&mut line)?;
        ensure!(line.trim() == DONE, "a process ended: {line:?}");
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that the process has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs this program as a worker, if its arguments are [`WORKER`], URL and key.
pub(crate) fn run_worker(arguments: &[String]) -> Option<Result<()>> {
    let [WORKER, url, key] = arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        return None;
    };
    Some(work(url, key))
}

fn work(url: &str, key: &str) -> Result<()> {
    let runtime = crate::runtime()?;
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
