//! `tenure wait`: until a lock is free, without taking it.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tenure::Key;

use crate::args::Wait;
use crate::exit;
use crate::failure::Failure;
use crate::person::Person;
use crate::store::{Store, option};

pub(super) fn run(store: &Store, args: &Wait) -> Result<u8, Failure> {
    let key = Key::new(&args.key)?;
    let mut config = store.config()?;
    if let Some(patience) = args.wait {
        let outage = option(&store.url, "outage").and_then(|text| tenure::duration(text).ok());
        config = config.outage(outage.map_or(patience, |outage| outage.min(patience)));
    }
    let after = |patience| Instant::now().checked_add(patience);
    let until = args.wait.and_then(after);
    // A patience of nothing is a question, and a question gets a moment for its answer.
    let answered = args.wait.and_then(|patience| after(patience.max(ONE_ANSWER)));
    let client = within(answered, config.connect()).ok_or_else(Failure::silent)?;
    let client = client.map_err(|error| store.source.name_in(error))?;
    let lock = client.lock(&key);
    let holding = within(answered, lock.holding()).ok_or_else(Failure::silent)??;
    let Some(holding) = holding else { return Ok(exit::DONE) };
    match within(until, lock.until_free()) {
        Some(free) => free.map(|()| exit::DONE).map_err(Failure::from),
        None => {
            let message = format!("`{key}` is still held, by {}", Person(&holding.holder));
            Err(Failure::new(exit::BUSY, message, "wait longer with --wait DUR, or without it"))
        }
    }
}

/// Waits for a future, but not beyond this moment. The library's futures only await its own thread,
/// so that any executor will do; this one is a parked thread.
fn within<T>(deadline: Option<Instant>, future: impl Future<Output = T>) -> Option<T> {
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

/// What even the shortest patience leaves a server to answer.
const ONE_ANSWER: Duration = Duration::from_secs(1);
