//! The launcher: the process that the shell started and knows. It has no threads and no store. It
//! forwards signals, stops and continues together with the command, and exits with its code. If the
//! supervisor dies or hangs, the launcher ends the command in its place.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, getpid, kill_current_process_group, kill_process, set_child_subreaper,
};

use super::Job;
use super::channel::{self, Endpoint, Received, ToLauncher, ToSupervisor};
use super::clock::{self, Moment, Timer};
use super::input::Input;
use super::process_tree::{self, Reaped};
use super::reporter::Reporter;
use super::signals::{SignalReader, Signals, stop_by};
use super::supervisor::{self, Start};
use super::sys;
use super::terminal::Terminal;
use crate::exit;
use crate::failure::Failure;

/// How long the supervisor may take to end after its `Exit` message. The next run may need the
/// files that it removes.
const SUPERVISOR_EXIT_LIMIT: Duration = Duration::from_secs(1);

/// How often SIGKILL is sent again to processes that still exist.
const KILL_INTERVAL: Duration = Duration::from_millis(10);

/// How long to try to kill a process that does not end.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Runs the job and returns the exit code. Must be called while the process has one thread.
pub(crate) fn run(job: &Job) -> Result<u8, Failure> {
    let unable = |error: io::Error| Failure::system("start the supervisor", error);
    let inherited = sys::inherited_descriptors();
    let signals = Signals::block();
    let terminal = Terminal::open();
    let deadline = sys::shared_number().map_err(unable)?;
    let (channel, supervisor_end) = channel::pair().map_err(unable)?;
    let launcher = getpid();
    // Orphans of the command become children of this process. Only a very old kernel refuses; then
    // they go to init.
    let _old_kernel = set_child_subreaper(Some(launcher));
    let Some(supervisor) = sys::fork().map_err(unable)? else {
        drop(channel);
        let channel = supervisor_end;
        supervisor::run(Start { job, channel, launcher, signals, terminal, inherited, deadline })
    };
    drop(supervisor_end);
    let input = match job.command {
        Some(_) => {
            sys::close_command_streams(&inherited);
            None
        }
        None => Input::open(terminal.as_ref()),
    };
    let launcher = Launcher {
        job,
        channel,
        signals: SignalReader::for_launcher().map_err(unable)?,
        timer: Timer::new().map_err(unable)?,
        terminal,
        input,
        deadline,
        supervisor: Some(supervisor),
        held: false,
        group: None,
        wants_terminal: false,
        kept_code: None,
        exit: None,
    };
    launcher.run()
}

struct Launcher<'a> {
    job: &'a Job,
    channel: Endpoint<ToSupervisor, ToLauncher>,
    signals: SignalReader,
    timer: Timer,
    terminal: Option<Terminal>,
    /// The input of `tenure hold`, whose end ends it.
    input: Option<Input>,
    /// When the command must be dead at the latest, in nanoseconds since boot. The supervisor
    /// writes it with every renewal. It is in shared memory and not in a message, because a
    /// launcher that was stopped for hours must not act on an old message.
    deadline: &'static AtomicU64,
    /// `None` after it was reaped: then its process id may belong to another process.
    supervisor: Option<Pid>,
    held: bool,
    /// The process group of the command, while it runs.
    group: Option<Pid>,
    wants_terminal: bool,
    /// The exit code of a command that has ended while its lock is kept.
    kept_code: Option<u8>,
    /// The exit code of the job, and how long to wait for the end of the supervisor.
    exit: Option<(u8, Moment)>,
}

impl Launcher<'_> {
    fn run(mut self) -> Result<u8, Failure> {
        loop {
            loop {
                match self.channel.next() {
                    Received::Message(message) => self.on_message(message),
                    Received::Nothing => break,
                    Received::Closed => {
                        return self.finish("the supervisor of the lock was killed");
                    }
                }
            }
            while let Some(signal) = self.signals.next() {
                self.on_signal(signal);
            }
            let deadline = self.next_deadline();
            if deadline.is_some_and(|moment| moment <= clock::now()) {
                return self.finish("the supervisor of the lock does not respond");
            }
            self.wait(deadline)
                .map_err(|error| Failure::system("wait for the supervisor", error))?;
        }
    }

    /// When the launcher has to act by itself: before the end of the lease, or when the supervisor
    /// does not end after its `Exit` message.
    fn next_deadline(&self) -> Option<Moment> {
        match self.exit {
            Some((_, moment)) => Some(moment),
            None => self.held.then(|| Duration::from_nanos(self.deadline.load(Ordering::Acquire))),
        }
    }

    fn wait(&mut self, deadline: Option<Moment>) -> io::Result<()> {
        self.timer.set(deadline)?;
        let mut sources = vec![
            PollFd::new(&self.channel, PollFlags::IN),
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::new(&self.timer, PollFlags::IN),
        ];
        sources.extend(self.input.as_ref().and_then(Input::source));
        let check_after = self.input.as_ref().and_then(Input::check_after);
        match poll(&mut sources, check_after.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let input_is_ready = sources.get(3).is_some_and(|source| !source.revents().is_empty());
        if let Some(input) = &mut self.input {
            input.resume(self.terminal.as_ref());
            if input_is_ready && input.has_ended() {
                self.channel.send(ToSupervisor::InputEnded);
            }
        }
        Ok(())
    }

    fn on_message(&mut self, message: ToLauncher) {
        match message {
            ToLauncher::Exit(code) => {
                self.exit = Some((exit_code(code), clock::now() + SUPERVISOR_EXIT_LIMIT));
            }
            ToLauncher::Held => self.held = true,
            ToLauncher::Kept(code) => {
                // The command has ended: there is no process left to forward signals to or to kill.
                self.kept_code = Some(exit_code(code));
                self.group = None;
            }
            ToLauncher::Detach(code) => self.exit = Some((exit_code(code), clock::now())),
            ToLauncher::Started(group) => self.group = Pid::from_raw(group),
            ToLauncher::Waiting => {
                // No process works under a lock now, and the group's number may be used again.
                (self.held, self.group, self.wants_terminal) = (false, None, false);
            }
            ToLauncher::Stopped(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.on_command_stopped(signal);
                }
            }
        }
    }

    fn on_signal(&mut self, signal: i32) {
        match signal {
            libc::SIGCHLD => while let Reaped::Process(..) = self.reap() {},
            libc::SIGCONT => self.resume(),
            // Without a command, Ctrl-Z stops the launcher alone; the supervisor goes on waiting.
            libc::SIGTSTP if self.group.is_none() => {
                let _pending = kill_process(getpid(), Signal::TSTP);
                stop_by(Signal::TSTP);
            }
            _ => self.channel.send(ToSupervisor::Signal(signal)),
        }
    }

    fn reap(&mut self) -> Reaped {
        let reaped = process_tree::reap();
        if let Reaped::Process(pid, status) = &reaped
            && Some(*pid) == self.supervisor
            && !status.stopped()
        {
            self.supervisor = None;
        }
        reaped
    }

    /// The command was stopped: by Ctrl-Z, because it needs the terminal, or by a SIGSTOP that was
    /// sent to it. The first two stop the whole job.
    fn on_command_stopped(&mut self, signal: Signal) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else { return };
        let needs_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        self.wants_terminal |= needs_terminal;
        if needs_terminal && terminal.is_with_job() {
            terminal.give_to(group);
            self.channel.send(ToSupervisor::Continue);
            return;
        }
        let sent_by_hand = signal == Signal::STOP && !terminal.is_with(group);
        let stops_jobs = [Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU].contains(&signal);
        if sent_by_hand || !stops_jobs {
            return;
        }
        self.stop_job(if signal == Signal::STOP { Signal::TSTP } else { signal });
    }

    /// Stops every process of the job, this one included, as the terminal would have done.
    fn stop_job(&mut self, signal: Signal) {
        let _pending = kill_current_process_group(signal);
        stop_by(signal);
        let mut continued = false;
        while let Some(next) = self.signals.next() {
            match next {
                libc::SIGCONT => continued = true,
                other => self.on_signal(other),
            }
        }
        if continued {
            self.resume();
        } else if signal == Signal::TSTP {
            // No shell could continue this process, so the kernel did not stop it either.
            self.channel.send(ToSupervisor::Continue);
        } else {
            // The command needs a terminal that it will never get. The kernel sends SIGHUP to
            // stopped processes of an orphaned group; so does the launcher.
            self.channel.send(ToSupervisor::Signal(libc::SIGHUP));
        }
    }

    /// The job was continued, by `fg` or `bg`.
    fn resume(&mut self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && (terminal.is_both_ends || self.wants_terminal)
            && terminal.is_with_job()
        {
            terminal.give_to(group);
        }
        self.channel.send(ToSupervisor::Continue);
    }

    /// The supervisor has ended, or does not respond: exits with the code that it sent, or ends
    /// the command in its place.
    fn finish(mut self, reason: &str) -> Result<u8, Failure> {
        let code = match (self.exit, self.kept_code) {
            (Some((code, _)), _) => code,
            (None, Some(code)) => self.report_early_release(reason, code),
            (None, None) => self.kill_job(reason),
        };
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.reclaim_from(group);
        }
        Ok(code)
    }

    /// The supervisor died after the command had ended: there is no process left to end.
    fn report_early_release(&self, reason: &str, code: u8) -> u8 {
        let reporter = Reporter::new(self.job);
        let message =
            format!("{reason} before --at-least had passed; the lock frees with its lease");
        reporter.warn(&message);
        reporter.exit(code, if code > 128 { "signal" } else { "command" });
        code
    }

    /// Kills the supervisor and all descendants: the command must not go on without its lock.
    fn kill_job(&mut self, reason: &str) -> u8 {
        if let Some(supervisor) = self.supervisor {
            let _already_ended = kill_process(supervisor, Signal::KILL);
        }
        process_tree::kill_all(self.group);
        let limit = clock::now() + KILL_LIMIT;
        let mut all_dead = false;
        while !all_dead && clock::now() < limit {
            match self.reap() {
                Reaped::Process(..) => {}
                Reaped::NoChildren => all_dead = true,
                Reaped::NoChange => {
                    process_tree::kill_all(None);
                    // An error ends the wait early, and the loop checks again.
                    let _early = self.wait(Some(clock::now() + KILL_INTERVAL));
                    while self.signals.next().is_some() {}
                }
            }
        }
        self.report_killed(reason, all_dead)
    }

    fn report_killed(&self, reason: &str, all_dead: bool) -> u8 {
        let reporter = Reporter::new(self.job);
        let (code, cause, advice) = if self.held {
            (exit::LOST, "lost", "see who holds it now with `tenure show KEY`")
        } else {
            (exit::INTERNAL, "error", "try again")
        };
        let outcome = match (self.held, all_dead) {
            _ if self.job.command.is_none() => "the lock frees with its lease",
            (false, _) => "the command was not started",
            (true, true) => "the command was ended",
            (true, false) => {
                "a process of the command cannot be killed and goes on without the lock"
            }
        };
        reporter.failed(&Failure::new(code, format!("{reason}; {outcome}"), advice));
        reporter.exit(code, cause);
        code
    }
}

fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(exit::INTERNAL)
}
