//! The keeper: takes the lock, runs the command under it, gives the lock back. It lives in a
//! process group of its own, so that what stops or interrupts the job does not stop the renewals.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid, set_child_subreaper, setpgid};
use tenure::{Attempt, Client, Config, ErrorKind, Event, Guard};

use super::desk::{Cut, Desk};
use super::pair::{End, ToFront, ToKeeper};
use super::signals::Signals;
use super::talk::{self, Talk};
use super::terminal::Terminal;
use super::work::{Outcome, Work};
use super::{Job, Patience, child, sys, time};
use crate::exit;
use crate::failure::Failure;
use crate::person;

/// What the keeper gets from the front.
pub(super) struct Start<'a> {
    pub(super) job: &'a Job,
    pub(super) line: End<ToFront, ToKeeper>,
    pub(super) front: Pid,
    pub(super) signals: Signals,
    pub(super) terminal: Option<Terminal>,
    pub(super) inherited: Vec<RawFd>,
    /// When the front has to step in: see `Work`.
    pub(super) deadline: &'static AtomicU64,
}

/// How it ended: the exit code, and the cause in a word.
struct Ending(u8, &'static str);

/// Does all of the keeper's work. Never returns: the caller is a copy of the front.
pub(super) fn run(start: Start<'_>) -> ! {
    // A panic has been reported by its hook; the command dies with us, and the front says 76 or 70.
    let code = catch_unwind(AssertUnwindSafe(|| attend(start))).unwrap_or(exit::INTERNAL);
    sys::exit_now(code)
}

fn attend(start: Start<'_>) -> u8 {
    let talk = Arc::new(Talk::new(start.job.json, &start.job.key));
    // Neither can fail for a process that was just made, and both only narrow what may go wrong.
    let _group = setpgid(None, None);
    let _reaper = set_child_subreaper(Some(getpid()));
    let Start { job, line, front, signals, terminal, inherited, deadline } = start;
    let mut desk = match Desk::new(line) {
        Ok(desk) => desk,
        Err(error) => {
            talk.failed(&Failure::system("prepare to wait", error));
            return exit::INTERNAL;
        }
    };
    let mut keeper =
        Keeper { job, talk: talk.clone(), front, signals, terminal, inherited, deadline };
    let ending = keeper.keep(&mut desk).unwrap_or_else(|failure| {
        talk.failed(&failure);
        Ending(failure.code, "error")
    });
    talk.exit(ending.0, ending.1);
    desk.tell(ToFront::Exit(ending.0.into()));
    until_alone();
    ending.0
}

/// Gives the library's threads a moment to close the store and take its files away: the client is
/// dropped, but what they were about may have kept it for longer than us.
fn until_alone() {
    let end = time::now() + CLEAN_UP_LIMIT;
    let threads = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    while threads() > 1 && time::now() < end {
        std::thread::sleep(CLEAN_UP_LOOK);
    }
}

struct Keeper<'a> {
    job: &'a Job,
    talk: Arc<Talk>,
    front: Pid,
    signals: Signals,
    terminal: Option<Terminal>,
    inherited: Vec<RawFd>,
    deadline: &'static AtomicU64,
}

impl Keeper<'_> {
    fn keep(&mut self, desk: &mut Desk) -> Result<Ending, Failure> {
        if self.job.default_store {
            self.talk.default_store();
        }
        let begin = time::now();
        let client = match desk.finish(self.config(desk)?.connect(), None) {
            Ok(client) => client?,
            Err(cut) => return given_up(cut),
        };
        let guard = match self.acquire(desk, &client)? {
            Ok(guard) => guard,
            Err(ending) => return Ok(ending),
        };
        self.talk.acquired(guard.token(), time::now().saturating_sub(begin));
        let outcome = self.work(desk, &guard);
        // Whatever came of it: nothing works under the lock any more, and a release that takes its
        // time is no reason for the front to step in.
        self.deadline.store(u64::MAX, Ordering::Release);
        let token = guard.token();
        let lost = release(desk, guard, &self.talk);
        Ok(match (outcome?, lost) {
            (Outcome::Lost, _) => Ending(exit::LOST, "lost"),
            (Outcome::Done { .. }, Some((word, why))) => {
                self.talk.lost(token, word, why);
                Ending(exit::LOST, "lost")
            }
            (Outcome::Done { code, cause }, None) => Ending(code, cause),
        })
    }

    fn config(&self, desk: &Desk) -> Result<Config, Failure> {
        let mut config: Config = self.job.url.parse()?;
        if let Some(owner) = &self.job.owner {
            config = config.owner(owner);
        }
        let bell = desk.bell();
        Ok(config.observe(move |event| {
            // The lease has another end now, or none.
            if matches!(event, Event::Lost(_) | Event::Renewed { .. }) {
                bell.ring();
            }
        }))
    }

    fn acquire(&self, desk: &mut Desk, client: &Client) -> Result<Result<Guard, Ending>, Failure> {
        let front = self.front.as_raw_nonzero().get().unsigned_abs();
        let talk = self.talk.clone();
        let mut lock = client.lock(&self.job.key).note(person::note(front, &self.job.note));
        if let Some(ttl) = self.job.ttl {
            lock = lock.ttl(ttl);
        }
        let attempt = match self.job.patience {
            Patience::None => desk.finish(lock.try_acquire(), None),
            Patience::Within(patience) => {
                let lock = lock.on_busy(move |busy| talk.waiting(busy));
                desk.finish(lock.acquire_within(patience), None)
            }
            Patience::Forever => {
                let lock = lock.on_busy(move |busy| talk.waiting(busy));
                let asked = desk.finish(lock.acquire(), None);
                asked.map(|guard| guard.map(Attempt::Granted))
            }
        };
        match attempt {
            Ok(Ok(Attempt::Granted(guard))) => Ok(Ok(guard)),
            Ok(Ok(Attempt::Busy(busy))) => {
                if self.job.busy_exit != exit::DONE {
                    self.talk.busy(&busy);
                }
                Ok(Err(Ending(self.job.busy_exit, "busy")))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(cut) => {
                // The ask was dropped: see its place in the queue withdrawn before leaving.
                let _best_effort = desk.finish(client.flush(), Some(time::now() + WITHDRAW_LIMIT));
                given_up(cut).map(Err)
            }
        }
    }

    fn work(&mut self, desk: &mut Desk, guard: &Guard) -> Result<Outcome, Failure> {
        let mut work = Work::new(guard, &self.talk, self.deadline, self.job.max_hold);
        desk.tell(ToFront::Held);
        let command = child::start(self.job, guard.token(), self.terminal.as_ref(), self.signals)?;
        desk.tell(ToFront::Started(command.as_raw_nonzero().get()));
        sys::let_go(&self.inherited);
        Ok(work.watch(desk, command))
    }
}

/// The wait for the lock was ended from outside.
fn given_up(cut: Cut) -> Result<Ending, Failure> {
    match cut {
        Cut::Signal(signal) => Ok(Ending(exit::by_signal(signal), "signal")),
        // Nobody is there to hear it.
        Cut::FrontGone | Cut::Late => Ok(Ending(exit::INTERNAL, "error")),
        Cut::System(error) => Err(Failure::system("wait for the lock", error)),
    }
}

/// Gives the lock back. The reason, if it had been lost before.
fn release(desk: &mut Desk, guard: Guard, talk: &Talk) -> Option<(&'static str, &'static str)> {
    let limit = guard.check().unwrap_or_default();
    let mut releasing = std::pin::pin!(guard.release());
    let mut answer = desk.finish(releasing.as_mut(), Some(time::now() + limit));
    if let Err(Cut::FrontGone) = answer {
        // Then there is nobody to hurry for.
        answer = desk.finish(releasing.as_mut(), Some(time::now() + limit));
    }
    let unsure = match answer {
        Ok(Ok(())) => return None,
        Ok(Err(error)) if error.kind() == ErrorKind::Lost => {
            let reason = error.lost().map(|lost| talk::reason(lost.reason()));
            return Some(reason.unwrap_or(("other", "it is gone")));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer yet".to_owned(),
    };
    talk.warn(&format!("the release is not confirmed ({unsure}); the lock frees with its lease"));
    None
}

const CLEAN_UP_LIMIT: Duration = Duration::from_millis(100);
const CLEAN_UP_LOOK: Duration = Duration::from_micros(100);
const WITHDRAW_LIMIT: Duration = Duration::from_secs(1);
