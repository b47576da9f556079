//! Programs of other languages as real peers in tests: built on the spot by `tenure-peers`, told
//! what to do by a pipe. Each line is `verb thread lock [number]`, and is answered by one line when
//! it is done, `thread result`; `Orders.java` reads them for Java. Where a tool or a registry
//! cannot be had, the case is ignored with the reason, except on CI, where that is a failure.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure_peers::{Recipe, last_lines};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::context::{soon, within};

/// A busy machine needs many seconds until a library of this size is loaded.
const START: Duration = Duration::from_secs(60);
/// A step of a build: Go compiles its whole library for the first program on a machine, which took
/// more than 90 s beside other tests.
const LONGEST: Duration = Duration::from_secs(300);
/// What a Java program reads its lines with: one of its sources.
pub const ORDERS: (&str, &str) = ("Orders.java", include_str!("Orders.java"));
/// How often each adds one when all count together.
pub const STEPS: u64 = 100;
/// What they come to.
pub const TOTAL: u64 = 6 * STEPS;

/// What a peer needs and cannot be had here.
#[derive(Debug)]
pub struct Missing {
    peer: &'static str,
    reason: String,
}

impl Missing {
    /// Whether that is a failure: on CI, and where `TENURE_REQUIRE` names the peer or is `all`.
    pub fn is_failure(&self) -> bool {
        let ci = std::env::var("CI").unwrap_or_default();
        !matches!(ci.as_str(), "" | "0" | "false") || tenure_servers::require(self.peer)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not get {}: {}", self.peer, self.reason)
    }
}

impl std::error::Error for Missing {}

/// A program that executes lines of its input, and responds to each with a line. It
/// ends with this value.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    orders: ChildStdin,
    responses: mpsc::UnboundedReceiver<String>,
    /// What it says apart from responses.
    log: File,
    /// It has said that it obeys.
    ready: bool,
}

impl Peer {
    /// Builds the program below this folder, unless that is done, and starts it.
    ///
    /// # Errors
    ///
    /// [`Missing`] if a tool or a registry cannot be had; or the program cannot be built.
    pub fn start(recipe: &Recipe, target: &Path, argument: &str) -> Result<Peer> {
        let built = recipe.command(target, LONGEST);
        let mut program = built.map_err(|error| {
            if error.is_missing() {
                anyhow::Error::new(Missing { peer: recipe.name, reason: error.to_string() })
            } else {
                anyhow::Error::new(error)
            }
        })?;
        // Not in its arguments, which every user can read: there may be a password in it.
        program.env("TENURE_PEER", argument);
        let log = tempfile::tempfile()?;
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log.try_clone()?);
        let mut process = program.spawn().with_context(|| format!("start {}", recipe.name))?;
        let orders = process.stdin.take().context("a pipe")?;
        let output = BufReader::new(process.stdout.take().context("a pipe")?);
        let (sender, responses) = mpsc::unbounded_channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Peer { process, orders, responses, log, ready: false })
    }

    /// Sends a command and waits for this response.
    ///
    /// # Errors
    ///
    /// Another response, or none in time.
    pub async fn execute(&mut self, order: &str, response: &str) -> Result<()> {
        self.send(order)?;
        self.expect_response(response).await
    }

    /// Says something.
    ///
    /// # Errors
    ///
    /// The program has ended.
    pub fn send(&mut self, order: &str) -> Result<()> {
        Ok(writeln!(self.orders, "{order}")?)
    }

    /// Waits for this response.
    ///
    /// # Errors
    ///
    /// Another response, or none in time.
    pub async fn expect_response(&mut self, expected: &str) -> Result<()> {
        let response = self.next().await?;
        ensure!(response == expected, "expected `{expected}`, but the peer says `{response}`");
        Ok(())
    }

    /// The next response; the line that says that the program is ready is skipped.
    ///
    /// # Errors
    ///
    /// None in time, or the program has ended.
    pub async fn next(&mut self) -> Result<String> {
        if !self.ready {
            let ready = within(START, "the start of the peer", self.responses.recv()).await?;
            let ready = ready.with_context(|| self.end())?;
            ensure!(ready == "peer ready", "the peer begins with `{ready}`");
            self.ready = true;
        }
        let line = soon("a response of the peer", self.responses.recv()).await?;
        line.with_context(|| self.end())
    }

    /// Why there is no response any more.
    fn end(&self) -> String {
        format!("the peer has ended: {}", last_lines(&self.log))
    }

    /// Three threads of the peer and three tasks of this process count together: each adds one to
    /// one number under the lock of this name, [`STEPS`] times. The tasks do it by `count`.
    ///
    /// # Errors
    ///
    /// Those of either side.
    pub async fn count_together<F>(&mut self, key: &str, count: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        for thread in ["a", "b", "c"] {
            self.send(&format!("count {thread} {key} {STEPS}"))?;
        }
        let mut tasks: JoinSet<Result<()>> = (0..3).map(|_| count()).collect();
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        for _ in 0..3 {
            let response = self.next().await?;
            ensure!(response.ends_with(" counted"), "{response}");
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // One that has ended needs no killing.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}
