//! The system calls that the safe wrappers lack. All `unsafe` of the program is here.

#![expect(unsafe_code, reason = "fork, signal masks, signalfd, shared memory and pre_exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::process::Pid;

/// Makes a second process. `None` in the new one.
///
/// The caller has to be alone: no other thread may run, or the new process inherits its locks.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: `front::run` calls this before the program has started a thread or opened a store, so
    // that the new process is as whole as the old one.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the process at once: no destructors, no exit handlers. For the forked process, whose exit
/// handlers belong to the other one.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Whether our caller left this signal ignored.
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks only; `action` has room for the answer and was zeroed, so it is always a value.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Sets a signal to be ignored, or back to its default. Safe to call between fork and exec.
pub(super) fn set_ignored(signal: i32, ignored: bool) {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither of the two actions is a function of ours.
    unsafe { libc::signal(signal, action) };
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(super) struct Mask(libc::sigset_t);

impl Mask {
    pub(super) fn of(signals: &[i32]) -> Mask {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses what is not a signal.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            Mask(set.assume_init())
        }
    }

    /// Blocks these signals as well and gives what was blocked before.
    pub(super) fn block(&self) -> Mask {
        self.change(libc::SIG_BLOCK)
    }

    pub(super) fn unblock(&self) {
        self.change(libc::SIG_UNBLOCK);
    }

    /// Blocks exactly these. Safe to call between fork and exec.
    pub(super) fn set(&self) {
        self.change(libc::SIG_SETMASK);
    }

    fn change(&self, how: i32) -> Mask {
        let mut old = Mask::of(&[]);
        // SAFETY: both pointers are to whole sets; the mask of the calling thread is its own.
        unsafe { libc::pthread_sigmask(how, &self.0, &mut old.0) };
        old
    }

    /// A descriptor that these signals can be read from. They have to be blocked.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: makes a new descriptor from a whole set.
        let fd = unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A number that this process and the ones it forks share.
pub(super) fn shared_number() -> io::Result<&'static AtomicU64> {
    let (size, access) = (size_of::<AtomicU64>(), libc::PROT_READ | libc::PROT_WRITE);
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory, wherever the kernel likes.
    let page = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is ours, aligned, zeroed (a valid value), and is never unmapped.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

/// The descriptors from 3 on that our caller meant for the command.
pub(super) fn inherited_descriptors() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number =
        |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    // SAFETY: asks for the flags of a number; that it is not open is one of the answers.
    let flags = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFD) };
    // Ours have the close-on-exec flag, the one that lists the folder included.
    open.filter_map(number).filter(|fd| *fd > 2 && flags(*fd) == 0).collect()
}

/// Lets go of input, output and everything else that was meant for the command, so that whoever
/// reads from it or writes to it sees the end when the command closes its own. Stderr stays: we may
/// have something to say.
pub(super) fn let_go(descriptors: &[RawFd]) {
    use rustix::fs::{Mode, OFlags, open};
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        // Only a kernel without room for two descriptors refuses; then they stay as they are.
        let _kept = rustix::stdio::dup2_stdin(&null);
        let _kept = rustix::stdio::dup2_stdout(&null);
    }
    for fd in descriptors {
        // SAFETY: they came with the process and belong to no value of this program.
        unsafe { libc::close(*fd) };
    }
}

/// Lets go of stderr too: whoever reads it should not wait for a process in the background.
pub(super) fn let_go_of_stderr() {
    use rustix::fs::{Mode, OFlags, open};
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _kept = rustix::stdio::dup2_stderr(&null);
    }
}

/// Starts a command. `prepare` runs in the new process right before exec.
///
/// `prepare` must do nothing but system calls: it runs in a copy of a process with threads.
pub(super) fn spawn(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Child> {
    // SAFETY: the one caller, `child::start`, allocates nothing and takes no lock in `prepare`.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
