//! A client in a process that forks: the child is told, at once, that it is not its own, and the
//! parent's lock is not harmed. Without a harness, because only one thread may be here to fork.

#![expect(unsafe_code, reason = "only libc can fork")]
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tenure::blocking::{Client, Guard, connect};
use tenure::{Attempt, ErrorKind};

fn main() {
    let folder = tempfile::tempdir().unwrap();
    for url in [format!("sqlite://{}/locks.db", folder.path().display()), "memory:".to_owned()] {
        let locks = connect(&url).unwrap();
        let guard = locks.lock("k").ttl(Duration::from_secs(2)).acquire().unwrap();
        let Some(child) = fork() else { play_child(locks, guard) };
        assert_eq!(code_of(child), Some(0), "{url}: the child failed or hangs");
        // Longer than a lease: it is still renewed.
        std::thread::sleep(Duration::from_millis(2500));
        guard.check().unwrap();
        assert!(matches!(locks.lock("k").try_acquire().unwrap(), Attempt::Busy(_)));
        guard.release().unwrap();
        assert!(matches!(locks.lock("k").try_acquire().unwrap(), Attempt::Granted(_)));
        println!("test {url} ... ok");
    }
}

/// What a program does that becomes a daemon with a lock in its hands.
fn play_child(locks: Client, guard: Guard) -> ! {
    let tried = catch_unwind(AssertUnwindSafe(|| {
        let begin = Instant::now();
        let refused = |kind: ErrorKind, text: String| {
            assert!(kind == ErrorKind::Closed && text.contains("fork"), "{kind:?}: {text}");
        };
        let lock = locks.lock("k");
        let errors = [
            lock.try_acquire().map(drop).unwrap_err(),
            lock.acquire_within(Duration::from_secs(1)).map(drop).unwrap_err(),
            lock.acquire().map(drop).unwrap_err(),
            lock.status().map(drop).unwrap_err(),
            lock.until_free().unwrap_err(),
            lock.evict(guard.token()).map(drop).unwrap_err(),
            locks.list("").map(drop).unwrap_err(),
            locks.doctor().map(drop).unwrap_err(),
            locks.flush().unwrap_err(),
            locks.shutdown(Duration::ZERO).unwrap_err(),
        ];
        errors.into_iter().for_each(|error| refused(error.kind(), error.to_string()));
        assert!(guard.check().is_ok(), "its lease is still known");
        let error = guard.release().unwrap_err();
        refused(error.kind(), error.to_string());
        drop((lock, locks));
        assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
        let fresh = connect("memory:").unwrap();
        fresh.lock("k").acquire().unwrap().release().unwrap();
    }));
    // SAFETY: takes a number and does not return; exit handlers are the parent's.
    unsafe { libc::_exit(i32::from(tried.is_err())) }
}

/// The new process, or `None` in it.
fn fork() -> Option<i32> {
    // SAFETY: the other threads are the client's own, which wait for work and hold no lock that
    // the child needs.
    match unsafe { libc::fork() } {
        0 => None,
        child => Some(child),
    }
}

/// The exit code of a child, if it ends in time; else it is killed.
fn code_of(child: i32) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(10);
    let mut status = 0;
    loop {
        // SAFETY: `status` has room for the result.
        if unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == child {
            return libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status));
        }
        if Instant::now() > end {
            // SAFETY: it is our child, and not reaped yet.
            unsafe { libc::kill(child, libc::SIGKILL) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
