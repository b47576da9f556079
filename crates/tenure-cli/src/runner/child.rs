//! Starts the command, so that it can neither outlive its keeper nor be missed by a signal.

use std::io;
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::termios::tcsetpgrp;
use tenure::FencingToken;

use super::Job;
use super::signals::Signals;
use super::sys;
use super::terminal::Terminal;
use crate::exit;
use crate::failure::Failure;
use crate::output::Harmless;

/// Starts the command in a process group of its own. Has to be called by the keeper's main thread:
/// the parent-death signal comes when the *thread* ends that made the child.
pub(super) fn start(
    job: &Job,
    token: FencingToken,
    terminal: Option<&Terminal>,
    signals: Signals,
) -> Result<Pid, Failure> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(&job.program);
    command.args(&job.arguments).process_group(0);
    command.env("TENURE_KEY", job.key.as_str()).env("TENURE_TOKEN", token.to_string());
    command.envs(job.environment.iter().map(|(name, value)| (name, value)));
    let foreground = terminal.filter(|terminal| terminal.whole && terminal.is_with_the_job());
    let tty = foreground.and_then(Terminal::copy);
    let keeper = getpid();
    let prepare = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The keeper may have died before that was set.
        if getppid() != Some(keeper) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        if let Some(tty) = &tty {
            // SIGTTOU is still blocked here. Without the terminal the command can work as well.
            let _refused = tcsetpgrp(tty, getpid());
        }
        signals.restore();
        Ok(())
    };
    match sys::spawn(&mut command, prepare) {
        Ok(child) => Ok(Pid::from_child(&child)),
        Err(error) => Err(cannot(job, &error)),
    }
}

fn cannot(job: &Job, error: &io::Error) -> Failure {
    let program = job.program.to_string_lossy();
    if error.kind() == io::ErrorKind::NotFound {
        let message = format!("cannot find the command `{}`", Harmless(&program));
        return Failure::new(exit::NOT_FOUND, message, "check its name, its path and $PATH");
    }
    let message = format!("cannot execute `{}`: {error}", Harmless(&program));
    Failure::new(exit::CANNOT_EXECUTE, message, "check that it is a program and may be executed")
}
