//! Watches the command while it runs under the lock: forwards signals to it, and ends it with all
//! its descendants before the lease ends.
//!
//! The lease is read on every wake-up, and these moments follow from its end:
//!
//! ```text
//! ──── renewed ──────────────┬── 1/4 left ──┬── 1/10 left ──┬── 1/12 left ──┬── end of the lease
//!                            │ SIGTERM      │ SIGKILL       │ the launcher  │ the server may grant
//!                            │ to the group │ to all        │ kills all     │ the lock again
//! ```
//!
//! The launcher acts later than this process would, so that it acts only if this process cannot.
//! After an eviction the server grants the lock at once, and only the fencing token keeps the
//! old command and the next holder apart.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus};
use tenure::{GuardSet, Lease};

use super::Ending;
use super::channel::{ToLauncher, ToSupervisor};
use super::clock::{self, Moment};
use super::event_loop::{EventLoop, LoopEvent};
use super::lease_end::LeaseEnd;
use super::process_tree::{self, Reaped};
use super::reporter::{Loss, LossText, Reporter};
use super::signals::needs_continue;
use crate::exit;

/// How long a command that has lost its lock may take to clean up.
const GRACE_PERIOD: Duration = Duration::from_secs(2);

/// How often SIGKILL is sent again to processes that still exist.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// What became of the command.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It ended by itself: the exit code as a shell reports it, and the JSON cause.
    Done { code: u8, cause: &'static str },
    /// It was ended, with all its descendants, because the lock was lost or could not be renewed.
    Lost,
}

impl Outcome {
    /// The ending of the job that follows from it.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Outcome::Done { code, cause } => Ending { code: *code, cause },
            Outcome::Lost => Ending { code: exit::LOST, cause: "lost" },
        }
    }
}

/// The lease as this process sees it, and what is done about it.
pub(super) struct Monitor<'a> {
    held: &'a GuardSet,
    reporter: &'a Reporter,
    lease: LeaseEnd<'a>,
    max_hold_end: Option<Moment>,
    /// When the command is killed; `None` as long as it may go on.
    kill_at: Option<Moment>,
    /// The exit status of the command, after it was reaped.
    status: Option<WaitStatus>,
}

impl<'a> Monitor<'a> {
    pub(super) fn new(
        held: &'a GuardSet,
        reporter: &'a Reporter,
        deadline: &'static AtomicU64,
        max_hold: Option<Duration>,
    ) -> Monitor<'a> {
        let now = clock::now();
        Monitor {
            held,
            reporter,
            lease: LeaseEnd::new(held, deadline),
            max_hold_end: max_hold.and_then(|limit| now.checked_add(limit)),
            kill_at: None,
            status: None,
        }
    }

    /// Watches until the command has ended or, if it has to be ended, until no descendant is left.
    pub(super) fn watch(&mut self, events: &mut EventLoop, command: Pid) -> Outcome {
        loop {
            self.decide(command);
            let none_left = self.reap(events, command);
            match (self.kill_at, self.status) {
                (None, Some(status)) => return done(status),
                (Some(_), _) if none_left => return Outcome::Lost,
                _ => {}
            }
            match events.next(Some(self.next_deadline())) {
                // A command that cannot be watched must not go on.
                Err(error) => {
                    self.kill_at = Some(clock::now());
                    self.reporter.warn(&format!("cannot watch the command: {error}; ending it"));
                    std::thread::sleep(KILL_INTERVAL);
                }
                Ok(event) => self.react(&event, command),
            }
        }
    }

    fn react(&mut self, event: &LoopEvent, command: Pid) {
        match event {
            LoopEvent::Launcher(ToSupervisor::Continue) => self.send(command, Signal::CONT),
            LoopEvent::Launcher(ToSupervisor::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(*number) {
                    self.send(command, signal);
                }
                if needs_continue(*number) {
                    self.send(command, Signal::CONT);
                }
            }
            // Only `tenure hold` has an input of its own.
            LoopEvent::Launcher(ToSupervisor::InputEnded) => {}
            // There is no process left that forwards signals or exits with the code: end the job.
            LoopEvent::LauncherEnded => self.kill_at = Some(clock::now()),
            LoopEvent::Wakeup | LoopEvent::Child | LoopEvent::Deadline => {}
        }
    }

    /// Reads lease and clock, and ends the command if it has to be ended.
    fn decide(&mut self, command: Pid) {
        let lost = self.lease.read();
        let now = clock::now();
        if self.kill_at.is_none() {
            let last_moment = self.lease.kill_at();
            let after_grace = last_moment.min(now + GRACE_PERIOD);
            if let Some(loss) = lost {
                self.terminate(command, &loss, after_grace);
            } else if now >= self.lease.give_up_at() {
                let loss = self.lease.not_renewed();
                self.terminate(command, &loss, last_moment);
            } else if self.max_hold_end.is_some_and(|end| now >= end) {
                let loss = Loss::new(only(self.held), LossText::MAX_HOLD);
                self.terminate(command, &loss, after_grace);
            }
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            // After the command was reaped, another process group may have got its number.
            process_tree::kill_all(self.status.is_none().then_some(command));
        }
    }

    fn terminate(&mut self, command: Pid, loss: &Loss, kill_at: Moment) {
        // The signal is sent first: a stderr that blocks must not give the command more time.
        self.send(command, Signal::TERM);
        self.send(command, Signal::CONT);
        self.kill_at = Some(kill_at);
        self.reporter.lost(loss);
    }

    /// Sends a signal to the command, unless it was reaped.
    fn send(&self, command: Pid, signal: Signal) {
        if self.status.is_none() {
            process_tree::signal(command, signal);
        }
    }

    /// Reaps every process that has ended. Returns whether no descendant is left.
    fn reap(&mut self, events: &EventLoop, command: Pid) -> bool {
        loop {
            match process_tree::reap() {
                Reaped::Process(pid, status) if pid == command => match status.stopping_signal() {
                    Some(signal) => events.send(ToLauncher::Stopped(signal)),
                    None => self.status = Some(status),
                },
                Reaped::Process(..) => {}
                Reaped::NoChange => return false,
                Reaped::NoChildren => return true,
            }
        }
    }

    fn next_deadline(&self) -> Moment {
        let now = clock::now();
        match self.kill_at {
            // A process that was killed and still exists is slow to end, or belongs to another
            // user. In the latter case the lock is kept until it has ended by itself.
            Some(at) if at <= now => now + KILL_INTERVAL,
            Some(at) => at,
            None => {
                let not_renewed = self.lease.give_up_at();
                self.max_hold_end.map_or(not_renewed, |end| end.min(not_renewed))
            }
        }
    }
}

/// The only lock; `None` if there are several, which have one and the same fate.
fn only(held: &GuardSet) -> Option<&Lease> {
    let mut leases = held.leases();
    leases.next().filter(|_| leases.next().is_none())
}

fn done(status: WaitStatus) -> Outcome {
    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
    match (code, status.terminating_signal()) {
        (Some(code), _) => Outcome::Done { code, cause: "command" },
        (None, Some(signal)) => Outcome::Done { code: exit::by_signal(signal), cause: "signal" },
        (None, None) => Outcome::Done { code: exit::INTERNAL, cause: "error" },
    }
}
