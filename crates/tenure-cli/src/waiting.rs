//! Waiting for futures of the library without a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Runs a future until it is ready or the deadline has passed. The library's futures wait for its
/// own thread, so that any executor can run them; this one parks the current thread.
pub(crate) fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
            None => std::thread::park(),
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
