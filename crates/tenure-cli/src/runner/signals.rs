//! The signals of the runner: which ones it passes on, and how it hears of them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::process::Signal;

use super::sys::{self, Mask};

/// The state of the signals before we touched them, which is what the command should find.
#[derive(Clone, Copy)]
pub(super) struct Signals {
    before: Mask,
    children_ignored: bool,
}

impl Signals {
    /// Blocks what the runner wants to hear of, so that nothing is missed from here on. What our
    /// caller ignores (nohup does) stays so: a signal that is both blocked and ignored would still
    /// reach us, and then the command.
    pub(super) fn take() -> Signals {
        let children_ignored = sys::is_ignored(libc::SIGCHLD);
        if children_ignored {
            // Else children vanish without a word about their exit code.
            sys::set_ignored(libc::SIGCHLD, false);
        }
        let mut wanted: Vec<_> =
            FORWARDED.iter().copied().filter(|n| !sys::is_ignored(*n)).collect();
        // Reading or writing the terminal from the background must not stop front or keeper.
        wanted.extend([libc::SIGCHLD, libc::SIGCONT, libc::SIGTTIN, libc::SIGTTOU]);
        Signals { before: Mask::of(&wanted).block(), children_ignored }
    }

    /// Puts everything back, in the process that is going to be the command.
    pub(super) fn restore(&self) {
        if self.children_ignored {
            sys::set_ignored(libc::SIGCHLD, true);
        }
        self.before.set();
    }
}

/// A descriptor to read signals from.
pub(super) struct Inbox(OwnedFd);

impl Inbox {
    /// For the front: everything that it passes on, stop, continue and the death of children.
    pub(super) fn of_front() -> io::Result<Inbox> {
        let mut set = FORWARDED.to_vec();
        set.extend([libc::SIGCHLD, libc::SIGCONT]);
        Ok(Inbox(Mask::of(&set).descriptor()?))
    }

    /// For the keeper: the death of children. Every other signal stays blocked in it, so that it
    /// ends with front and command and not before.
    pub(super) fn of_keeper() -> io::Result<Inbox> {
        Ok(Inbox(Mask::of(&[libc::SIGCHLD]).descriptor()?))
    }

    /// The next signal, if one is there.
    pub(super) fn next(&self) -> Option<i32> {
        // struct signalfd_siginfo begins with the number; the rest does not matter here.
        let mut info = [0_u8; 128];
        let read = rustix::io::read(&self.0, &mut info).ok()?;
        let number = info.first_chunk::<4>().filter(|_| read >= 4)?;
        i32::try_from(u32::from_ne_bytes(*number)).ok()
    }
}

impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Lets one of the stop signals do what it does: stop this process. Returns when it was continued,
/// or at once if the kernel threw the signal away because nobody could continue us.
pub(super) fn stop_by(signal: Signal) {
    let ignored = sys::is_ignored(signal.as_raw());
    sys::set_ignored(signal.as_raw(), false);
    let mask = Mask::of(&[signal.as_raw()]);
    mask.unblock();
    mask.block();
    sys::set_ignored(signal.as_raw(), ignored);
}

/// Whether this signal, sent to a runner that still waits for its lock, ends the wait.
pub(super) fn ends_the_wait(signal: i32) -> bool {
    FORWARDED.contains(&signal) && ![libc::SIGWINCH, libc::SIGTSTP].contains(&signal)
}

/// Whether this signal asks a program to end, whatever it is about.
pub(super) fn asks_to_leave(signal: i32) -> bool {
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal)
}

/// Whether a stopped command has to be continued to be able to hear this.
pub(super) fn asks_to_end(signal: i32) -> bool {
    [libc::SIGTERM, libc::SIGHUP].contains(&signal)
}

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
