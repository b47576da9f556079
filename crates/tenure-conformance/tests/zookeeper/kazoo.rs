//! kazoo itself, in a Python process, on the same locks.
//!
//! It needs `python3` with pip, and PyPI; kazoo goes into a folder of the build. Where that cannot
//! be had the case is ignored with the reason, except on CI, where it is a failure.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use tenure::Attempt;
use tenure_conformance::context::{expect_busy, soon, until_waiters};
use tenure_conformance::server_cases;
use tenure_conformance::trials::Done;
use tenure_servers::{Cluster, require};

use crate::{acquire_free, url};

const PROGRAM: &str = r#"
import sys
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock
class CuratorLock(Lock):
    _NODE_NAME = "-lock-"
    _EXCLUDE_NAMES = ["-lock-"]
client = KazooClient(sys.argv[1])
client.start()
with CuratorLock(client, "/locks/k"):
    print("held", flush=True)
    sys.stdin.read()
client.stop()
"#;

const VERSION: &str = "2.10.0";

server_cases! {
    kazoo_with_curators_names_shares_one_queue Zookeeper;
}

/// A kazoo lock with the names of Curator, which holds until its input is closed.
struct Kazoo {
    child: Child,
    output: Option<BufReader<std::process::ChildStdout>>,
}

impl Kazoo {
    fn lock(folder: &Path, cluster: &Cluster) -> Result<Kazoo> {
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM, &cluster.hosts()]).env("PYTHONPATH", folder);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().map(BufReader::new);
        Ok(Kazoo { child, output })
    }

    /// Waits until it holds: then it prints a line.
    async fn held(&mut self) -> Result<()> {
        let mut output = self.output.take().context("called once")?;
        let read = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output.read_line(&mut line).map(|_| line)
        });
        let line = soon("kazoo's lock", read).await???;
        ensure!(line.trim() == "held", "kazoo says {line:?}");
        Ok(())
    }

    /// Lets kazoo release, and waits for the end of its process.
    fn end(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "kazoo failed");
        Ok(())
    }
}

impl Drop for Kazoo {
    fn drop(&mut self) {
        // Fails if the process has ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A claim of tenure, one of kazoo, one of tenure. kazoo sees Curator's nodes only if its own are
/// named like them.
async fn kazoo_with_curators_names_shares_one_queue(cluster: &Cluster) -> Result<Done> {
    let folder = match tokio::task::spawn_blocking(installed).await? {
        Ok(folder) => folder,
        Err(reason) if is_required() => bail!("kazoo cannot be had: {reason}"),
        Err(reason) => return Ok(Done::Ignored(format!("kazoo cannot be had: {reason}"))),
    };
    let client = tenure::connect(&url(cluster)).await?;
    let lock = client.lock("k");
    let guard = acquire_free(&lock).await?;
    let mut kazoo = Kazoo::lock(&folder, cluster)?;
    until_waiters(&lock, 1).await?;
    let waiter = tokio::spawn(lock.acquire());
    until_waiters(&lock, 2).await?;
    guard.release().await?;
    kazoo.held().await?;
    ensure!(!waiter.is_finished(), "two holders");
    expect_busy(&lock).await?;
    kazoo.end()?;
    let guard = soon("the grant after kazoo", waiter).await???;
    ensure!(matches!(lock.try_acquire().await?, Attempt::Busy(_)), "two holders");
    guard.release().await?;
    Ok(Done::Well)
}

/// Where kazoo is, or why it is not.
fn installed() -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kazoo-{VERSION}"));
    if folder.exists() {
        return Ok(folder);
    }
    // Under another name until it is complete.
    let partial = folder.with_extension(format!("{}.partial", std::process::id()));
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]);
    pip.args(["--retries", "1", "--timeout", "20", "--target"]).arg(&partial);
    let output = pip.arg(format!("kazoo=={VERSION}")).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(text.lines().last().unwrap_or("pip failed").to_owned());
    }
    match std::fs::rename(&partial, &folder) {
        Err(error) if !folder.exists() => Err(error.to_string()),
        // Another run was quicker.
        Ok(()) | Err(_) => Ok(folder),
    }
}

/// On CI, and where `TENURE_REQUIRE` names it or is `all`.
fn is_required() -> bool {
    let ci = std::env::var("CI").unwrap_or_default();
    !matches!(ci.as_str(), "" | "0" | "false") || require("kazoo")
}
