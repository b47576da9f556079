//! Java programs as real peers in tests: compiled on the spot, told what to do by a pipe, which
//! `java/Orders.java` reads. They need `java`, `javac`, `mvn` and Maven Central; where one of these
//! cannot be had, the case is ignored with the reason, except on CI, where that is a failure.

use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::context::{soon, within};

/// A busy machine needs many seconds until a library of this size is loaded.
const START: Duration = Duration::from_secs(60);
/// Maven has a minute and a half for what is a matter of seconds on most networks: the case itself
/// needs time as well.
const LONGEST: Duration = Duration::from_secs(90);
/// How often each adds one when all count together.
pub const STEPS: u64 = 100;
/// What they come to.
pub const TOTAL: u64 = 6 * STEPS;

/// What a peer needs and cannot be had here.
#[derive(Debug)]
pub struct Missing {
    peer: String,
    reason: String,
}

impl Missing {
    /// Whether that is a failure: on CI, and where `TENURE_REQUIRE` names the peer or is `all`.
    pub fn is_failure(&self) -> bool {
        let ci = std::env::var("CI").unwrap_or_default();
        !matches!(ci.as_str(), "" | "0" | "false") || tenure_servers::require(&self.peer)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not get {}: {}", self.peer, self.reason)
    }
}

impl std::error::Error for Missing {}

/// A Java program that executes lines of its input, and responds to each with a line. It
/// ends with this value.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    orders: ChildStdin,
    responses: mpsc::UnboundedReceiver<String>,
    /// It has said that it obeys.
    ready: bool,
}

impl Peer {
    /// Compiles and starts `Peer.java` of this folder, with what its `pom.xml` names.
    ///
    /// # Errors
    ///
    /// [`Missing`] if a tool or Maven Central cannot be had; or a tool does not do its work.
    pub fn start(source: &Path, target: &Path, argument: &str) -> Result<Peer> {
        let folder = built(source, target)?;
        let class_path = format!("{}:{}/lib/*", folder.display(), folder.display());
        let mut java = Command::new("java");
        // Not in its arguments, which everybody can read: there may be a password in it.
        java.args(["-Xmx128m", "-cp", &class_path, "Peer"]).env("TENURE_PEER", argument);
        java.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = java.spawn().context("start java")?;
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
        Ok(Peer { process, orders, responses, ready: false })
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
        ensure!(response == expected, "expected `{expected}`, but Java says `{response}`");
        Ok(())
    }

    /// The next response; the line that says that the program is ready is skipped.
    ///
    /// # Errors
    ///
    /// None in time, or the program has ended.
    pub async fn next(&mut self) -> Result<String> {
        if !self.ready {
            let ready = within(START, "the start of Java", self.responses.recv()).await?;
            let ready = ready.context("the Java process has ended")?;
            ensure!(ready == "peer ready", "Java begins with `{ready}`");
            self.ready = true;
        }
        let line = soon("a response of Java", self.responses.recv()).await?;
        line.context("the Java process has ended")
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

/// The folder with the compiled class and, in `lib`, what it needs; made once.
fn built(source: &Path, target: &Path) -> Result<PathBuf> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let name = source.file_name().context("a folder with a name")?;
    let folder = target.join(name);
    let missing = |reason| Missing { peer: name.to_string_lossy().into_owned(), reason };
    for tool in ["java", "javac"] {
        run(Command::new(tool).arg("-version")).map_err(missing)?;
    }
    let library = folder.join("lib");
    if !library.exists() {
        // Under another name until it is complete: a download may be broken off.
        let partial = folder.join("lib.partial");
        let into = format!("-DoutputDirectory={}", partial.display());
        let mut mvn = Command::new("mvn");
        mvn.args(["-q", "-B", "-f"]).arg(source.join("pom.xml"));
        run(mvn.args(["dependency:copy-dependencies", &into])).map_err(missing)?;
        std::fs::rename(&partial, &library)?;
    }
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(format!("{}/*", library.display()));
    let orders = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/java/Orders.java");
    let javac = javac.arg("-d").arg(&folder).arg(source.join("Peer.java")).arg(orders);
    run(javac).map_err(anyhow::Error::msg)?;
    Ok(folder)
}

/// Runs a tool to its end, for at most [`LONGEST`]; why that failed.
fn run(command: &mut Command) -> Result<(), String> {
    let log = tempfile::tempfile().map_err(|error| error.to_string())?;
    let (out, err) = (log.try_clone(), log.try_clone());
    let (out, err) = (out.map_err(|e| e.to_string())?, err.map_err(|e| e.to_string())?);
    let process = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn();
    let mut process = process.map_err(|error| format!("{command:?}: {error}"))?;
    let start = Instant::now();
    loop {
        match process.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("{command:?}: {status}: {}", tail(log))),
            None if start.elapsed() > LONGEST => {
                process.kill().ok();
                process.wait().ok();
                return Err(format!("{command:?}: not done after {LONGEST:?}"));
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// What a tool said last.
fn tail(mut log: File) -> String {
    let mut text = Vec::new();
    let read = log.seek(SeekFrom::Start(0)).and_then(|_| log.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    match read {
        Ok(_) => text.lines().rev().take(5).collect::<Vec<_>>().join("; "),
        Err(error) => error.to_string(),
    }
}
