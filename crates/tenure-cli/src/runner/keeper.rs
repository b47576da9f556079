//! The keeper: takes the lock, runs the command under it, gives the lock back. It lives in a
//! process group of its own, so that what stops or interrupts the job does not stop the renewals.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid, set_child_subreaper, setpgid};
use tenure::{Attempt, Client, Config, ErrorKind, Event, Guard, Lock};

use super::desk::{Cut, Desk};
use super::pair::{End, ToFront, ToKeeper};
use super::signals::Signals;
use super::talk::{self, Talk};
use super::terminal::Terminal;
use super::time::{self, Moment};
use super::work::{Outcome, Work};
use super::{Ending, Job, Patience, child, hold, sys};
use crate::exit;
use crate::failure::Failure;
use crate::person;
use crate::store::Source;

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
    let mut keeper = Keeper {
        job,
        talk: talk.clone(),
        front,
        signals,
        terminal,
        inherited,
        deadline,
        command: None,
    };
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
    /// Once it was started; its group has the same number.
    command: Option<Pid>,
}

impl Keeper<'_> {
    fn keep(&mut self, desk: &mut Desk) -> Result<Ending, Failure> {
        if self.job.source == Source::Default {
            self.talk.default_store();
        }
        let begin = time::now();
        let client = match self.connect(desk, begin)? {
            Ok(client) => client,
            Err(ending) => return Ok(ending),
        };
        let guard = match self.acquire(desk, &client, begin)? {
            Ok(guard) => guard,
            Err(ending) => return Ok(ending),
        };
        let granted = time::now();
        self.talk.acquired(guard.token(), granted.saturating_sub(begin));
        let outcome = self.work(desk, &guard);
        // Whatever came of it: nothing works under the lock any more, and a release that takes its
        // time is no reason for the front to step in.
        self.deadline.store(u64::MAX, Ordering::Release);
        let kept = match (self.job.at_least, &outcome) {
            (Some(at_least), Ok(outcome)) => {
                let until = granted.saturating_add(at_least);
                // Before anything is said: Ctrl-C is for `run` from here on.
                if let (Some(terminal), Some(group)) = (&self.terminal, self.command) {
                    terminal.take_back(group);
                }
                hold::keep(desk, &guard, &self.talk, until, &outcome.ending())
            }
            // A command that could not be started has done nothing that others must not repeat.
            _ => false,
        };
        let token = guard.token();
        let lost = release(desk, guard, &self.talk);
        let outcome = outcome?;
        Ok(match (&outcome, lost) {
            (Outcome::Done { .. }, Some((word, why))) if !kept => {
                self.talk.lost(token, word, why);
                Ending(exit::LOST, "lost")
            }
            _ => outcome.ending(),
        })
    }

    /// The first connection. The library bears a server that is down for as long as `config` says;
    /// one that takes the connection and says nothing may not take longer than `--wait` either.
    fn connect(&self, desk: &mut Desk, begin: Moment) -> Result<Result<Client, Ending>, Failure> {
        let limit = match self.job.patience {
            Patience::Within(patience) => Some(begin.saturating_add(patience.max(ONE_ANSWER))),
            Patience::Forever | Patience::None => None,
        };
        match self.patiently(desk, self.config(desk)?.connect(), begin, limit) {
            Ok(client) => client.map(Ok).map_err(|error| self.job.source.name_in(error)),
            Err(Cut::Late) => Err(Failure::silent()),
            Err(cut) => given_up(cut).map(Err),
        }
    }

    fn config(&self, desk: &Desk) -> Result<Config, Failure> {
        let mut config: Config = self.job.url.parse()?;
        if let Some(owner) = &self.job.owner {
            config = config.owner(owner);
        }
        config = match self.job.patience {
            Patience::Forever => config,
            Patience::None => config.outage(Duration::ZERO),
            Patience::Within(patience) => {
                config.outage(self.job.outage.map_or(patience, |outage| outage.min(patience)))
            }
        };
        let (bell, talk) = (desk.bell(), self.talk.clone());
        Ok(config.observe(move |event| match event {
            // The lease has another end now, or none.
            Event::Lost(_) | Event::Renewed { .. } => bell.ring(),
            Event::Unavailable { cause, .. } => talk.unavailable(cause),
            _ => {}
        }))
    }

    fn acquire(
        &self,
        desk: &mut Desk,
        client: &Client,
        begin: Moment,
    ) -> Result<Result<Guard, Ending>, Failure> {
        let lock = self.lock(client);
        let attempt = match self.job.patience {
            Patience::None => self.patiently(desk, lock.try_acquire(), begin, None),
            Patience::Within(patience) => {
                let left = begin.saturating_add(patience).saturating_sub(time::now());
                self.patiently(desk, lock.acquire_within(left), begin, None)
            }
            Patience::Forever => {
                let asked = self.patiently(desk, lock.acquire(), begin, None);
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

    fn lock(&self, client: &Client) -> Lock {
        let front = self.front.as_raw_nonzero().get().unsigned_abs();
        let talk = self.talk.clone();
        let mut lock = client.lock(&self.job.key).note(person::note(front, &self.job.note));
        if !matches!(self.job.patience, Patience::None) {
            lock = lock.on_busy(move |busy| talk.waiting(busy));
        }
        match (self.job.at_least, self.job.ttl) {
            // What the server keeps has to last as long, should both our processes die. It is
            // renewed as often as a lease of the usual length, to learn of a loss as soon.
            (Some(at_least), _) => {
                let ttl = self.job.lease.ttl.max(at_least.min(client.info().max_ttl));
                lock.ttl(ttl).renew_every(self.job.lease.renew_every)
            }
            (None, Some(ttl)) => lock.ttl(ttl),
            (None, None) => lock,
        }
    }

    /// Waits for a future of the library, and says so when that becomes long.
    fn patiently<T>(
        &self,
        desk: &mut Desk,
        future: impl Future<Output = T>,
        begin: Moment,
        limit: Option<Moment>,
    ) -> Result<T, Cut> {
        let mut future = std::pin::pin!(future);
        let long = begin + LONG_WAIT;
        if limit.is_none_or(|limit| long < limit) && time::now() < long {
            match desk.finish(future.as_mut(), Some(long)) {
                Err(Cut::Late) => self.talk.still_waiting(),
                other => return other,
            }
        }
        desk.finish(future, limit)
    }

    fn work(&mut self, desk: &mut Desk, guard: &Guard) -> Result<Outcome, Failure> {
        let mut work = Work::new(guard, &self.talk, self.deadline, self.job.max_hold);
        desk.tell(ToFront::Held);
        let command = child::start(self.job, guard.token(), self.terminal.as_ref(), self.signals)?;
        self.command = Some(command);
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

/// Gives the lock back. The reason, if it had been lost before. Signals are for the command, which
/// has ended: none of them cuts this short.
fn release(desk: &mut Desk, guard: Guard, talk: &Talk) -> Option<(&'static str, &'static str)> {
    let limit = guard.check().unwrap_or_default();
    let answer = desk.settle(guard.release(), time::now() + limit);
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
/// How long a wait may be before it is mentioned also where there is no terminal.
const LONG_WAIT: Duration = Duration::from_secs(10);
/// What even the shortest patience leaves a server to answer.
const ONE_ANSWER: Duration = Duration::from_secs(1);
