//! The supervisor: acquires the lock, runs the command under it, and releases the lock. It is in a
//! process group of its own, so that signals which stop or interrupt the job do not stop the
//! renewals.

use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, getpid, set_child_subreaper, setpgid};
use tenure::{Attempt, Client, Config, ErrorKind, Event, GuardSet};

use super::channel::{Endpoint, ToLauncher, ToSupervisor};
use super::clock::{self, Moment};
use super::event_loop::{EventLoop, Interrupt};
use super::monitor::{Monitor, Outcome};
use super::reporter::{Loss, LossText, Reporter};
use super::signals::Signals;
use super::terminal::Terminal;
use super::{Command, Ending, Job, WaitLimit, at_least, hold, locks, spawn, sys};
use crate::exit;
use crate::failure::Failure;
use crate::store::{MIN_RESPONSE_TIME, Source, outage_within};

/// How long to wait at the end for the library's threads, and how often to check.
const THREADS_EXIT_LIMIT: Duration = Duration::from_millis(100);
const THREADS_EXIT_POLL: Duration = Duration::from_micros(100);

/// How long the cancellation of an acquire may take before the process ends.
const CANCEL_LIMIT: Duration = Duration::from_secs(1);

/// The pause between two campaigns while the server does not respond.
const CAMPAIGN_PAUSE: Duration = Duration::from_secs(1);

/// After how long a wait is reported also where stderr is no terminal.
const LONG_WAIT: Duration = Duration::from_secs(10);

/// What the launcher hands to the supervisor.
pub(super) struct Start<'a> {
    pub(super) job: &'a Job,
    pub(super) channel: Endpoint<ToLauncher, ToSupervisor>,
    pub(super) launcher: Pid,
    pub(super) signals: Signals,
    pub(super) terminal: Option<Terminal>,
    pub(super) inherited: Vec<RawFd>,
    /// When the launcher has to kill the command by itself: see `Monitor::read_lease`.
    pub(super) deadline: &'static AtomicU64,
}

/// The main function of the supervisor. Never returns: this process is a fork of the launcher.
pub(super) fn run(start: Start<'_>) -> ! {
    // The hook has reported the panic. The parent-death signal kills the command, and the launcher
    // exits with 76 or 70.
    let code = catch_unwind(AssertUnwindSafe(|| supervise(start))).unwrap_or(exit::INTERNAL);
    sys::exit_now(code)
}

fn supervise(start: Start<'_>) -> u8 {
    let reporter = Arc::new(Reporter::new(start.job));
    // Neither can fail for a process that was just forked, and without them the job still works
    // unless a process of it is killed.
    let _cannot_fail = setpgid(None, None);
    let _old_kernel = set_child_subreaper(Some(getpid()));
    let Start { job, channel, launcher, signals, terminal, inherited, deadline } = start;
    let mut events = match EventLoop::new(channel) {
        Ok(events) => events,
        Err(error) => {
            reporter.failed(&Failure::system("prepare to wait", error));
            return exit::INTERNAL;
        }
    };
    let mut supervisor = Supervisor {
        job,
        reporter: reporter.clone(),
        launcher,
        signals,
        terminal,
        inherited,
        deadline,
        command: None,
    };
    let ending = match supervisor.run_job(&mut events) {
        Ok(ending) | Err(Stop::Ending(ending)) => ending,
        Err(Stop::Failure(failure)) => {
            reporter.failed(&failure);
            Ending { code: failure.code, cause: "error" }
        }
    };
    reporter.exit(ending.code, ending.cause);
    events.send(ToLauncher::Exit(ending.code.into()));
    wait_for_threads();
    ending.code
}

/// Waits a moment for the library's threads, which close the store and remove its files. The client
/// has been dropped, but one of them may still keep it alive.
fn wait_for_threads() {
    let end = clock::now() + THREADS_EXIT_LIMIT;
    let threads = || std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count);
    while threads() > 1 && clock::now() < end {
        std::thread::sleep(THREADS_EXIT_POLL);
    }
}

/// Why the command was not run to its end.
enum Stop {
    /// The lock was not granted, without an error: it is busy, or a signal ended the wait.
    Ending(Ending),
    Failure(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failure(failure)
    }
}

impl From<tenure::Error> for Stop {
    fn from(error: tenure::Error) -> Stop {
        Stop::Failure(error.into())
    }
}

struct Supervisor<'a> {
    job: &'a Job,
    reporter: Arc<Reporter>,
    launcher: Pid,
    signals: Signals,
    terminal: Option<Terminal>,
    inherited: Vec<RawFd>,
    deadline: &'static AtomicU64,
    /// The command, once it was started; its process group has the same id.
    command: Option<Pid>,
}

impl Supervisor<'_> {
    fn run_job(&mut self, events: &mut EventLoop) -> Result<Ending, Stop> {
        self.reporter.begin(self.job);
        if self.job.source == Source::Default {
            self.reporter.default_store();
        }
        let begin = clock::now();
        let client = self.connect(events, begin)?;
        if self.job.again {
            return self.lead(events, &client, begin);
        }
        let held = self.acquire(events, &client, begin)?;
        self.term(events, held, begin)
    }

    /// Acquires the lock and runs the command, and does it again for as long as the lock is lost
    /// before the command has ended by itself.
    fn lead(
        &mut self,
        events: &mut EventLoop,
        client: &Client,
        mut begin: Moment,
    ) -> Result<Ending, Stop> {
        loop {
            let held = match self.acquire(events, client, begin) {
                // The library has retried for as long as `outage` says. An election goes on.
                Err(Stop::Failure(failure)) if failure.code == exit::UNAVAILABLE => {
                    let again_at = Some(clock::now() + CAMPAIGN_PAUSE);
                    match events.run(std::future::pending::<()>(), again_at) {
                        Err(Interrupt::Deadline) => continue,
                        Err(interrupt) => return Err(self.interrupted(interrupt)),
                        Ok(()) => continue,
                    }
                }
                held => held?,
            };
            let ending = self.term(events, held, begin)?;
            if ending.code != exit::LOST || ending.cause != "lost" {
                return Ok(ending);
            }
            // The command was to end anyway.
            if events.stop_requested() || !events.has_launcher() {
                return Ok(ending);
            }
            if let (Some(terminal), Some(group)) = (&self.terminal, self.command.take()) {
                terminal.reclaim_from(group);
            }
            events.send(ToLauncher::Waiting);
            begin = clock::now();
        }
    }

    /// One grant: runs the command under it, or holds it for `tenure hold`, and releases it.
    fn term(
        &mut self,
        events: &mut EventLoop,
        held: GuardSet,
        begin: Moment,
    ) -> Result<Ending, Stop> {
        let granted = clock::now();
        let waited = granted.saturating_sub(begin);
        let outcome = match &self.job.command {
            Some(command) => {
                self.reporter.acquired(&held, waited);
                self.run_command(events, &held, command)
            }
            None => Ok(hold::until_end(events, &held, &self.reporter, self.deadline, waited)),
        };
        // No process works under the lock any more. From here on a slow release is no reason for
        // the launcher to kill the job.
        self.deadline.store(u64::MAX, Ordering::Release);
        let kept = match (self.job.at_least, &outcome) {
            (Some(at_least), Ok(outcome)) => {
                let until = granted.saturating_add(at_least);
                // Before the first message: from here on Ctrl-C is meant for `run`.
                if let (Some(terminal), Some(group)) = (&self.terminal, self.command) {
                    terminal.reclaim_from(group);
                }
                at_least::keep(events, &held, &self.reporter, until, &outcome.ending())
            }
            // A command that could not be started has done nothing: other machines may try.
            _ => false,
        };
        if self.job.command.is_none() && matches!(outcome, Ok(Outcome::Lost)) {
            // Other processes may work under it until its lease ends: it is not released for them.
            std::mem::forget(held);
            return Ok(Outcome::Lost.ending());
        }
        let lost = release(events, held, &self.reporter);
        let outcome = outcome?;
        Ok(match (&outcome, lost) {
            (Outcome::Done { .. }, Some(loss)) if !kept => {
                self.reporter.lost(&loss);
                Ending { code: exit::LOST, cause: "lost" }
            }
            _ => outcome.ending(),
        })
    }

    /// Makes the first connection. The library retries an unreachable server for as long as
    /// [`config`](Self::config) says; a server that accepts the connection and sends nothing may
    /// not take longer than `--wait` either.
    fn connect(&self, events: &mut EventLoop, begin: Moment) -> Result<Client, Stop> {
        let limit = match self.job.wait_limit {
            WaitLimit::Within(limit) => Some(begin.saturating_add(limit.max(MIN_RESPONSE_TIME))),
            WaitLimit::Unlimited | WaitLimit::NoWait => None,
        };
        match self.wait_for(events, self.config(events)?.connect(), begin, limit) {
            Ok(client) => Ok(client.map_err(|error| self.job.source.name_in(error))?),
            Err(Interrupt::Deadline) => Err(Failure::no_response().into()),
            Err(interrupt) => Err(self.interrupted(interrupt)),
        }
    }

    fn config(&self, events: &EventLoop) -> Result<Config, Failure> {
        let mut config: Config = self.job.url.parse()?;
        if let Some(owner) = &self.job.owner {
            config = config.owner(owner);
        }
        config = match self.job.wait_limit {
            WaitLimit::Unlimited => config,
            WaitLimit::NoWait => config.outage(Duration::ZERO),
            WaitLimit::Within(limit) => config.outage(outage_within(limit, self.job.outage)),
        };
        let waker = events.waker();
        let reporter = self.reporter.clone();
        Ok(config.observe(move |event| match event {
            // The lease has a new end, or none: the monitor has to read it.
            Event::Lost(_) | Event::Renewed { .. } => waker.notify(),
            Event::Unavailable { cause, .. } => reporter.unavailable(cause),
            _ => {}
        }))
    }

    fn acquire(
        &self,
        events: &mut EventLoop,
        client: &Client,
        begin: Moment,
    ) -> Result<GuardSet, Stop> {
        let locks = locks::of_job(self.job, client, self.launcher, &self.reporter);
        let attempt = match self.job.wait_limit {
            WaitLimit::NoWait => self.wait_for(events, locks.try_acquire(), begin, None),
            WaitLimit::Within(limit) => {
                let left = begin.saturating_add(limit).saturating_sub(clock::now());
                self.wait_for(events, locks.acquire_within(left), begin, None)
            }
            WaitLimit::Unlimited => {
                let held = self.wait_for(events, locks.acquire(), begin, None);
                held.map(|held| held.map(Attempt::Granted))
            }
        };
        match attempt {
            Ok(Ok(Attempt::Granted(held))) => Ok(held),
            Ok(Ok(Attempt::Busy(busy))) => {
                if self.job.busy_exit != exit::DONE {
                    self.reporter.busy(&busy);
                }
                Err(Stop::Ending(Ending { code: self.job.busy_exit, cause: "busy" }))
            }
            Ok(Err(error)) => Err(error.into()),
            Err(interrupt) => {
                // The acquire was dropped: wait until its queue entry is removed.
                let _best_effort = events.run(client.flush(), Some(clock::now() + CANCEL_LIMIT));
                Err(self.interrupted(interrupt))
            }
        }
    }

    /// Waits for a future of the library, and reports the wait when it becomes long.
    fn wait_for<T>(
        &self,
        events: &mut EventLoop,
        future: impl Future<Output = T>,
        begin: Moment,
        limit: Option<Moment>,
    ) -> Result<T, Interrupt> {
        let mut future = std::pin::pin!(future);
        let long = begin + LONG_WAIT;
        if limit.is_none_or(|limit| long < limit) && clock::now() < long {
            match events.run(future.as_mut(), Some(long)) {
                Err(Interrupt::Deadline) => self.reporter.still_waiting(),
                other => return other,
            }
        }
        events.run(future, limit)
    }

    fn run_command(
        &mut self,
        events: &mut EventLoop,
        held: &GuardSet,
        command: &Command,
    ) -> Result<Outcome, Failure> {
        let mut monitor = Monitor::new(held, &self.reporter, self.deadline, self.job.max_hold);
        events.send(ToLauncher::Held);
        let terminal = self.terminal.as_ref();
        let command = spawn::command(self.job, command, held, terminal, self.signals)?;
        self.command = Some(command);
        events.send(ToLauncher::Started(command.as_raw_nonzero().get()));
        if !self.job.again {
            // The command of the next term gets them too.
            sys::close_command_streams(&self.inherited);
        }
        Ok(monitor.watch(events, command))
    }

    /// The result of a job whose wait for the lock was interrupted.
    fn interrupted(&self, interrupt: Interrupt) -> Stop {
        match interrupt {
            Interrupt::Signal(signal) => {
                Stop::Ending(Ending { code: exit::by_signal(signal), cause: "signal" })
            }
            Interrupt::InputEnded => {
                self.reporter.warn("the input ended before the lock was granted");
                Stop::Ending(Ending { code: self.job.busy_exit, cause: "input_end" })
            }
            // The code does not matter: the launcher, which would exit with it, has ended.
            Interrupt::LauncherEnded | Interrupt::Deadline => {
                Stop::Ending(Ending { code: exit::INTERNAL, cause: "error" })
            }
            Interrupt::System(error) => Failure::system("wait for the lock", error).into(),
        }
    }
}

/// Releases the lock. Returns the reason if it had been lost before. Signals do not interrupt the
/// release: they are meant for the command, which has ended.
fn release(events: &mut EventLoop, held: GuardSet, reporter: &Reporter) -> Option<Loss> {
    let limit = held.check().unwrap_or_default();
    let released = events.run_to_completion(held.release(), clock::now() + limit);
    let problem = match released {
        Ok(Ok(())) => {
            reporter.released();
            return None;
        }
        Ok(Err(error)) if error.kind() == ErrorKind::Lost => {
            let lost = error.lost().cloned();
            return Some(lost.map_or(Loss::new(None, LossText::OTHER), Loss::from));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no response yet".to_owned(),
    };
    reporter
        .warn(&format!("the release is not confirmed ({problem}); the lock frees with its lease"));
    None
}
