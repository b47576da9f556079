//! A process that changes a number under a lock: the test program, started again. Between its read
//! and its write it reports that and waits for a line, and there it can be stopped.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use tenure::{ErrorKind, FencingToken, Guard};

use crate::grants::open;

/// The environment variable that makes the test program a worker.
const JOB: &str = "TENURE_FENCE_WORKER";

/// What a worker is to do.
#[derive(Clone)]
pub(crate) struct Job {
    pub(crate) locks: String,
    pub(crate) store: String,
    pub(crate) name: String,
    pub(crate) fenced: bool,
    pub(crate) writes: u32,
    /// How many writes it makes each time that it has the lock.
    pub(crate) batch: u32,
}

/// What a worker reports.
pub(crate) enum Report {
    /// It has read, under this token, and waits for permission to write.
    Read(FencingToken),
    /// It has written the first time under this token.
    Wrote(FencingToken),
    /// It is done; so many of its writes were refused.
    Done(u32),
}

/// A worker, as its parent process sees it.
pub(crate) struct Worker {
    child: Child,
    permissions: ChildStdin,
}

impl Worker {
    /// Starts a worker. Its reports are read from the second result.
    pub(crate) fn start(job: &Job) -> Result<(Worker, Reports)> {
        let Job { locks, store, name, fenced, writes, batch } = job;
        let text = [locks, store, name, &fenced.to_string(), &writes.to_string()].map(Clone::clone);
        let mut child = Command::new(std::env::current_exe()?)
            .env(JOB, format!("{}\n{batch}", text.join("\n")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let permissions = child.stdin.take().context("a stdin")?;
        let reports = Reports(BufReader::new(child.stdout.take().context("a stdout")?));
        Ok((Worker { child, permissions }, reports))
    }

    /// Lets it write.
    pub(crate) fn go(&mut self) -> Result<()> {
        writeln!(self.permissions).context("the worker has ended")
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(kill_process(pid.context("a pid")?, signal)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It has ended already, unless the case failed.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The reports of a worker, line by line.
pub(crate) struct Reports(BufReader<ChildStdout>);

impl Reports {
    pub(crate) fn next(&mut self) -> Result<Report> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            bail!("a worker ended in the middle of its work");
        }
        let (verb, rest) = line.trim_end().split_once(' ').context("VERB REST")?;
        Ok(match verb {
            "read" => Report::Read(rest.parse()?),
            "wrote" => Report::Wrote(rest.parse()?),
            "done" => Report::Done(rest.parse()?),
            _ => bail!("a worker failed: {rest}"),
        })
    }
}

/// Does the job, and returns true, if this process was started as a worker.
pub(crate) fn run_if_started_as_one() -> bool {
    let Ok(text) = std::env::var(JOB) else { return false };
    // A stopped worker cannot see its input close; this ends it with the test that started it.
    let _unsupported = set_parent_process_death_signal(Some(Signal::KILL));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match runtime.block_on(work(&text)) {
        Ok(refused) => println!("done {refused}"),
        Err(error) => println!("failed {}", format!("{error:#}").replace('\n', " ")),
    }
    true
}

async fn work(text: &str) -> Result<u32> {
    let parts: Vec<_> = text.lines().collect();
    let [locks, store, name, fenced, writes, batch] = parts[..] else { bail!("six lines") };
    let fenced: bool = fenced.parse()?;
    let mut left: u32 = writes.parse()?;
    let batch: u32 = batch.parse()?;
    let client = tenure::connect(locks).await?;
    let mut resource = open(store, name).await?;
    let mut refused = 0;
    let mut permissions = std::io::stdin().lines();
    while left > 0 {
        let mut lock = client.lock(name);
        if locks.starts_with("sqlite") {
            // So that no renewal is under way when this process is stopped: stopped in the middle
            // of a change of the embedded store, it would block all other processes there.
            lock = lock.without_renewal();
        }
        let guard = lock.acquire().await?;
        let token = fenced.then_some(guard.token());
        let Some(mut number) = resource.read(token).await? else {
            refused += 1;
            continue;
        };
        println!("read {}", guard.token());
        permissions.next().context("permission to write")??;
        for write in 0..batch.min(left) {
            // On purpose without `check`: the fence is what is tested.
            number += 1;
            if !resource.write(number, token).await? {
                refused += 1;
                break;
            }
            left -= 1;
            if write == 0 {
                println!("wrote {}", guard.token());
            }
        }
        release(guard).await?;
    }
    Ok(refused)
}

async fn release(guard: Guard) -> Result<()> {
    match guard.release().await {
        // Unavailable: the release goes on in the background, until the lease ends at the latest.
        Err(error) if !matches!(error.kind(), ErrorKind::Lost | ErrorKind::Unavailable) => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}
