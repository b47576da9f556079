//! Starts the command in such a way that it ends with the supervisor, and that every signal for the
//! job reaches it.

use std::io;
use std::process;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};
use rustix::termios::tcsetpgrp;
use tenure::{GuardSet, Lease, Mode};

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
    held: &GuardSet,
    terminal: Option<&Terminal>,
    signals: Signals,
) -> Result<Pid, Failure> {
    use std::os::unix::process::CommandExt;
    let mut command = process::Command::new(&what.program);
    command.args(&what.arguments).process_group(0);
    // Those of a `tenure run` around this one name other locks.
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if ["TENURE_KEY", "TENURE_TOKEN"].iter().any(|own| is_numbered(&name, own)) {
            command.env_remove(name);
        }
    }
    command.envs(variables(job, held));
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

/// What the command learns about its locks: `TENURE_KEY` and `TENURE_TOKEN`, with a number behind
/// them if there are several, in the order of the command line; and `TENURE_MODE`. Permits fence
/// nothing and have no token.
fn variables(job: &Job, held: &GuardSet) -> Vec<(String, String)> {
    let mut variables = Vec::new();
    for (number, key) in (1..).zip(&job.keys) {
        let suffix = if job.keys.len() > 1 { format!("_{number}") } else { String::new() };
        variables.push((format!("TENURE_KEY{suffix}"), key.to_string()));
        if let Ok(token) = held.token(key) {
            variables.push((format!("TENURE_TOKEN{suffix}"), token.to_string()));
        }
    }
    let mode = held.leases().next().map_or(Mode::Exclusive, Lease::mode);
    variables.push(("TENURE_MODE".to_owned(), mode.name().to_owned()));
    variables
}

/// Whether a variable has this name, or this name with a number behind it.
fn is_numbered(name: &str, own: &str) -> bool {
    match name.strip_prefix(own).map(|rest| rest.strip_prefix('_').unwrap_or(rest)) {
        Some(number) => number.chars().all(|c| c.is_ascii_digit()),
        None => false,
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
