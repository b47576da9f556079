//! Runs a command under a lock, as two processes:
//!
//! ```text
//! shell ─ front (the shell's job, no threads) ─ socket pair ─ keeper (holds the lock)
//!           signals, stop and continue, exit code               └ command, in its own group
//! ```
//!
//! One process would not do: a stopped runner cannot renew, so that Ctrl-Z would lose the lock, and
//! a killed runner cannot end its grandchildren. So each watches the other: the end of the pair is
//! the notice of death, and both adopt orphans (`PR_SET_CHILD_SUBREAPER`). The front forks first of
//! all, before there is a thread or an open store.

#[cfg(target_os = "linux")]
mod child;
#[cfg(target_os = "linux")]
mod desk;
#[cfg(target_os = "linux")]
mod front;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod keeper;
#[cfg(target_os = "linux")]
mod pair;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod talk;
#[cfg(target_os = "linux")]
mod terminal;
#[cfg(target_os = "linux")]
mod time;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod work;

use std::ffi::OsString;
use std::time::Duration;

use tenure::Key;

use crate::store::Source;

#[cfg(target_os = "linux")]
pub(crate) use front::run;

/// What is to be run, under which lock.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) struct Job {
    pub(crate) url: String,
    /// What the command finds in its environment of that.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Where the URL comes from.
    pub(crate) source: Source,
    /// What others see as the holder; `None` leaves it to the URL.
    pub(crate) owner: Option<String>,
    pub(crate) key: Key,
    pub(crate) patience: Patience,
    /// How long the URL lets a server be away; `None` if it does not say.
    pub(crate) outage: Option<Duration>,
    /// The lease, if it was given.
    pub(crate) ttl: Option<Duration>,
    /// The lease that the lock has without `at_least`, and how often it is renewed.
    pub(crate) lease: Lease,
    /// How long the lock is kept at least, counted from its grant.
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) note: String,
    pub(crate) busy_exit: u8,
    pub(crate) json: bool,
    pub(crate) program: OsString,
    pub(crate) arguments: Vec<OsString>,
}

/// How long a lock lasts without a renewal, and how often it is renewed.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) struct Lease {
    pub(crate) ttl: Duration,
    pub(crate) renew_every: Duration,
}

/// How it ended: the exit code, and the cause in a word.
#[cfg(target_os = "linux")]
struct Ending(u8, &'static str);

/// How long to wait for a lock that somebody else holds.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) enum Patience {
    Forever,
    None,
    Within(Duration),
}

/// Elsewhere there is no parent-death signal and nobody adopts orphans, so that a killed runner
/// would leave its command at work under a lock that expires.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_job: &Job) -> Result<u8, crate::failure::Failure> {
    let message = "`tenure run` works on Linux only: elsewhere it could not end its command";
    let advice = "use the library, or run it in a Linux container";
    Err(crate::failure::Failure::new(crate::exit::USAGE, message, advice))
}
