//! Starts the command in such a way that it ends with the supervisor, and that every signal for the
//! job reaches it.

use std::io;
use std::process;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::termios::tcsetpgrp;
use tenure::FencingToken;

use super::signals::Signals;
use super::sys;
use super::terminal::Terminal;
use super::{Command, Job};
use crate::exit;
use crate::failure::Failure;
use crate::output::Harmless;

/// Starts the command in a process group of its own. Must be called on the supervisor's main
/// thread: the parent-death signal is sent when the *thread* that made the child ends.
pub(super) fn command(
    job: &Job,
    what: &Command,
    token: FencingToken,
    terminal: Option<&Terminal>,
    signals: Signals,
) -> Result<Pid, Failure> {
    use std::os::unix::process::CommandExt;
    let mut command = process::Command::new(&what.program);
    command.args(&what.arguments).process_group(0);
    command.env("TENURE_KEY", job.key.as_str()).env("TENURE_TOKEN", token.to_string());
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));
    let foreground = terminal.filter(|terminal| terminal.is_both_ends && terminal.is_with_job());
    let tty = foreground.and_then(Terminal::duplicate);
    let supervisor = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The supervisor may have died before that was set.
        if getppid() != Some(supervisor) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        if let Some(tty) = &tty {
            // SIGTTOU is still blocked here. The command can also run without the terminal.
            let _refused = tcsetpgrp(tty, getpid());
        }
        signals.restore();
        Ok(())
    };
    match sys::spawn(&mut command, prepare) {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => Err(spawn_failure(what, &error)),
    }
}

fn spawn_failure(command: &Command, error: &io::Error) -> Failure {
    let program = command.program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!("cannot find the command `{}`", Harmless(&program));
        return Failure::new(exit::NOT_FOUND, message, "check its name, its path and $PATH");
    }
    let message = format!("cannot execute `{}`: {error}", Harmless(&program));
    Failure::new(exit::CANNOT_EXECUTE, message, "check that it is a program and may be executed")
}
