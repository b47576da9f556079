//! Whether a caller should wait for a response on its own thread, for some microseconds.
//!
//! A server on the same machine, or in the same rack, often responds within 50 µs. That is less
//! than it takes to put the caller's task to sleep, to wake the thread that reads, and to have that
//! thread wake the caller. So a caller that is alone on its connection may wait for the socket on
//! its own thread, for at most [`LIMIT`], like a lock that spins before it sleeps; except that the
//! thread sleeps in the kernel and uses no CPU.
//!
//! That is only right if two things hold, and both are found out by doing without it now and then:
//!
//! - **The server responds so soon.** A wait that was in vain costs [`LIMIT`]. Several of them make
//!   the next attempt rarer.
//! - **No other task of this thread wants the connection too.** While a thread waits, its other
//!   tasks do not run, and what they would have sent is not sent. A request that is awaited in the
//!   usual way lets them run: if one of them sends a request meanwhile, there is more than one
//!   user, and all requests are awaited in the usual way from then on.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// For how long a caller waits on its own thread at most.
pub(crate) const LIMIT: Duration = Duration::from_micros(100);
/// A response that came later than this is none to wait for. It includes the way over the thread
/// that reads.
const SOON: Duration = Duration::from_micros(400);
/// After so many requests of a single user in a row, callers wait on their own thread: at first
/// and after there was another user, and after a series of waits that all had a response.
const CALM_FIRST: u32 = 4;
const CALM_MIN: u32 = 1;
/// The upper limit of that number, which grows with every wait that was in vain.
const CALM_MAX: u32 = 4096;
/// How many callers wait on their own thread before one does not, to find out who else is there.
const WAITS: u32 = 240;

thread_local! {
    /// Whether this thread must not wait: see [`without`].
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Polls something without waiting on this thread: its caller does not want the response now, as
/// when a guard is dropped.
pub(crate) fn without<T>(poll: impl FnOnce() -> T) -> T {
    let before = FORBIDDEN.replace(true);
    let output = poll();
    FORBIDDEN.set(before);
    output
}

/// What a connection has learned about its users and its server.
#[derive(Debug)]
pub(crate) struct ShortWait {
    /// How many callers may still wait on their own thread.
    allowed: AtomicU32,
    /// How many requests in a row had a response soon, and the connection for themselves.
    calm: AtomicU32,
    /// How many of them it takes.
    calm_needed: AtomicU32,
}

impl Default for ShortWait {
    fn default() -> ShortWait {
        ShortWait {
            allowed: AtomicU32::new(0),
            calm: AtomicU32::new(0),
            calm_needed: AtomicU32::new(CALM_FIRST),
        }
    }
}

impl ShortWait {
    /// Whether a caller that is alone may wait on its own thread now.
    pub(crate) fn is_allowed(&self) -> bool {
        if FORBIDDEN.get() {
            return false;
        }
        // Two threads may count one down together: the number is a rule of thumb.
        let allowed = self.allowed.load(Ordering::Relaxed);
        if allowed > 0 {
            self.allowed.store(allowed - 1, Ordering::Relaxed);
        }
        allowed > 0
    }

    /// A caller was not alone.
    pub(crate) fn on_company(&self) {
        if self.allowed.load(Ordering::Relaxed) > 0 || self.calm.load(Ordering::Relaxed) > 0 {
            self.allowed.store(0, Ordering::Relaxed);
            self.calm.store(0, Ordering::Relaxed);
            let needed = self.calm_needed.load(Ordering::Relaxed);
            self.calm_needed.store(needed.max(CALM_FIRST), Ordering::Relaxed);
        }
    }

    /// A caller waited on its own thread.
    pub(crate) fn on_wait(&self, in_vain: bool) {
        if in_vain {
            // One may be chance, on a busy machine. Several in a row are not.
            let allowed = self.allowed.load(Ordering::Relaxed) / 4;
            self.allowed.store(allowed, Ordering::Relaxed);
            if allowed == 0 {
                let needed = self.calm_needed.load(Ordering::Relaxed);
                self.calm_needed.store((needed * 4).min(CALM_MAX), Ordering::Relaxed);
            }
        } else if self.allowed.load(Ordering::Relaxed) == 0 {
            // A whole series of waits has succeeded.
            self.calm_needed.store(CALM_MIN, Ordering::Relaxed);
        }
    }

    /// A response that was awaited in the usual way came after this time, to a caller that was
    /// alone when it sent its request.
    pub(crate) fn on_response(&self, after: Duration) {
        if after > SOON {
            return self.calm.store(0, Ordering::Relaxed);
        }
        let calm = self.calm.fetch_add(1, Ordering::Relaxed) + 1;
        if calm >= self.calm_needed.load(Ordering::Relaxed) {
            self.calm.store(0, Ordering::Relaxed);
            self.allowed.store(WAITS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: Duration = Duration::from_micros(60);

    fn after_calm(requests: u32) -> ShortWait {
        let wait = ShortWait::default();
        (0..requests).for_each(|_| wait.on_response(RESPONSE));
        wait
    }

    fn waits_in_a_row(wait: &ShortWait) -> u32 {
        (0..2 * WAITS).take_while(|_| wait.is_allowed()).count() as u32
    }

    #[test]
    fn a_single_user_waits_and_looks_around_now_and_then() {
        assert!(!ShortWait::default().is_allowed());
        assert!(!after_calm(CALM_FIRST - 1).is_allowed());
        assert_eq!(waits_in_a_row(&after_calm(CALM_FIRST)), WAITS);
    }

    #[test]
    fn company_ends_the_waits_and_has_to_be_gone_for_a_while() {
        let wait = after_calm(CALM_FIRST);
        assert!(wait.is_allowed());
        wait.on_company();
        assert!(!wait.is_allowed());
        (1..CALM_FIRST).for_each(|_| wait.on_response(RESPONSE));
        assert!(!wait.is_allowed());
        wait.on_response(RESPONSE);
        assert!(wait.is_allowed());
    }

    #[test]
    fn a_server_that_is_far_away_is_waited_for_more_and_more_rarely() {
        let wait = ShortWait::default();
        (0..100).for_each(|_| wait.on_response(SOON * 2));
        assert!(!wait.is_allowed());
        let mut requests = 0;
        for _ in 0..10_000 {
            wait.on_response(RESPONSE);
            if wait.is_allowed() {
                requests += 1;
                wait.on_wait(true);
            }
        }
        assert!(requests < 30, "{requests} waits in vain");
    }
}
