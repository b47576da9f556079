//! The front: the process that the shell knows. It has no threads and no store. It passes signals
//! on, stops and continues with the command, and leaves with its code; if the keeper dies or hangs,
//! it ends the command in the keeper's place.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, Signal, getpid, kill_current_process_group, kill_process, set_child_subreaper,
};

use super::Job;
use super::keeper::{self, Start};
use super::pair::{self, End, News, ToFront, ToKeeper};
use super::signals::{Inbox, Signals, stop_by};
use super::sys;
use super::talk::Talk;
use super::terminal::Terminal;
use super::time::{self, Alarm, Moment};
use super::tree::{self, Fate};
use crate::exit;
use crate::failure::Failure;

/// Runs the job and gives the exit code. Must be called while the process has one thread.
pub(crate) fn run(job: &Job) -> Result<u8, Failure> {
    let unable = |error: io::Error| Failure::system("start the keeper", error);
    let inherited = sys::inherited_descriptors();
    let signals = Signals::take();
    let terminal = Terminal::open();
    let deadline = sys::shared_number().map_err(unable)?;
    let (line, keepers_end) = pair::pair().map_err(unable)?;
    let front = getpid();
    // It makes orphans come to us; without it (a kernel that is very old) they go to init.
    let _reaper = set_child_subreaper(Some(front));
    let Some(keeper) = sys::fork().map_err(unable)? else {
        drop(line);
        let line = keepers_end;
        keeper::run(Start { job, line, front, signals, terminal, inherited, deadline })
    };
    drop(keepers_end);
    sys::let_go(&inherited);
    let front = Front {
        job,
        line,
        inbox: Inbox::of_front().map_err(unable)?,
        alarm: Alarm::new().map_err(unable)?,
        terminal,
        deadline,
        keeper: Some(keeper),
        held: false,
        group: None,
        wants_terminal: false,
        done: None,
        exit: None,
    };
    front.attend()
}

struct Front<'a> {
    job: &'a Job,
    line: End<ToKeeper, ToFront>,
    inbox: Inbox,
    alarm: Alarm,
    terminal: Option<Terminal>,
    /// When the command has to be dead at the latest, written by the keeper with every renewal. In
    /// shared memory, because a front that was stopped for hours must not act on an old message.
    deadline: &'static AtomicU64,
    /// Until it was reaped: then its number may belong to a stranger.
    keeper: Option<Pid>,
    held: bool,
    group: Option<Pid>,
    wants_terminal: bool,
    /// The code of a command that has ended while its lock is kept.
    done: Option<u8>,
    exit: Option<(u8, Moment)>,
}

impl Front<'_> {
    fn attend(mut self) -> Result<u8, Failure> {
        loop {
            loop {
                match self.line.next() {
                    News::Message(message) => self.hear(message),
                    News::Nothing => break,
                    News::Gone => return self.close("the keeper of the lock was killed"),
                }
            }
            while let Some(signal) = self.inbox.next() {
                self.handle(signal);
            }
            let next = self.next_look();
            if next.is_some_and(|moment| moment <= time::now()) {
                return self.close("the keeper of the lock does not answer");
            }
            self.wait(next).map_err(|error| Failure::system("wait for the keeper", error))?;
        }
    }

    /// When to step in: at the end of the lease, or when the keeper does not end after its last
    /// word.
    fn next_look(&self) -> Option<Moment> {
        match self.exit {
            Some((_, moment)) => Some(moment),
            None => self.held.then(|| Duration::from_nanos(self.deadline.load(Ordering::Acquire))),
        }
    }

    fn wait(&mut self, until: Option<Moment>) -> io::Result<()> {
        self.alarm.set(until)?;
        let mut sources = [
            PollFd::new(&self.line, PollFlags::IN),
            PollFd::new(&self.inbox, PollFlags::IN),
            PollFd::new(&self.alarm, PollFlags::IN),
        ];
        match poll(&mut sources, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn hear(&mut self, message: ToFront) {
        match message {
            ToFront::Exit(code) => self.exit = Some((exit_code(code), time::now() + LAST_WORDS)),
            ToFront::Held => self.held = true,
            ToFront::Kept(code) => {
                // From here on there is no command: signals are for us, and nothing is to be ended.
                (self.done, self.group) = (Some(exit_code(code)), None);
            }
            ToFront::Leave(code) => self.exit = Some((exit_code(code), time::now())),
            ToFront::Started(group) => self.group = Pid::from_raw(group),
            ToFront::Stopped(signal) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    self.command_stopped(signal);
                }
            }
        }
    }

    fn handle(&mut self, signal: i32) {
        match signal {
            libc::SIGCHLD => while let Fate::Of(..) = self.reap() {},
            libc::SIGCONT => self.resume(),
            // Without a command there is nobody to stop but ourselves; the keeper goes on waiting.
            libc::SIGTSTP if self.group.is_none() => {
                let _pending = kill_process(getpid(), Signal::TSTP);
                stop_by(Signal::TSTP);
            }
            _ => self.line.send(ToKeeper::Signal(signal)),
        }
    }

    fn reap(&mut self) -> Fate {
        let fate = tree::reap();
        if let Fate::Of(pid, status) = &fate
            && Some(*pid) == self.keeper
            && !status.stopped()
        {
            self.keeper = None;
        }
        fate
    }

    /// The command was stopped: by Ctrl-Z, because it needs the terminal, or by somebody's hand.
    /// The first two concern the whole job.
    fn command_stopped(&mut self, signal: Signal) {
        let (Some(terminal), Some(group)) = (&self.terminal, self.group) else { return };
        let needs_terminal = signal == Signal::TTIN || signal == Signal::TTOU;
        self.wants_terminal |= needs_terminal;
        if needs_terminal && terminal.is_with_the_job() {
            terminal.give(group);
            self.line.send(ToKeeper::Continue);
            return;
        }
        let by_hand = signal == Signal::STOP && !terminal.is_with(group);
        if by_hand || ![Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU].contains(&signal) {
            return;
        }
        self.stop_job(if signal == Signal::STOP { Signal::TSTP } else { signal });
    }

    /// Stops the job as the terminal would have done: everyone in it, us included.
    fn stop_job(&mut self, signal: Signal) {
        let _pending = kill_current_process_group(signal);
        stop_by(signal);
        let mut continued = false;
        while let Some(next) = self.inbox.next() {
            match next {
                libc::SIGCONT => continued = true,
                other => self.handle(other),
            }
        }
        if continued {
            self.resume();
        } else if signal == Signal::TSTP {
            // There is no shell that could continue us, so the kernel did not stop us either.
            self.line.send(ToKeeper::Continue);
        } else {
            // Nor will there ever be a terminal: what the kernel does to stopped orphans.
            self.line.send(ToKeeper::Signal(libc::SIGHUP));
        }
    }

    /// The job was continued, by `fg` or `bg`.
    fn resume(&mut self) {
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group)
            && (terminal.whole || self.wants_terminal)
            && terminal.is_with_the_job()
        {
            terminal.give(group);
        }
        self.line.send(ToKeeper::Continue);
    }

    /// The keeper is gone, or has to go: leaves with its last word, or in its place.
    fn close(mut self, why: &str) -> Result<u8, Failure> {
        let code = match (self.exit, self.done) {
            (Some((code, _)), _) => code,
            (None, Some(code)) => self.cut_short(why, code),
            (None, None) => self.collapse(why),
        };
        if let (Some(terminal), Some(group)) = (&self.terminal, self.group) {
            terminal.take_back(group);
        }
        Ok(code)
    }

    /// The keeper died after the command had ended: there is nothing left to end.
    fn cut_short(&self, why: &str, code: u8) -> u8 {
        let talk = Talk::new(self.job.json, &self.job.key);
        talk.warn(&format!("{why} before --at-least had passed; the lock frees with its lease"));
        talk.exit(code, if code > 128 { "signal" } else { "command" });
        code
    }

    /// Ends the keeper and everything below it. The command may not go on without its lock.
    fn collapse(&mut self, why: &str) -> u8 {
        if let Some(keeper) = self.keeper {
            let _ended = kill_process(keeper, Signal::KILL);
        }
        tree::kill_all(self.group);
        let give_up = time::now() + GIVE_UP;
        let mut all_dead = false;
        while !all_dead && time::now() < give_up {
            match self.reap() {
                Fate::Of(..) => {}
                Fate::None => all_dead = true,
                Fate::Running => {
                    tree::kill_all(None);
                    // An error ends the wait early, and the loop looks again.
                    let _early = self.wait(Some(time::now() + KILL_AGAIN));
                    while self.inbox.next().is_some() {}
                }
            }
        }
        self.report(why, all_dead)
    }

    fn report(&self, why: &str, all_dead: bool) -> u8 {
        let talk = Talk::new(self.job.json, &self.job.key);
        let (code, advice) = match self.held {
            true => (exit::LOST, "see who holds it now with `tenure show KEY`"),
            false => (exit::INTERNAL, "try again"),
        };
        let fate = match (self.held, all_dead) {
            (false, _) => "the command was not started",
            (true, true) => "the command was ended",
            (true, false) => {
                "a process of the command cannot be killed and goes on without the lock"
            }
        };
        let message = format!("{why}; {fate}");
        talk.failed(&Failure::new(code, message, advice));
        talk.exit(code, if self.held { "lost" } else { "error" });
        code
    }
}

fn exit_code(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(exit::INTERNAL)
}

/// How long the keeper may take to end after its last word. The next run may want its files.
const LAST_WORDS: Duration = Duration::from_secs(1);
const KILL_AGAIN: Duration = Duration::from_millis(10);
/// How long to try to kill what is hard to kill.
const GIVE_UP: Duration = Duration::from_secs(5);
