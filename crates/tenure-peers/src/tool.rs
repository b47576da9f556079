//! Runs the tools of a build.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Runs a tool to its end, for at most so long; why that failed, in one line.
pub(crate) fn run(
    folder: &Path,
    longest: Duration,
    tool: &str,
    arguments: &[&str],
) -> Result<(), String> {
    let log = tempfile::tempfile().map_err(|error| error.to_string())?;
    match wait(folder, longest, tool, arguments, &log) {
        Ok(Some(status)) if status.success() => Ok(()),
        Ok(Some(status)) => Err(format!("{tool}: {status}: {}", last_lines(&log))),
        Ok(None) => Err(format!("{tool}: not done after {longest:?}")),
        Err(error) => Err(format!("{tool}: {error}")),
    }
}

/// How it ended; nothing if it had to be killed.
fn wait(
    folder: &Path,
    longest: Duration,
    tool: &str,
    arguments: &[&str],
    log: &File,
) -> std::io::Result<Option<ExitStatus>> {
    let program = if tool.contains('/') { folder.join(tool) } else { PathBuf::from(tool) };
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.stdout(log.try_clone()?).stderr(log.try_clone()?);
    let mut child = command.spawn()?;
    let start = Instant::now();
    while start.elapsed() < longest {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// What a program wrote last into this file, in one line.
pub fn last_lines(log: &File) -> String {
    let (mut log, mut text) = (log, Vec::new());
    let read = log.rewind().and_then(|()| log.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let last = lines[lines.len().saturating_sub(3)..].join("; ");
    if read.is_ok() { last } else { String::new() }
}
