//! The guardian: a small shell process that outlives this one by a moment and takes the servers
//! with it. It reads process ids from a pipe whose only writer is this process; when that ends, for
//! whatever reason, the kernel closes the pipe, and the guardian kills everything it was told of.
//!
//! Not a parent-death signal: that fires when the *thread* that started the server ends, and test
//! harnesses give each test a thread of its own.

use std::io::{self, PipeWriter, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The end of the pipe that the starter of a server hands to its first stage, so that it can sign
/// in *before* it becomes the server: there is no moment at which a server runs unregistered.
pub(crate) fn sign_in() -> io::Result<Stdio> {
    Ok(Stdio::from(pipe()?.try_clone()?))
}

/// The process with this id has been reaped; its number may now belong to a stranger.
pub(crate) fn sign_out(pid: u32) {
    tell(&format!("-{pid}"));
}

/// Removes this file or folder when the process ends without having removed it.
pub(crate) fn remove_at_exit(path: &Path) {
    // The protocol is made of lines. A path with a line break only loses the tidying up.
    if let Some(text) = path.to_str().filter(|text| text.starts_with('/') && !text.contains('\n')) {
        tell(text);
    }
}

fn tell(line: &str) {
    if let Ok(mut pipe) = pipe() {
        // One write below PIPE_BUF is atomic. If the guardian is gone, `sign_in` fails loudly.
        drop(pipe.write_all(format!("{line}\n").as_bytes()));
    }
}

fn pipe() -> io::Result<&'static PipeWriter> {
    static PIPE: OnceLock<Result<PipeWriter, String>> = OnceLock::new();
    PIPE.get_or_init(|| start().map_err(|error| format!("no guardian process: {error}")))
        .as_ref()
        .map_err(|reason| io::Error::other(reason.clone()))
}

/// The child is left to itself on purpose: it ends after this process.
fn start() -> io::Result<PipeWriter> {
    let (reader, writer) = io::pipe()?;
    Command::new("/bin/sh")
        .args(["-c", SCRIPT, "tenure-guardian"])
        .stdin(reader)
        // Not inherited: whoever reads our output to its end would wait for the guardian too.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        // Ctrl-C goes to the foreground process group; the guardian must survive it.
        .process_group(0)
        .spawn()?;
    Ok(writer)
}

/// `+PID` signs in, `-PID` signs out, `/PATH` is removed at the end.
///
/// A server is stopped before its children are listed, so that it makes no new ones, and they are
/// killed by name because PostgreSQL gives each of them a process group of its own; both may be
/// paused, which SIGKILL does not mind. A killed PostgreSQL leaves a piece of shared memory that
/// outlives all processes, of which a machine has room for some thousands; its number is in the
/// note that PostgreSQL keeps with its data. Killed processes may still write for a moment, so that
/// the removal is tried more than once.
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
