//! The signals of the runner: which ones it forwards to the command, and how it reads them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::Signal;

use super::sys::{self, Mask};

/// The signals that the launcher forwards to the command.
const FORWARDED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGTSTP,
];

/// The state of the signals before this program changed it, which the command gets back.
#[derive(Clone, Copy)]
pub(super) struct Signals {
    before: Mask,
    children_ignored: bool,
}

impl Signals {
    /// Blocks the signals that the runner reads, so that none is missed from here on. A signal that
    /// the caller of this program ignores (as nohup does) stays ignored: if it were blocked as
    /// well, the kernel would deliver it, and it would be forwarded to the command.
    pub(super) fn block() -> Signals {
        let children_ignored = sys::is_ignored(libc::SIGCHLD);
        if children_ignored {
            // Otherwise the kernel reaps children itself, and their exit codes are lost.
            sys::set_ignored(libc::SIGCHLD, false);
        }
        let mut wanted: Vec<_> =
            FORWARDED.iter().copied().filter(|n| !sys::is_ignored(*n)).collect();
        // Reading or writing the terminal from the background must not stop launcher or supervisor.
        wanted.extend([libc::SIGCHLD, libc::SIGCONT, libc::SIGTTIN, libc::SIGTTOU]);
        Signals { before: Mask::of(&wanted).block(), children_ignored }
    }

    /// Restores the original state, in the process that is about to become the command.
    pub(super) fn restore(&self) {
        if self.children_ignored {
            sys::set_ignored(libc::SIGCHLD, true);
        }
        self.before.set();
    }
}

/// A descriptor from which blocked signals are read.
pub(super) struct SignalReader(OwnedFd);

impl SignalReader {
    /// For the launcher: all forwarded signals, SIGCONT and SIGCHLD.
    pub(super) fn for_launcher() -> io::Result<SignalReader> {
        let mut set = FORWARDED.to_vec();
        set.extend([libc::SIGCHLD, libc::SIGCONT]);
        Ok(SignalReader(Mask::of(&set).descriptor()?))
    }

    /// For the supervisor: SIGCHLD. All other signals stay blocked in it, so that it ends only
    /// after launcher and command.
    pub(super) fn for_supervisor() -> io::Result<SignalReader> {
        Ok(SignalReader(Mask::of(&[libc::SIGCHLD]).descriptor()?))
    }

    /// Reads the next signal without blocking.
    pub(super) fn next(&self) -> Option<i32> {
        // struct signalfd_siginfo begins with the number; the rest is not used here.
        let mut info = [0_u8; 128];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        let number = info.first_chunk::<4>().filter(|_| read >= 4)?;
        i32::try_from(u32::from_ne_bytes(*number)).ok()
    }
}

impl AsFd for SignalReader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets a pending stop signal stop this process. Returns when the process was continued, or at once
/// if the kernel discarded the signal because no shell could continue the process.
pub(super) fn stop_by(signal: Signal) {
    let ignored = sys::is_ignored(signal.as_raw());
    sys::set_ignored(signal.as_raw(), false);
    let mask = Mask::of(&[signal.as_raw()]);
    mask.unblock();
    mask.block();
    sys::set_ignored(signal.as_raw(), ignored);
}

/// Whether this signal ends the wait for the lock.
pub(super) fn ends_the_wait(signal: i32) -> bool {
    FORWARDED.contains(&signal) && ![libc::SIGWINCH, libc::SIGTSTP].contains(&signal)
}

/// Whether this signal requests a program to exit.
pub(super) fn requests_exit(signal: i32) -> bool {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal)
}

/// Whether a stopped command has to be continued so that this signal takes effect.
pub(super) fn needs_continue(signal: i32) -> bool {
    [libc::SIGTERM, libc::SIGHUP].contains(&signal)
}
