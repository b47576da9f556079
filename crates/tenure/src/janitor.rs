//! The one place that gives back: what guards release or drop, and what abandoned asks leave
//! behind.
//!
//! A release is repeated until it is answered or moot, also when nobody waits for it any more.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};

use crate::claim::Claim;
use crate::clock::Moment;
use crate::error::Result;
use crate::shared::Shared;

/// The releases that are still to be done.
#[derive(Debug, Default)]
pub(crate) struct Janitor {
    desk: Mutex<Desk>,
    woken: Notify,
    done: Notify,
    done_blocking: Condvar,
}

#[derive(Default)]
struct Desk {
    jobs: VecDeque<BoxFuture<'static, ()>>,
    /// The numbers of everything begun and not done.
    open: BTreeSet<u64>,
    last: u64,
    running: bool,
    /// How many threads are blocked until everything is done.
    blocked: usize,
}

/// Something that has to be given back: counts for `flush` until it is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    janitor: Arc<Janitor>,
    number: u64,
}

impl Janitor {
    pub(crate) fn begin(self: &Arc<Self>) -> Pending {
        let mut desk = self.desk();
        desk.last += 1;
        let number = desk.last;
        desk.open.insert(number);
        Pending { janitor: self.clone(), number }
    }

    /// Gives back what an ask may have left behind. Nobody waits for the answer.
    pub(crate) fn withdraw(shared: &Arc<Shared>, claim: Claim, pending: Pending) {
        let end = shared.clock.now() + claim.ttl;
        Janitor::submit(shared, claim, end, pending, None);
    }

    /// Gives a lock back. The answer says whether it was held until now; after a first failure the
    /// release goes on, until `end`, when the lease is over anyway.
    pub(crate) fn release(
        shared: &Arc<Shared>,
        claim: Claim,
        end: Moment,
    ) -> oneshot::Receiver<Result<bool>> {
        let (sender, receiver) = oneshot::channel();
        Janitor::submit(shared, claim, end, shared.janitor.begin(), Some(sender));
        receiver
    }

    /// Returns when everything that was begun before this call is done.
    pub(crate) async fn flush(&self) {
        let last = self.desk().last;
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if self.desk().open.first().is_none_or(|first| *first > last) {
                return;
            }
            done.await;
        }
    }

    /// Blocks until everything is done, but not for longer than this.
    pub(crate) fn wait(&self, longest: Duration) {
        let mut desk = self.desk();
        desk.blocked += 1;
        let waited =
            self.done_blocking.wait_timeout_while(desk, longest, |desk| !desk.open.is_empty());
        waited.unwrap_or_else(PoisonError::into_inner).0.blocked -= 1;
    }

    fn submit(
        shared: &Arc<Shared>,
        claim: Claim,
        end: Moment,
        pending: Pending,
        reply: Option<oneshot::Sender<Result<bool>>>,
    ) {
        let mut job: BoxFuture<'static, ()> =
            Box::pin(job(shared.clone(), claim, end, pending, reply));
        // On the caller's own runtime a release that needs no waiting is done at once: a dropped
        // guard of `memory:` has released when `drop` returns, whatever becomes of the runtime.
        if shared.home.is_caller() {
            let mut context = Context::from_waker(Waker::noop());
            if shared.home.poll_here(&mut job, &mut context).is_ready() {
                return;
            }
        }
        let janitor = &shared.janitor;
        let mut desk = janitor.desk();
        desk.jobs.push_back(job);
        let start = !std::mem::replace(&mut desk.running, true);
        drop(desk);
        if start {
            shared.home.spawn(run(Running(janitor.clone())));
        }
        janitor.woken.notify_one();
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let mut desk = self.janitor.desk();
        desk.open.remove(&self.number);
        let blocked = desk.blocked > 0;
        drop(desk);
        self.janitor.done.notify_waiters();
        // Telling threads is a system call, also when there are none.
        if blocked {
            self.janitor.done_blocking.notify_all();
        }
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} open", self.open.len())
    }
}

/// The janitor's task: works off what is on the desk, some at a time, and ends when nothing is
/// left.
async fn run(running: Running) {
    let janitor = &running.0;
    let mut jobs = FuturesUnordered::new();
    loop {
        {
            let mut desk = janitor.desk();
            while jobs.len() < AT_ONCE
                && let Some(job) = desk.jobs.pop_front()
            {
                jobs.push(job);
            }
            if jobs.is_empty() {
                // Under the lock, so that a job submitted now starts a new task.
                desk.running = false;
                return;
            }
        }
        tokio::select! {
            biased;
            Some(()) = jobs.next() => {}
            () = janitor.woken.notified() => {}
        }
    }
}

/// Lets the next job start a new task when this one ends with its runtime.
struct Running(Arc<Janitor>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.desk().running = false;
    }
}

/// Releases until it is answered or moot.
async fn job(
    shared: Arc<Shared>,
    claim: Claim,
    end: Moment,
    pending: Pending,
    mut reply: Option<oneshot::Sender<Result<bool>>>,
) {
    let limit = Shared::answer_limit(claim.ttl);
    let mut pause = Duration::from_millis(20);
    loop {
        let answer = shared.call(limit, shared.backend.release(&claim)).await;
        let answered = answer.is_ok();
        if let Some(reply) = reply.take() {
            // Whoever released may have stopped waiting; the release counts all the same.
            let _unwanted = reply.send(answer);
        }
        if answered || shared.clock.now() >= end {
            break;
        }
        shared.clock.sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    drop(pending);
}

/// How many releases are under way at the same time.
const AT_ONCE: usize = 64;
