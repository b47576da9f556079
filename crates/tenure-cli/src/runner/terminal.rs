//! The terminal, if there is one: which process group has it, and handing it on.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, getpgrp, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal that our job may have in the foreground.
pub(super) struct Terminal {
    tty: OwnedFd,
    /// The shell's name for our job: the group that the front is in.
    job: Pid,
    /// Whether the command talks to the terminal both ways. In a pipeline somebody else may need it
    /// (`… | less`), so there it is given only when the command asks for it.
    pub(super) whole: bool,
}

impl Terminal {
    /// To be called by the front, before the fork.
    pub(super) fn open() -> Option<Terminal> {
        let tty = open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
        let ours = |fd: &dyn std::os::fd::AsFd| tcgetpgrp(fd.as_fd()).is_ok();
        let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
        let whole = stdin.is_terminal() && stdout.is_terminal() && ours(&stdin) && ours(&stdout);
        Some(Terminal { tty: tty.ok()?, job: getpgrp(), whole })
    }

    /// The terminal for the command, to take it before it starts.
    pub(super) fn copy(&self) -> Option<OwnedFd> {
        self.tty.try_clone().ok()
    }

    /// Whether the job is in the foreground, with nothing of it handed on.
    pub(super) fn is_with_the_job(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.job)
    }

    /// Whether the command has it.
    pub(super) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Whether the group that has it has died, as a job of a shell that was killed.
    fn is_with_nobody(&self) -> bool {
        tcgetpgrp(&self.tty)
            .is_ok_and(|group| test_kill_process_group(group) == Err(rustix::io::Errno::SRCH))
    }

    /// Hands it to the command. SIGTTOU has to be blocked: it may be done from the background.
    pub(super) fn give(&self, group: Pid) -> bool {
        tcsetpgrp(&self.tty, group).is_ok()
    }

    /// Takes it back for the job, if this command had it.
    pub(super) fn take_back(&self, group: Pid) {
        if self.is_with(group) || self.is_with_nobody() {
            // The terminal may be gone; then there is nothing to take.
            let _gone = tcsetpgrp(&self.tty, self.job);
        }
    }
}
