//! A terminal for tests: a program runs in its own session with a pseudo terminal; the test types
//! keys and reads the screen.

#![expect(unsafe_code, reason = "a controlling terminal can be set only between fork and exec")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::{LIMIT, eventually, text};

pub(crate) struct Terminal {
    child: Child,
    keyboard: std::fs::File,
    screen: Arc<(Mutex<Vec<u8>>, Condvar)>,
    seen: usize,
    status: Option<ExitStatus>,
}

impl Terminal {
    /// Runs a program on a new terminal, as the leader of a new session.
    pub(crate) fn start(command: &mut Command) -> Terminal {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let tty = open(name, flags, Mode::empty()).unwrap();
        let copy = || tty.try_clone().unwrap();
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: only system calls, as required between fork and exec.
        unsafe {
            command.pre_exec(|| {
                rustix::process::setsid()?;
                rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        drop(tty);
        // The command keeps copies of the terminal until it is dropped or changed.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let screen = watch(master.try_clone().unwrap());
        Terminal { child, keyboard: master.into(), screen, seen: 0, status: None }
    }

    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this text is on the screen, after what was found before. Returns the new text on
    /// the screen.
    pub(crate) fn expect(&mut self, wanted: &str) -> String {
        let (screen, changed) = &*self.screen;
        let end = Instant::now() + LIMIT;
        let mut screen = screen.lock().unwrap();
        loop {
            let new = text(&screen[self.seen..]);
            if let Some(at) = new.find(wanted) {
                // Lossy text may be longer than its bytes; the tests look for ASCII only.
                self.seen += at + wanted.len();
                return new;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "`{wanted}` is not on the screen: {new:?}");
            screen = changed.wait_timeout(screen, left).unwrap().0;
        }
    }

    /// Everything that was on the screen so far.
    pub(crate) fn all(&self) -> String {
        text(&self.screen.0.lock().unwrap())
    }

    /// Waits for the end of the program. Returns its exit code.
    pub(crate) fn code(&mut self) -> i32 {
        eventually("the program on the terminal ends", || {
            self.status = self.status.or_else(|| self.child.try_wait().unwrap());
            self.status.is_some()
        });
        self.status.unwrap().code().expect("an exit code")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ended = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}

fn watch(master: OwnedFd) -> Arc<(Mutex<Vec<u8>>, Condvar)> {
    let screen = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
    let shared = screen.clone();
    std::thread::spawn(move || {
        let mut master = std::fs::File::from(master);
        let mut part = [0; 4096];
        // Reading fails after the last program has closed the terminal.
        while let Ok(length @ 1..) = master.read(&mut part) {
            shared.0.lock().unwrap().extend_from_slice(&part[..length]);
            shared.1.notify_all();
        }
    });
    screen
}
