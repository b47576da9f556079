//! Java programs as real peers in tests: compiled on the spot, told what to do by a pipe, which
//! `java/Orders.java` reads. They need `java`, `javac`, `mvn` and Maven Central, so cases with them
//! run only where they are asked for.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::bench::soon;

/// Why cases with this peer are not run, if so.
pub fn not_wanted(peer: &str) -> Option<String> {
    let wanted = std::env::var("TENURE_INTEROP").is_ok_and(|what| what.contains(peer));
    let advice = format!("TENURE_INTEROP={peer} runs it; it needs java, mvn and Maven Central");
    (!wanted).then_some(advice)
}

/// A Java program that obeys lines on its input, and answers each by a line when it is done. It
/// ends with this value.
#[derive(Debug)]
pub struct Peer {
    process: Child,
    orders: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Peer {
    /// Compiles and starts `Peer.java` of this folder, with what its `pom.xml` names.
    ///
    /// # Errors
    ///
    /// A tool is missing, or does not do its work.
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
        let (sender, answers) = mpsc::unbounded_channel();
        // Ends with the process.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Peer { process, orders, answers })
    }

    /// Says something and waits for this answer.
    ///
    /// # Errors
    ///
    /// Another answer, or none in time.
    pub async fn ask(&mut self, order: &str, answer: &str) -> Result<()> {
        self.tell(order)?;
        self.hear(answer).await
    }

    /// Says something.
    ///
    /// # Errors
    ///
    /// The program has ended.
    pub fn tell(&mut self, order: &str) -> Result<()> {
        Ok(writeln!(self.orders, "{order}")?)
    }

    /// Waits for this answer.
    ///
    /// # Errors
    ///
    /// Another answer, or none in time.
    pub async fn hear(&mut self, expected: &str) -> Result<()> {
        let answer = self.next().await?;
        ensure!(answer == expected, "expected `{expected}`, but Java says `{answer}`");
        Ok(())
    }

    /// The next answer; what the program says when it is ready is none.
    ///
    /// # Errors
    ///
    /// None in time, or the program has ended.
    pub async fn next(&mut self) -> Result<String> {
        loop {
            let line = soon("an answer of Java", self.answers.recv()).await?;
            let line = line.context("the Java process has ended")?;
            if line != "peer ready" {
                return Ok(line);
            }
        }
    }

    /// Three threads of the peer and three tasks of ours count together: each adds one to one
    /// number under the lock of this name, [`STEPS`] times. Ours do it by `count`.
    ///
    /// # Errors
    ///
    /// Those of either side.
    pub async fn count_together<F>(&mut self, key: &str, count: impl Fn() -> F) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        for thread in ["a", "b", "c"] {
            self.tell(&format!("count {thread} {key} {STEPS}"))?;
        }
        let mut tasks: JoinSet<Result<()>> = (0..3).map(|_| count()).collect();
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        for _ in 0..3 {
            let answer = self.next().await?;
            ensure!(answer.ends_with(" counted"), "{answer}");
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
    let folder = target.join(source.file_name().context("a folder with a name")?);
    let library = folder.join("lib");
    if !library.exists() {
        let into = format!("-DoutputDirectory={}", library.display());
        let mut mvn = Command::new("mvn");
        mvn.args(["-q", "-B", "-f"]).arg(source.join("pom.xml"));
        run(mvn.args(["dependency:copy-dependencies", &into]))?;
    }
    let mut javac = Command::new("javac");
    javac.arg("-cp").arg(format!("{}/*", library.display()));
    let orders = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/java/Orders.java");
    run(javac.arg("-d").arg(&folder).arg(source.join("Peer.java")).arg(orders))?;
    Ok(folder)
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{command:?}: {text}");
    Ok(())
}

/// How often each adds one when all count together.
pub const STEPS: u64 = 100;
/// What they come to.
pub const TOTAL: u64 = 6 * STEPS;
