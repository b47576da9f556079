//! Runs a command under a lock, as two processes:
//!
//! ```text
//! shell ─ launcher (the shell's job, no threads) ─ channel ─ supervisor (holds the lock)
//!           signals, stop and continue, exit code              └ command, in its own process group
//! ```
//!
//! A single process cannot do this: if it is stopped it cannot renew, so Ctrl-Z would lose the
//! lock; if it is killed it cannot end its grandchildren. Therefore each process watches the other:
//! when one of them ends, the kernel closes its end of the channel, and the other one kills the
//! command. Both are subreapers (`PR_SET_CHILD_SUBREAPER`), so that orphans of the command become
//! their children and can be found. The launcher forks before the program starts a thread or opens
//! a store.
//!
//! | file | job |
//! |---|---|
//! | `launcher` | the process that the shell started: signals, job control, exit code |
//! | `supervisor` | the process that acquires, renews and releases the lock |
//! | `spawn` | starts the command |
//! | `locks` | the locks of a job, as one set |
//! | `monitor` | watches lease and command, and ends the command in time |
//! | `at_least` | keeps the lock after the command has ended, for `--at-least` |
//! | `hold` | holds the lock without a command, for `tenure hold` |
//! | `lease_end` | when the lease ends, and when this process has to act |
//! | `input` | the end of the input, which ends `tenure hold` |
//! | `channel` | messages between launcher and supervisor |
//! | `event_loop` | where the supervisor waits for everything at once |
//! | `process_tree` | reaps and kills the descendants of this process |
//! | `reporter` | messages and JSON events on stderr |
//! | `signals`, `terminal`, `clock`, `sys` | the operating system |

#[cfg(target_os = "linux")]
mod at_least;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(target_os = "linux")]
mod clock;
#[cfg(target_os = "linux")]
mod event_loop;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod input;
#[cfg(target_os = "linux")]
mod launcher;
#[cfg(target_os = "linux")]
mod lease_end;
#[cfg(target_os = "linux")]
mod locks;
#[cfg(target_os = "linux")]
mod monitor;
#[cfg(target_os = "linux")]
mod process_tree;
#[cfg(target_os = "linux")]
mod reporter;
#[cfg(target_os = "linux")]
mod signals;
#[cfg(target_os = "linux")]
mod spawn;
#[cfg(target_os = "linux")]
mod supervisor;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod terminal;

use std::ffi::OsString;
use std::time::Duration;

use tenure::{Key, Mode};

use crate::store::Source;

#[cfg(target_os = "linux")]
pub(crate) use launcher::run;

/// The lock to hold, and the command to run while it is held.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) struct Job {
    pub(crate) url: String,
    /// Variables of tenure in the command's environment, besides the key and the token.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Where the URL comes from.
    pub(crate) source: Source,
    /// The name of the holder that other clients see; `None` if the URL names it.
    pub(crate) owner: Option<String>,
    /// In the order of the command line.
    pub(crate) keys: Vec<Key>,
    /// How each of them is held.
    pub(crate) mode: Mode,
    pub(crate) wait_limit: WaitLimit,
    /// The option `outage` of the URL: how long to retry an unreachable server.
    pub(crate) outage: Option<Duration>,
    /// The flag `--ttl`.
    pub(crate) ttl: Option<Duration>,
    /// The lease that the lock has without `at_least`, and how often it is renewed.
    pub(crate) lease: Lease,
    /// The minimum time to keep the lock, counted from its grant.
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) note: String,
    pub(crate) busy_exit: u8,
    pub(crate) json: bool,
    /// Report also without a terminal what is reported on one, and more.
    pub(crate) verbose: bool,
    /// Whether this is `tenure elect`.
    pub(crate) elects: bool,
    /// Whether the command is started again when the lock was lost and is acquired again.
    pub(crate) again: bool,
    /// `None` for `tenure hold`: the lock is held until the input ends, or until a signal.
    pub(crate) command: Option<Command>,
}

/// A program to start, and its arguments.
#[derive(Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) struct Command {
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

/// How a job ended.
#[cfg(target_os = "linux")]
struct Ending {
    /// The exit code of `tenure run`.
    code: u8,
    /// The field `cause` of the last JSON event.
    cause: &'static str,
}

/// How long to wait for a lock that another client holds.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "`run` is for Linux"))]
pub(crate) enum WaitLimit {
    /// Wait until the lock is granted.
    Unlimited,
    /// Do not wait at all.
    NoWait,
    /// Give up after this time.
    Within(Duration),
}

/// Other systems have neither a parent-death signal nor subreapers, so that a killed runner would
/// leave its command running under a lock that expires.
#[cfg(not(target_os = "linux"))]
pub(crate) fn run(_job: &Job) -> Result<u8, crate::failure::Failure> {
    let message =
        "`run` and `hold` work on Linux only: elsewhere a killed one would leave its work";
    let advice = "use the library, or run it in a Linux container";
    Err(crate::failure::Failure::new(crate::exit::USAGE, message, advice))
}
