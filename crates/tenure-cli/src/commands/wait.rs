//! `tenure wait`: until a lock is free, without taking it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tenure::{Config, Key};

use crate::args::Wait;
use crate::exit;
use crate::failure::Failure;
use crate::person::Person;
use crate::store::Store;

pub(super) fn run(store: &Store, args: &Wait) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let config: Config = store.url.parse()?;
    let Some(client) = within(None, config.connect()).transpose()? else {
        return Ok(exit::BUSY);
    };
    let lock = client.lock(&key);
    // A patience of nothing is a question, and a question gets an answer.
    let holding = within(None, lock.holding()).transpose()?.flatten();
    let Some(holding) = holding else { return Ok(exit::DONE) };
    match within(args.wait, lock.until_free()) {
        Some(free) => free.map(|()| exit::DONE).map_err(Failure::from),
        None => {
            let message = format!("`{key}` is still held, by {}", Person(&holding.holder));
            Err(Failure::new(exit::BUSY, message, "wait longer with --wait DUR, or without it"))
        }
    }
}

/// Waits for a future, but not longer than patience lasts. The library's futures only await its own
/// thread, so that any executor will do; this one is a parked thread.
fn within<T>(patience: Option<Duration>, future: impl Future<Output = T>) -> Option<T> {
    let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
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
