//! The end of the input, which ends `tenure hold`: Ctrl-D on a terminal, or the other end of a pipe
//! or socket that was closed. A file and `/dev/null` are at their end from the beginning, as in a
//! service without input, and do not end anything.

use std::io::Stdin;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{FileType, fstat};
use rustix::termios::isatty;

use super::terminal::Terminal;

/// How often a job in the background checks whether it is in the foreground.
const FOREGROUND_CHECK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What the input is, as long as its end is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It is never read: the kernel reports that its other end was closed. Reading could block, if
    /// another process reads it, too.
    Pipe,
    /// It is read in the foreground only: in the background, the keys are meant for the shell.
    Terminal,
}

/// The input of `tenure hold`.
pub(super) struct Input {
    kind: Kind,
    stdin: Stdin,
    /// Whether its end is waited for now.
    watched: bool,
    ended: bool,
}

impl Input {
    /// Looks at stdin. `None` if it has no end to wait for.
    pub(super) fn open(terminal: Option<&Terminal>) -> Option<Input> {
        let stdin = std::io::stdin();
        let file_type = fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode)).ok()?;
        let kind = match file_type {
            FileType::Fifo | FileType::Socket => Kind::Pipe,
            _ if isatty(&stdin) => Kind::Terminal,
            _ => return None,
        };
        let mut input = Input { kind, stdin, watched: true, ended: false };
        input.resume(terminal);
        Some(input)
    }

    /// The longest wait for other events: a shell that puts a running job into the foreground sends
    /// no signal.
    pub(super) fn check_after(&self) -> Option<Timespec> {
        (self.kind == Kind::Terminal && !self.watched && !self.ended).then_some(FOREGROUND_CHECK)
    }

    /// Looks whether the job is in the foreground.
    pub(super) fn resume(&mut self, terminal: Option<&Terminal>) {
        if self.kind == Kind::Terminal && !self.ended {
            self.watched = terminal.is_some_and(Terminal::is_with_job);
        }
    }

    /// What to wait for, if anything.
    pub(super) fn source(&self) -> Option<PollFd<'_>> {
        let flags = match self.kind {
            Kind::Pipe => PollFlags::HUP | PollFlags::RDHUP,
            Kind::Terminal => PollFlags::IN,
        };
        self.watched.then(|| PollFd::new(&self.stdin, flags))
    }

    /// Called after the kernel has reported something. Returns whether the input has ended.
    pub(super) fn has_ended(&mut self) -> bool {
        self.ended = match self.kind {
            Kind::Pipe => true,
            Kind::Terminal if !self.watched => false,
            // An error means that the job was just put into the background, or that the terminal
            // is gone, which SIGHUP reports.
            Kind::Terminal => rustix::io::read(&self.stdin, &mut [0_u8; 256]) == Ok(0),
        };
        self.watched &= !self.ended;
        self.ended
    }
}
