//! The controlling terminal, if there is one: which process group is in its foreground, and passing
//! the foreground on.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, getpgrp, test_kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// The terminal of the job.
pub(super) struct Terminal {
    tty: OwnedFd,
    /// The process group that the shell made for this job: the one of the launcher.
    job: Pid,
    /// Whether stdin and stdout of the command are both the terminal. In a pipeline another program
    /// may need it (`… | less`), so there the command gets it only when it tries to use it.
    pub(super) is_both_ends: bool,
}

impl Terminal {
    /// Opens the terminal. Must be called by the launcher, before the fork.
    pub(super) fn open() -> Option<Terminal> {
        let tty = open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
        let is_ours = |fd: &dyn std::os::fd::AsFd| tcgetpgrp(fd.as_fd()).is_ok();
        let stdin = std::io::stdin();
        let stdout = std::io::stdout();
        let is_both_ends =
            stdin.is_terminal() && stdout.is_terminal() && is_ours(&stdin) && is_ours(&stdout);
        Some(Terminal { tty: tty.ok()?, job: getpgrp(), is_both_ends })
    }

    /// A second descriptor of the terminal, for the process that becomes the command.
    pub(super) fn duplicate(&self) -> Option<OwnedFd> {
        self.tty.try_clone().ok()
    }

    /// Whether the job's own group is in the foreground.
    pub(super) fn is_with_job(&self) -> bool {
        tcgetpgrp(&self.tty) == Ok(self.job)
    }

    /// Whether this group is in the foreground.
    pub(super) fn is_with(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty) == Ok(group)
    }

    /// Whether the foreground group does not exist any more, such as a job of a killed shell.
    fn is_unused(&self) -> bool {
        tcgetpgrp(&self.tty)
            .is_ok_and(|group| test_kill_process_group(group) == Err(rustix::io::Errno::SRCH))
    }

    /// Puts the command's group into the foreground. SIGTTOU must be blocked, because this may run
    /// in the background.
    pub(super) fn give_to(&self, group: Pid) -> bool {
        tcsetpgrp(&self.tty, group).is_ok()
    }

    /// Puts the job's own group back into the foreground, if the command's group is there.
    pub(super) fn reclaim_from(&self, group: Pid) {
        if self.is_with(group) || self.is_unused() {
            let _terminal_closed = tcsetpgrp(&self.tty, self.job);
        }
    }
}
