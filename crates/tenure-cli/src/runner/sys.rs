//! The system calls that the safe wrappers lack. All `unsafe` code of the program is in this file.

#![expect(unsafe_code, reason = "fork, signal masks, signalfd, shared memory and pre_exec")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::ptr;
use std::sync::atomic::AtomicU64;

use rustix::process::Pid;

/// Forks this process. Returns `None` in the new one.
///
/// The calling process must have one thread: the new process would inherit locks that other threads
/// hold.
pub(super) fn fork() -> io::Result<Option<Pid>> {
    // SAFETY: `launcher::run` calls this before the program has started a thread or opened a store,
    // so that the new process is as whole as the old one.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok(Pid::from_raw(pid)),
    }
}

/// Ends the process at once, without destructors and exit handlers. For the forked process, whose
/// exit handlers belong to its parent.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: takes a number and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Whether this process ignores a signal, as its caller may have set it.
pub(super) fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: reads only; `action` has room for the result and was zeroed, so it is always valid.
    let action = unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

/// Ignores a signal, or sets it back to its default. Safe to call between fork and exec.
pub(super) fn set_ignored(signal: i32, ignored: bool) {
    let action = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither of the two actions is a function of this program.
    unsafe { libc::signal(signal, action) };
}

/// A set of signals.
#[derive(Clone, Copy)]
pub(super) struct Mask(libc::sigset_t);

impl Mask {
    pub(super) fn of(signals: &[i32]) -> Mask {
        let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: `sigemptyset` initialises the set; `sigaddset` refuses numbers that are no
        // signal.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for signal in signals {
                libc::sigaddset(set.as_mut_ptr(), *signal);
            }
            Mask(set.assume_init())
        }
    }

    /// Blocks these signals in addition. Returns the mask that was set before.
    pub(super) fn block(&self) -> Mask {
        self.change(libc::SIG_BLOCK)
    }

    pub(super) fn unblock(&self) {
        self.change(libc::SIG_UNBLOCK);
    }

    /// Blocks exactly these signals. Safe to call between fork and exec.
    pub(super) fn set(&self) {
        self.change(libc::SIG_SETMASK);
    }

    fn change(&self, how: i32) -> Mask {
        let mut old = Mask::of(&[]);
        // SAFETY: both pointers are to initialised sets; only the calling thread's mask changes.
        unsafe { libc::pthread_sigmask(how, &self.0, &mut old.0) };
        old
    }

    /// A descriptor that these signals can be read from. They must be blocked.
    pub(super) fn descriptor(&self) -> io::Result<OwnedFd> {
        // SAFETY: makes a new descriptor from an initialised set.
        let fd = unsafe { libc::signalfd(-1, &self.0, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd == -1 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// A number in memory that this process shares with the processes that it forks.
pub(super) fn shared_number() -> io::Result<&'static AtomicU64> {
    let size = size_of::<AtomicU64>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: maps new memory at an address that the kernel chooses.
    let page = unsafe { libc::mmap(ptr::null_mut(), size, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the page is new, aligned, zeroed (a valid value), and is never unmapped.
    Ok(unsafe { &*page.cast::<AtomicU64>() })
}

/// The descriptors from 3 on that the caller of this program passes to the command.
pub(super) fn inherited_descriptors() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let number =
        |entry: io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    // SAFETY: reads the flags of a number; a number that is not open is an error.
    let flags = |fd: RawFd| unsafe { libc::fcntl(fd, libc::F_GETFD) };
    // Those of this program have the close-on-exec flag, also the one that lists the folder.
    open.filter_map(number).filter(|fd| *fd > 2 && flags(*fd) == 0).collect()
}

/// Closes stdin, stdout and the other descriptors that belong to the command, so that a process at
/// the other end sees the end of the stream when the command closes its own. Stderr stays open for
/// messages.
pub(super) fn close_command_streams(descriptors: &[RawFd]) {
    use rustix::fs::{Mode, OFlags, open};
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        // If the kernel has no descriptors left, the streams stay open.
        let _stays_open = rustix::stdio::dup2_stdin(&null);
        let _stays_open = rustix::stdio::dup2_stdout(&null);
    }
    for fd in descriptors {
        // SAFETY: the process inherited them, and no value of this program owns them.
        unsafe { libc::close(*fd) };
    }
}

/// Closes stderr, so that its reader does not wait for a process in the background.
pub(super) fn close_stderr() {
    use rustix::fs::{Mode, OFlags, open};
    if let Ok(null) = open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        let _stays_open = rustix::stdio::dup2_stderr(&null);
    }
}

/// Starts a command. `prepare` runs in the new process right before exec.
///
/// `prepare` must only make system calls: it runs in a fork of a process with threads.
pub(super) fn spawn(
    command: &mut Command,
    prepare: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) -> io::Result<Child> {
    // SAFETY: the only caller, `spawn::command`, neither allocates nor locks in `prepare`.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}
