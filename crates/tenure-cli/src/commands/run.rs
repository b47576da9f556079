//! `tenure run`: a command under a lock. This file checks the flags and makes a [`Job`] of them;
//! the runner does the rest.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tenure::{Key, Mode};

use crate::args::{Acquire, Reach, Run};
use crate::exit;
use crate::failure::Failure;
use crate::runner::{self, Command, Job, Lease, WaitLimit};
use crate::store::{Store, duration_option, option, scheme};
use crate::usage;

/// The library's own default.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

pub(super) fn run(store: &Store, reach: Option<Reach>, args: Run) -> Result<u8, Failure> {
    let command = command(args.shell_command, args.command)?;
    let owner = file_name(&command.program);
    let job = job(store, &args.keys, args.acquire, &owner)?;
    runner::run(&Job {
        url: with_inherited_liveness_file(&job.url),
        environment: environment(store, reach),
        at_least: args.at_least,
        max_hold: args.max_hold,
        json: args.json,
        command: Some(command),
        ..job
    })
}

/// Checks key, flags and URL, and makes a job without a command of them. Whatever is wrong is
/// refused here, before a process is forked.
pub(super) fn job(
    store: &Store,
    keys: &[String],
    acquire: Acquire,
    owner: &str,
) -> Result<Job, Failure> {
    let keys = keys.iter().map(Key::new).collect::<Result<Vec<_>, _>>()?;
    refuse_twice(&keys)?;
    let mode = mode(&acquire)?;
    let url = store.url.as_str();
    store.config()?;
    if scheme(url) == "memory" {
        let message = "a lock in `memory:` lives in one process and would exclude no other";
        let advice = "name a server with --url, or `sqlite:` for this machine alone";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    Ok(Job {
        lease: lease(url, acquire.ttl)?,
        url: url.to_owned(),
        environment: Vec::new(),
        source: store.source.clone(),
        owner: (!has_option(url, "owner")).then(|| owner.to_owned()),
        keys,
        mode,
        wait_limit: match acquire.wait {
            _ if acquire.no_wait => WaitLimit::NoWait,
            Some(limit) => WaitLimit::Within(limit),
            None => WaitLimit::Unlimited,
        },
        outage: duration_option(url, "outage"),
        ttl: acquire.ttl,
        at_least: None,
        max_hold: None,
        note: acquire.note.unwrap_or_default(),
        busy_exit: acquire.busy_exit,
        json: false,
        verbose: acquire.verbose,
        elects: false,
        again: false,
        command: None,
    })
}

/// A set of locks has each key once.
fn refuse_twice(keys: &[Key]) -> Result<(), Failure> {
    let twice = keys.iter().enumerate().find(|(at, key)| keys[..*at].contains(key));
    let Some((_, key)) = twice else { return Ok(()) };
    let message = format!("`{key}` is given twice");
    Err(Failure::new(exit::USAGE, message, "name each lock once"))
}

/// How the locks are held.
fn mode(acquire: &Acquire) -> Result<Mode, Failure> {
    Ok(match acquire.limit {
        Some(limit) => Mode::permits(acquire.permits.unwrap_or(1), limit)?,
        None if acquire.shared => Mode::Shared,
        None => Mode::Exclusive,
    })
}

/// The program to start, and its arguments. The shell of `-c` does not depend on `$SHELL`: a job
/// must not change with the user who starts it.
pub(super) fn command(
    shell_command: Option<OsString>,
    command: Vec<OsString>,
) -> Result<Command, Failure> {
    if let Some(text) = shell_command {
        return Ok(Command { program: "/bin/sh".into(), arguments: vec!["-c".into(), text] });
    }
    let mut words = command.into_iter();
    match words.next() {
        Some(program) => Ok(Command { program, arguments: words.collect() }),
        None => Err(Failure::new(exit::USAGE, "there is no command to run", usage::COMMAND)),
    }
}

/// For the embedded store: the command inherits the descriptor of the liveness file. Otherwise the
/// lock of a killed supervisor would be free for the microseconds in which its command still runs.
pub(super) fn with_inherited_liveness_file(url: &str) -> String {
    if scheme(url) != "sqlite" || has_option(url, "inherit") {
        return url.to_owned();
    }
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}inherit=yes")
}

/// The variables with which a `tenure` inside the command locks in the same store.
pub(super) fn environment(store: &Store, reach: Option<Reach>) -> Vec<(&'static str, String)> {
    let url = store.url_for_command().map(|url| ("TENURE_URL", url));
    let reach = (reach == Some(Reach::Network)).then(|| ("TENURE_REACH", "network".to_owned()));
    url.into_iter().chain(reach).collect()
}

fn has_option(url: &str, name: &str) -> bool {
    option(url, name).is_some()
}

/// The lease that follows from flag, URL and default. The command gets SIGTERM when a quarter of
/// the lease is left, so renewals have to be more frequent than that.
fn lease(url: &str, ttl: Option<Duration>) -> Result<Lease, Failure> {
    let ttl = ttl.or_else(|| duration_option(url, "ttl")).unwrap_or(DEFAULT_TTL);
    let renew_every = duration_option(url, "renew").unwrap_or(ttl / 3);
    if renew_every > ttl / 2 {
        let message = format!("renewing every {renew_every:?} is too rare for a lease of {ttl:?}");
        let advice = "`renew` in the URL may be at most half of the lease, or leave it out";
        return Err(Failure::new(exit::USAGE, message, advice));
    }
    Ok(Lease { ttl, renew_every })
}

/// The name of the holder that other clients see: the command's file name. Its arguments may
/// contain secrets.
pub(super) fn file_name(program: &std::ffi::OsStr) -> String {
    let name = Path::new(program).file_name().unwrap_or(program);
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_embedded_store_has_an_inherited_liveness_file() {
        assert_eq!(with_inherited_liveness_file("sqlite:"), "sqlite:?inherit=yes");
        assert_eq!(with_inherited_liveness_file("SQLite:a?ttl=1s"), "SQLite:a?ttl=1s&inherit=yes");
        assert_eq!(with_inherited_liveness_file("sqlite:?inherit=no"), "sqlite:?inherit=no");
        assert_eq!(with_inherited_liveness_file("memory:"), "memory:");
    }

    #[test]
    fn renewals_leave_time_to_end_the_command() {
        let seconds = |n| Some(Duration::from_secs(n));
        assert!(lease("sqlite:?renew=15s", None).is_ok());
        assert!(lease("sqlite:?renew=16s", None).is_err());
        assert!(lease("sqlite:?renew=16s", seconds(32)).is_ok());
        assert!(lease("sqlite:?ttl=1m&renew=31s", None).is_err());
        assert!(lease("sqlite:?ttl=1m&renew=25s", seconds(10)).is_err());
    }
}
