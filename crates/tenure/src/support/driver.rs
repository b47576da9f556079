//! The work of a connection, which any thread may do.
//!
//! A connection has to be driven: requests are written, responses are read and given to those who
//! wait for them. Left to a task of the client's background thread, every request would cost two
//! changes of threads: one to have it written, one to get its response. Here the thread that sends
//! a request drives the connection itself, so that the bytes are written when the call returns. A
//! task in the background does the same whenever the socket has something to read.
//!
//! **Invariant.** After a call of [`SharedDriver::drive`] the connection is driven at least once,
//! by this thread or another one: either this thread gets the lock, or the thread that has it
//! checks for further work after it has released it.
//!
//! **No deadlock.** The lock is never waited for, and is never held across an await. So a thread
//! that drives cannot be stopped by a caller that stalls: what the caller's own thread has not
//! read, the background reads.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

use crate::support::sync::Mutex;

/// What drives a connection.
pub(crate) trait Drive: Send + 'static {
    /// Does everything that can be done without waiting, and arranges for the waker to be woken
    /// when there is more to do. Ready when the connection has ended; it is not called again.
    fn poll_drive(&mut self, context: &mut Context<'_>) -> Poll<()>;
}

/// A connection that any thread may drive.
pub(crate) struct SharedDriver<D> {
    /// `None` when the connection has ended.
    driver: Mutex<Option<D>>,
    /// Whether the connection is to be driven again, by whichever thread has the lock.
    again: AtomicBool,
    ended: AtomicBool,
    background: Arc<BackgroundTask>,
    /// Wakes the background.
    waker: Waker,
}

/// The task in the background.
struct BackgroundTask(AtomicWaker);

impl Wake for BackgroundTask {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

impl<D: Drive> SharedDriver<D> {
    pub(crate) fn new(driver: D) -> SharedDriver<D> {
        let background = Arc::new(BackgroundTask(AtomicWaker::new()));
        SharedDriver {
            driver: Mutex::new(Some(driver)),
            again: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: Waker::from(background.clone()),
            background,
        }
    }

    /// Drives the connection on this thread, or lets the thread do it that is doing so already.
    pub(crate) fn drive(&self) {
        self.again.store(true, Ordering::SeqCst);
        // A thread that does not get the lock has set the flag before the other one releases it.
        while self.again.load(Ordering::SeqCst)
            && let Some(mut driver) = self.driver.try_lock()
        {
            self.again.store(false, Ordering::SeqCst);
            let Some(driving) = &mut *driver else { return };
            if driving.poll_drive(&mut Context::from_waker(&self.waker)).is_ready() {
                *driver = None;
                drop(driver);
                self.ended.store(true, Ordering::SeqCst);
                self.waker.wake_by_ref();
            }
        }
    }

    /// The task in the background. Ends with the connection.
    pub(crate) async fn run(self: Arc<Self>) {
        poll_fn(|context| {
            self.background.0.register(context.waker());
            self.drive();
            if self.has_ended() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// Drops what drives the connection.
    pub(crate) fn end(&self) {
        let driver = self.driver.lock().take();
        // Not under the lock: what waits for a response is woken.
        drop(driver);
        self.ended.store(true, Ordering::SeqCst);
        self.waker.wake_by_ref();
    }
}
