//! Watching over the command while it runs under the lock: passing signals on, and ending it with
//! all its children before the lease ends. After an eviction others need not wait for that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitStatus};
use tenure::Guard;

use super::Ending;
use super::desk::{Call, Desk};
use super::pair::{ToFront, ToKeeper};
use super::signals::asks_to_end;
use super::talk::{self, Talk};
use super::time::{self, Moment};
use super::tree::{self, Fate};
use crate::exit;

/// What became of the command.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It ended by itself: the code that a shell makes of it, and the cause in a word.
    Done { code: u8, cause: &'static str },
    /// It was ended, with all its children, because the lock was lost or could not be kept.
    Lost,
}

impl Outcome {
    /// What the caller of `run` learns of it.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Outcome::Done { code, cause } => Ending(*code, cause),
            Outcome::Lost => Ending(exit::LOST, "lost"),
        }
    }
}

/// The lease as it looks from here, and what is being done about it.
pub(super) struct Work<'a> {
    guard: &'a Guard,
    talk: &'a Talk,
    deadline: &'static AtomicU64,
    end: Moment,
    /// The longest lease seen: the ttl, without having to ask which of its sources decided.
    ttl: Duration,
    hold_until: Option<Moment>,
    /// When the command is killed; `None` as long as it may go on.
    kill_at: Option<Moment>,
    status: Option<WaitStatus>,
}

impl<'a> Work<'a> {
    pub(super) fn new(
        guard: &'a Guard,
        talk: &'a Talk,
        deadline: &'static AtomicU64,
        max_hold: Option<Duration>,
    ) -> Work<'a> {
        let now = time::now();
        let hold_until = max_hold.and_then(|limit| now.checked_add(limit));
        let (end, ttl) = (now, Duration::ZERO);
        let mut work =
            Work { guard, talk, deadline, end, ttl, hold_until, kill_at: None, status: None };
        work.look_at_the_lease();
        work
    }

    /// Watches until the command has ended, or, if it has to be ended, until nothing of it is left.
    pub(super) fn watch(&mut self, desk: &mut Desk, command: Pid) -> Outcome {
        loop {
            self.decide(command);
            let none_left = self.reap(desk, command);
            match (self.kill_at, self.status) {
                (None, Some(status)) => return done(status),
                (Some(_), _) if none_left => return Outcome::Lost,
                _ => {}
            }
            match desk.next(Some(self.next_look())) {
                // Without waiting we cannot watch, and without watching it must not go on.
                Err(error) => {
                    self.kill_at = Some(time::now());
                    self.talk.warn(&format!("cannot watch the command: {error}; ending it"));
                    std::thread::sleep(KILL_AGAIN);
                }
                Ok(call) => self.react(call, command),
            }
        }
    }

    fn react(&mut self, call: Call, command: Pid) {
        match call {
            Call::Front(ToKeeper::Continue) => self.pass_on(command, Signal::CONT),
            Call::Front(ToKeeper::Signal(number)) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.pass_on(command, signal);
                }
                if asks_to_end(number) {
                    self.pass_on(command, Signal::CONT);
                }
            }
            // Nobody is left to report to, nor to forward signals: the job is over.
            Call::FrontGone => self.kill_at = Some(time::now()),
            Call::Bell | Call::Child | Call::Time => {}
        }
    }

    /// Looks at lease and clock, and ends the command if that has to be.
    fn decide(&mut self, command: Pid) {
        let lost = self.look_at_the_lease();
        let now = time::now();
        if self.kill_at.is_none() {
            let last = self.end.saturating_sub(self.ttl / 10);
            if let Some((word, why)) = lost {
                self.terminate(command, word, why, last.min(now + PATIENCE));
            } else if now >= self.end.saturating_sub(self.ttl / 4) {
                self.terminate(command, "doubt", "it could not be renewed in time", last);
            } else if self.hold_until.is_some_and(|limit| now >= limit) {
                let why = "it was held for as long as --max-hold allows";
                self.terminate(command, "max_hold", why, last.min(now + PATIENCE));
            }
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            // Once the command is reaped, its group's number may come to belong to a stranger.
            tree::kill_all(self.status.is_none().then_some(command));
        }
    }

    /// Reads the end of the lease and shows it to the front, which steps in a little later than we
    /// would: it does so only if we cannot. Gives the reason if the lock is lost.
    fn look_at_the_lease(&mut self) -> Option<(&'static str, &'static str)> {
        match self.guard.check() {
            Ok(left) => {
                self.ttl = self.ttl.max(left);
                self.end = time::now() + left;
                let at = self.end.saturating_sub(self.ttl / 12).as_nanos();
                self.deadline.store(u64::try_from(at).unwrap_or(u64::MAX), Ordering::Release);
                None
            }
            Err(lost) => Some(talk::reason(lost.reason())),
        }
    }

    fn terminate(&mut self, command: Pid, word: &str, why: &str, kill_at: Moment) {
        // The signal first: a stderr that blocks must not give the command more time.
        self.pass_on(command, Signal::TERM);
        self.pass_on(command, Signal::CONT);
        self.kill_at = Some(kill_at);
        self.talk.lost(self.guard.token(), word, why);
    }

    fn pass_on(&self, command: Pid, signal: Signal) {
        if self.status.is_none() {
            tree::signal(command, signal);
        }
    }

    /// Reaps whatever ended. Whether nothing is left below us.
    fn reap(&mut self, desk: &Desk, command: Pid) -> bool {
        loop {
            match tree::reap() {
                Fate::Of(pid, status) if pid == command => match status.stopping_signal() {
                    Some(signal) => desk.tell(ToFront::Stopped(signal)),
                    None => self.status = Some(status),
                },
                Fate::Of(..) => {}
                Fate::Running => return false,
                Fate::None => return true,
            }
        }
    }

    fn next_look(&self) -> Moment {
        let now = time::now();
        match self.kill_at {
            // Who was killed and is still there may be slow to die, or not ours to kill. In that
            // case the lock is kept until it has ended by itself.
            Some(at) if at <= now => now + KILL_AGAIN,
            Some(at) => at,
            None => {
                let doubt = self.end.saturating_sub(self.ttl / 4);
                self.hold_until.map_or(doubt, |limit| limit.min(doubt))
            }
        }
    }
}

fn done(status: WaitStatus) -> Outcome {
    let code = status.exit_status().and_then(|code| u8::try_from(code).ok());
    match (code, status.terminating_signal()) {
        (Some(code), _) => Outcome::Done { code, cause: "command" },
        (None, Some(signal)) => Outcome::Done { code: exit::by_signal(signal), cause: "signal" },
        (None, None) => Outcome::Done { code: exit::INTERNAL, cause: "error" },
    }
}

/// How long a command that has lost its lock may take to clean up.
const PATIENCE: Duration = Duration::from_secs(2);
const KILL_AGAIN: Duration = Duration::from_millis(10);
