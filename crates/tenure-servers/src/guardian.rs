//! The guardian: a small shell process that outlives this one by a moment and ends its servers. It
//! reads process ids from a pipe whose only writer is this process. When this process ends, for
//! whatever reason, the kernel closes the pipe, and the guardian kills all registered processes.
//!
//! A parent-death signal would not work: it is sent when the *thread* that started the server ends,
//! and test harnesses run each test on a thread of its own.

use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The guardian's program. `+PID` registers a process, `-PID` unregisters it, `/PATH` is removed at
/// the end.
///
/// A server is stopped before its children are listed, so that it makes no new ones. They are
/// killed by process id, because PostgreSQL gives each of them its own process group. SIGKILL also
/// ends paused processes. A killed PostgreSQL leaves a segment of shared memory that outlives all
/// processes, and a machine has room for some thousands; its number is in `postmaster.pid`. Killed
/// processes may still write for a moment, so the removal is tried more than once.
const SCRIPT: &str = r#"
pids=
while IFS= read -r line; do
  case $line in
    +*) pids="$pids ${line#+}" ;;
    -*) rest=
        for p in $pids; do [ "$p" = "${line#-}" ] || rest="$rest $p"; done
        pids=$rest ;;
    /*) set -- "$@" "$line" ;;
  esac
done
for p in $pids; do
  kill -s STOP "$p"
  kids=
  read -r kids <"/proc/$p/task/$p/children"
  kill -s KILL -- "-$p" $kids
done
for dir; do
  note=$dir/n1/data/postmaster.pid
  if [ -r "$note" ]; then ipcrm -m "$(sed -n '7s/.* //p' "$note")"; fi
done
for try in 1 2 3 4 5; do
  rm -rf -- "$@" && break
  sleep 0.1
done
"#;

/// The end of the pipe for a new process, which registers itself *before* it executes the server's
/// program: there is no moment at which a server runs unregistered.
pub(crate) fn register() -> io::Result<Stdio> {
    Ok(Stdio::from(pipe()?.try_clone()?))
}

/// Unregisters a process that has been reaped: its id may now belong to another process.
pub(crate) fn unregister(pid: u32) {
    send(&format!("-{pid}"));
}

/// Removes this file or folder when the process ends without having removed it.
pub(crate) fn remove_at_exit(path: &Path) {
    // Messages are lines. A path with a line break cannot be sent and is not removed.
    if let Some(text) = path.to_str().filter(|text| text.starts_with('/') && !text.contains('\n')) {
        send(text);
    }
}

fn send(line: &str) {
    if let Ok(mut pipe) = pipe() {
        // A write below PIPE_BUF is atomic. If the guardian has ended, `register` returns the
        // error.
        drop(pipe.write_all(format!("{line}\n").as_bytes()));
    }
}

fn pipe() -> io::Result<&'static PipeWriter> {
    static PIPE: OnceLock<Result<PipeWriter, String>> = OnceLock::new();
    PIPE.get_or_init(|| start().map_err(|error| format!("no guardian process: {error}")))
        .as_ref()
        .map_err(|reason| io::Error::other(reason.clone()))
}

/// Starts the guardian. It is never waited for, because it ends after this process.
fn start() -> io::Result<PipeWriter> {
    let (reader, writer) = io::pipe()?;
    Command::new("/bin/sh")
        .args(["-c", SCRIPT, "tenure-guardian"])
        .stdin(reader)
        // Not inherited: a reader of this process's output would wait for the guardian too.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        // Ctrl-C goes to the foreground process group; the guardian must survive it.
        .process_group(0)
        .spawn()?;
    Ok(writer)
}
