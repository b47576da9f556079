//! The releases that were begun and are not confirmed, and waiting for them.
//!
//! A client may release a million locks at once. So a confirmed release wakes a `flush` only if it
//! was the last one that this `flush` waits for, and nothing looks at all open releases each time
//! that one of them is confirmed.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::Releaser;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::{Condvar, Mutex};

/// How many unconfirmed releases are kept beyond their leases: a client whose server never comes
/// back must not fill its memory.
const MOST_OPEN: usize = 10_000;
/// How long dropping the last handle of a client blocks for a server that confirms nothing, and for
/// one that does.
const SILENT_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Every release that was begun and is not confirmed.
#[derive(Default)]
pub(super) struct OpenReleases {
    state: Mutex<State>,
    done: Notify,
    done_blocking: Condvar,
}

#[derive(Default)]
struct State {
    open: BTreeMap<u64, Open>,
    last: u64,
    /// How many releases were confirmed, or given up.
    ended: u64,
    /// Up to which number each `flush` waits.
    flushing: Vec<u64>,
    /// How many threads are blocked in [`OpenReleases::wait`].
    blocked: usize,
    /// The last handle of the client was dropped: nothing is repeated beyond its lease.
    closed: bool,
}

/// A claim that may have left something at the server.
struct Open {
    /// The key as the caller knows it.
    key: Key,
    /// Until when `flush` waits for it; it is repeated also after that. `None` before the release
    /// is submitted.
    end: Option<Moment>,
    /// Error of the last try.
    failure: Option<Error>,
}

/// A release that was begun: `flush` waits for it until this value is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    releaser: Arc<Releaser>,
    number: u64,
}

impl Pending {
    pub(super) fn new(releaser: &Arc<Releaser>, key: Key) -> Pending {
        let mut state = releaser.open.state();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, Open { key, end: None, failure: None });
        Pending { releaser: releaser.clone(), number }
    }

    /// It is about to be sent, and its lease ends by this moment.
    pub(super) fn submitted(&self, end: Moment) {
        let open = &self.releaser.open;
        let mut state = open.state();
        if let Some(open) = state.open.get_mut(&self.number) {
            open.end = Some(end);
        }
        let awaited = state.flushing.iter().any(|last| *last >= self.number);
        drop(state);
        if awaited {
            // A `flush` that was called before this did not know for how long to wait.
            open.done.notify_waiters();
        }
    }

    /// Records a failed try. Whether it is repeated also beyond its lease.
    pub(super) fn failed(&self, error: Error) -> bool {
        let mut state = self.releaser.open.state();
        let too_many = state.open.len() > MOST_OPEN;
        if let Some(open) = state.open.get_mut(&self.number) {
            open.failure = Some(error);
        }
        !(state.closed || too_many)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let open = &self.releaser.open;
        let mut state = open.state();
        state.open.remove(&self.number);
        state.ended += 1;
        let is_done = |last: &u64| *last >= self.number && state.is_done(*last);
        let flushed = state.flushing.iter().any(is_done);
        let blocked = state.blocked > 0 && state.open.is_empty();
        drop(state);
        if flushed {
            open.done.notify_waiters();
        }
        // Notifying a condition variable is a system call, also without waiting threads.
        if blocked {
            open.done_blocking.notify_all();
        }
    }
}

impl OpenReleases {
    pub(super) fn len(&self) -> usize {
        self.state().open.len()
    }

    /// See `Releaser::flush`.
    pub(super) async fn flush(&self, clock: &Clock, name: &str) -> Result<()> {
        let flush = self.begin_flush();
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            let Some(end) = self.state().end(flush.last) else { return Ok(()) };
            if end <= clock.now() {
                return self.state().failure(flush.last, name);
            }
            tokio::select! {
                () = done => {}
                () = clock.sleep_until(end) => {}
            }
        }
    }

    /// From now on, the end of everything that was begun so far notifies `done`.
    fn begin_flush(&self) -> Flush<'_> {
        let mut state = self.state();
        let last = state.last;
        state.flushing.push(last);
        Flush { open: self, last }
    }

    /// Everything that is not confirmed, as an error.
    pub(super) fn unconfirmed(&self, name: &str) -> Result<()> {
        self.state().failure(u64::MAX, name)
    }

    /// Blocks until everything is confirmed, or not worth waiting for because all leases have
    /// ended: for at most [`SILENT_WAIT`] while nothing is confirmed, and at most [`LONGEST_WAIT`]
    /// in all.
    pub(super) fn wait(&self, clock: &Clock) {
        let started = clock.now();
        let mut state = self.state();
        if state.open.is_empty() {
            return;
        }
        state.blocked += 1;
        while let Some(end) = state.end(u64::MAX)
            && end > clock.now()
            && clock.now().since(started) < LONGEST_WAIT
        {
            let ended = state.ended;
            let is_open = |state: &mut State| !state.open.is_empty();
            state = self.done_blocking.wait_timeout_while(state, SILENT_WAIT, is_open);
            if state.ended == ended {
                break;
            }
        }
        state.blocked -= 1;
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// A `flush` under way.
struct Flush<'a> {
    open: &'a OpenReleases,
    last: u64,
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        let mut state = self.open.state();
        if let Some(at) = state.flushing.iter().position(|last| *last == self.last) {
            state.flushing.swap_remove(at);
        }
    }
}

impl State {
    /// Whether nothing is open of what was begun up to this number.
    fn is_done(&self, last: u64) -> bool {
        self.open.first_key_value().is_none_or(|(first, _)| *first > last)
    }

    /// Until when `flush` waits for what was begun up to this number; `None` if all of it is done.
    fn end(&self, last: u64) -> Option<Moment> {
        let open = self.open.range(..=last).map(|(_, open)| open);
        open.map(|open| open.end.unwrap_or(Moment::NEVER)).max()
    }

    /// What was begun up to this number and is not confirmed, as an error.
    fn failure(&self, last: u64, name: &str) -> Result<()> {
        let mut open = self.open.range(..=last).map(|(_, open)| open);
        let Some(first) = open.next() else { return Ok(()) };
        let others = match open.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let why = first.failure.as_ref().map(|failure| format!(": {failure}"));
        let message = format!(
            "{name} did not confirm the release of `{}`{others}{}",
            first.key,
            why.unwrap_or_default()
        );
        Err(Error::new(ErrorKind::Unavailable, message))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    fn begin(releaser: &Arc<Releaser>) -> Pending {
        Pending::new(releaser, Key::new("k").unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_waits_for_what_was_begun_before_it() {
        let (releaser, clock) = (Arc::<Releaser>::default(), Clock::tokio());
        let pending = [begin(&releaser), begin(&releaser), begin(&releaser)];
        let mut flush = std::pin::pin!(releaser.open.flush(&clock, "memory"));
        assert!(poll!(&mut flush).is_pending());
        let later = begin(&releaser);
        for pending in pending {
            assert!(poll!(&mut flush).is_pending());
            drop(pending);
        }
        flush.await.unwrap();
        drop(later);
        assert!(releaser.open.state().flushing.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_gives_up_when_a_release_that_was_sent_after_it_is_not_confirmed() {
        let (releaser, clock) = (Arc::<Releaser>::default(), Clock::tokio());
        let pending = begin(&releaser);
        let mut flush = std::pin::pin!(releaser.open.flush(&clock, "memory"));
        assert!(poll!(&mut flush).is_pending());
        pending.submitted(clock.now() + SILENT_WAIT);
        let limit = tokio::time::timeout(LONGEST_WAIT, flush);
        assert!(limit.await.unwrap().unwrap_err().to_string().contains("did not confirm"));
    }

    #[test]
    fn a_wait_lasts_while_releases_are_confirmed() {
        let (releaser, clock) = (Arc::<Releaser>::default(), Clock::Boot);
        let pending: Vec<_> = (0..6).map(|_| begin(&releaser)).collect();
        let confirming = std::thread::spawn(move || {
            for pending in pending {
                std::thread::sleep(SILENT_WAIT / 4);
                drop(pending);
            }
        });
        releaser.open.wait(&clock);
        assert_eq!(releaser.open.len(), 0, "it did not wait for all");
        confirming.join().unwrap();
        let _silent = begin(&releaser);
        let started = clock.now();
        releaser.open.wait(&clock);
        assert!(clock.now().since(started) < LONGEST_WAIT / 2, "a silent server is not waited for");
    }
}
