//! Wakes the background of a connection, unless the waking thread is about to drive it itself.
//!
//! A client library wakes what drives its connection with everything that its users do. Where the
//! user drives the connection right after that (see `driver`), waking the background thread as well
//! would be in vain. So while a thread is inside of [`QuietWaker::drive_after`], a wake-up by this
//! thread is only noted, and driving the connection follows, also after a panic.
//!
//! **Why none is forgotten.** A waker is often taken out by the first who wakes it: another thread
//! that sends at the same time then finds none, and does not drive. The first one does, after both
//! have queued what is to be sent.

use std::cell::Cell;
use std::sync::Arc;
use std::task::{Wake, Waker};

use futures_util::task::AtomicWaker;

use super::driver::{Drive, SharedDriver};

thread_local! {
    /// What this thread is doing.
    static DOING: Cell<Doing> = const { Cell::new(Doing::Other) };
}

/// What a thread does. Wakers are told apart by an address, which is never followed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    Other,
    /// Something that may wake this waker.
    User(usize),
    /// It has woken it: its connection has to be driven.
    Woken(usize),
}

/// The waker of a connection that its users drive.
#[derive(Debug, Default)]
pub(crate) struct QuietWaker {
    background: AtomicWaker,
}

impl QuietWaker {
    /// Sets what is woken in place of a user.
    pub(crate) fn register(&self, background: &Waker) {
        self.background.register(background);
    }

    /// Does something to a connection, and then drives it, if it was woken by that.
    pub(crate) fn drive_after<D: Drive, T>(
        &self,
        driver: &SharedDriver<D>,
        work: impl FnOnce() -> T,
    ) -> T {
        let outer = DOING.replace(Doing::User(self.address()));
        let _scope = UserScope { driver, address: self.address(), outer };
        work()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// Restores what was there before, and drives what was woken.
struct UserScope<'a, D: Drive> {
    driver: &'a SharedDriver<D>,
    address: usize,
    outer: Doing,
}

impl<D: Drive> Drop for UserScope<'_, D> {
    fn drop(&mut self) {
        if DOING.replace(self.outer) == Doing::Woken(self.address) {
            self.driver.drive();
        }
    }
}

impl Wake for QuietWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let address = self.address();
        // A thread that ends has no such variable, and does nothing else.
        match DOING.try_with(Cell::get).unwrap_or(Doing::Other) {
            Doing::User(this) if this == address => DOING.set(Doing::Woken(address)),
            Doing::Woken(this) if this == address => {}
            _ => self.background.wake(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Poll};

    use super::*;

    /// Counts.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Drive for Arc<Count> {
        fn poll_drive(&mut self, _: &mut Context<'_>) -> Poll<()> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Poll::Pending
        }
    }

    /// A connection: how often it was driven and its background was woken.
    struct Connection {
        quiet: Arc<QuietWaker>,
        waker: Waker,
        driver: SharedDriver<Arc<Count>>,
        driven: Arc<Count>,
        woken: Arc<Count>,
    }

    impl Connection {
        fn new() -> Connection {
            let (driven, woken) = (Arc::<Count>::default(), Arc::<Count>::default());
            let quiet = Arc::<QuietWaker>::default();
            quiet.register(&Waker::from(woken.clone()));
            let driver = SharedDriver::new(driven.clone());
            Connection { waker: Waker::from(quiet.clone()), quiet, driver, driven, woken }
        }

        fn counts(&self) -> (usize, usize) {
            (self.driven.get(), self.woken.get())
        }
    }

    #[test]
    fn a_user_that_wakes_a_connection_drives_it_once_and_wakes_no_background() {
        let one = Connection::new();
        one.quiet.drive_after(&one.driver, || {
            one.waker.wake_by_ref();
            one.waker.wake_by_ref();
            assert_eq!(one.counts(), (0, 0), "not before it is done");
        });
        assert_eq!(one.counts(), (1, 0));
        one.quiet.drive_after(&one.driver, || {});
        assert_eq!(one.counts(), (1, 0), "it was not woken");
        one.waker.wake_by_ref();
        assert_eq!(one.counts(), (1, 1));
    }

    #[test]
    fn a_wake_up_by_another_thread_wakes_the_background() {
        let one = Connection::new();
        let waker = one.waker.clone();
        one.quiet.drive_after(&one.driver, || std::thread::spawn(|| waker.wake()).join().unwrap());
        assert_eq!(one.counts(), (0, 1));
    }

    #[test]
    fn connections_are_told_apart() {
        let (one, two) = (Connection::new(), Connection::new());
        one.quiet.drive_after(&one.driver, || {
            two.waker.wake_by_ref();
            two.quiet.drive_after(&two.driver, || two.waker.wake_by_ref());
            one.waker.wake_by_ref();
        });
        assert_eq!((one.counts(), two.counts()), ((1, 0), (1, 1)));
    }

    #[test]
    fn what_was_woken_is_driven_also_after_a_panic() {
        let one = Connection::new();
        let panics = std::panic::AssertUnwindSafe(|| {
            one.quiet.drive_after(&one.driver, || {
                one.waker.wake_by_ref();
                panic!("on purpose");
            });
        });
        std::panic::catch_unwind(panics).unwrap_err();
        assert_eq!(one.counts(), (1, 0));
    }
}
