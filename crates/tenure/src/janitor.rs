//! The one place that gives back: what guards release or drop, and what abandoned asks leave
//! behind.
//!
//! A release is repeated until the server has responded, for as long as the client lives: also when
//! nobody waits for it any more, and also when its lease should long be over. Only the server's
//! response proves that nothing of the claim is left there. A request that was sent into a silence
//! longer than the ttl may be carried out when the network heals, and a claim that hangs on a
//! session which is kept alive for others does not end with its own lease.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::claim::Claim;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::shared::Shared;

/// The releases that are still to be done.
#[derive(Debug)]
pub(crate) struct Janitor {
    desk: Mutex<Desk>,
    woken: Notify,
    done: Notify,
    done_blocking: Condvar,
    /// A release was confirmed: those that failed before may be tried at once.
    confirmed: Notify,
    /// Repetitions that are under way at the same time, apart from first tries: those behind a
    /// frozen server must not keep the others waiting.
    repetitions: Semaphore,
}

#[derive(Default)]
struct Desk {
    jobs: VecDeque<BoxFuture<'static, Option<Job>>>,
    /// Everything begun and not done.
    open: BTreeMap<u64, Open>,
    last: u64,
    running: bool,
    /// The last handle of the client is gone: nothing is repeated after its lease.
    closed: bool,
    /// How many threads are blocked until everything is done.
    blocked: usize,
}

/// A claim that may have left something at the server.
struct Open {
    /// The key as the user knows it.
    key: Key,
    /// From when on nobody waits for it any more, though it is still repeated. `None` while the
    /// release was not sent yet.
    end: Option<Moment>,
    /// Why the last try failed.
    failure: Option<Error>,
}

/// Something that has to be given back: counts for `flush` until it is dropped.
#[derive(Debug)]
pub(crate) struct Pending {
    janitor: Arc<Janitor>,
    number: u64,
}

/// One release.
struct Job {
    claim: Claim,
    end: Moment,
    pending: Pending,
    reply: Option<oneshot::Sender<Result<bool>>>,
}

impl Default for Janitor {
    fn default() -> Janitor {
        Janitor {
            desk: Mutex::default(),
            woken: Notify::new(),
            done: Notify::new(),
            done_blocking: Condvar::new(),
            confirmed: Notify::new(),
            repetitions: Semaphore::new(AT_ONCE),
        }
    }
}

impl Janitor {
    pub(crate) fn begin(self: &Arc<Self>, key: Key) -> Pending {
        let mut desk = self.desk();
        desk.last += 1;
        let number = desk.last;
        desk.open.insert(number, Open { key, end: None, failure: None });
        Pending { janitor: self.clone(), number }
    }

    /// Gives back what an ask may have left behind. Nobody waits for the answer.
    pub(crate) fn withdraw(shared: &Arc<Shared>, claim: Claim, pending: Pending) {
        let end = shared.clock.now() + claim.ttl;
        Janitor::submit(shared, Job { claim, end, pending, reply: None });
    }

    /// Gives a lock back. The answer says whether it was held until now; after a first failure the
    /// release goes on in the background.
    pub(crate) fn release(
        shared: &Arc<Shared>,
        claim: Claim,
        pending: Pending,
    ) -> oneshot::Receiver<Result<bool>> {
        let (sender, receiver) = oneshot::channel();
        let end = shared.clock.now() + claim.ttl;
        Janitor::submit(shared, Job { claim, end, pending, reply: Some(sender) });
        receiver
    }

    /// Returns when everything that was begun before this call is done, or when the lease of what
    /// is not should be over.
    ///
    /// # Errors
    ///
    /// `Unavailable`, and what is not done.
    pub(crate) async fn flush(&self, shared: &Shared) -> Result<()> {
        let last = self.desk().last;
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            let Some(end) = self.desk().end(last) else { return Ok(()) };
            if end <= shared.clock.now() {
                return self.desk().failure(last, shared.info.name);
            }
            tokio::select! {
                () = done => {}
                () = shared.clock.sleep_until(end) => {}
            }
        }
    }

    /// What was begun and is not done, as an error.
    pub(crate) fn unconfirmed(&self, name: &str) -> Result<()> {
        self.desk().failure(u64::MAX, name)
    }

    /// Blocks until everything is done or given up, but not for longer than this.
    pub(crate) fn wait(&self, now: Moment, longest: Duration) {
        let mut desk = self.desk();
        desk.blocked += 1;
        let waits = |desk: &mut Desk| desk.end(u64::MAX).is_some_and(|end| end > now);
        let waited = self.done_blocking.wait_timeout_while(desk, longest, waits);
        waited.unwrap_or_else(PoisonError::into_inner).0.blocked -= 1;
    }

    /// The last handle of the client is gone: what failed is repeated until its lease ends, and no
    /// longer.
    pub(crate) fn close(&self) {
        self.desk().closed = true;
        self.confirmed.notify_waiters();
    }

    fn submit(shared: &Arc<Shared>, job: Job) {
        let janitor = &shared.janitor;
        if let Some(open) = janitor.desk().open.get_mut(&job.pending.number) {
            open.end = Some(job.end);
        }
        let mut job: BoxFuture<'static, Option<Job>> = Box::pin(first(shared.clone(), job));
        // On the caller's own runtime a release that needs no waiting is done at once: a dropped
        // guard of `memory:` has released when `drop` returns, whatever becomes of the runtime.
        if shared.home.is_caller() {
            let mut context = Context::from_waker(Waker::noop());
            match shared.home.poll_here(&mut job, &mut context) {
                Poll::Ready(None) => return,
                Poll::Ready(failed) => job = Box::pin(std::future::ready(failed)),
                Poll::Pending => {}
            }
        }
        let mut desk = janitor.desk();
        desk.jobs.push_back(job);
        let start = !std::mem::replace(&mut desk.running, true);
        drop(desk);
        if start {
            shared.home.spawn(run(Running(shared.clone())));
        }
        janitor.woken.notify_one();
    }

    /// How long to wait before a release is repeated: longer, the more of them fail, so that their
    /// number does not make a load of its own.
    fn pause(&self, pause: Duration) -> Duration {
        let rounds = self.desk().open.len().div_ceil(AT_ONCE);
        pause.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX).max(1))
    }

    /// Takes the failure down. `false` if the release is to be given up.
    fn failed(&self, job: &Job, now: Moment, error: Error) -> bool {
        let mut desk = self.desk();
        let (closed, crowded) = (desk.closed, desk.open.len() > MOST_OPEN);
        if let Some(open) = desk.open.get_mut(&job.pending.number) {
            open.failure = Some(error);
        }
        now < job.end || !(closed || crowded)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Desk {
    /// Until when somebody waits for what was begun up to this number; `None` if all of it is done.
    fn end(&self, last: u64) -> Option<Moment> {
        let open = self.open.range(..=last).map(|(_, open)| open);
        open.map(|open| open.end.unwrap_or(Moment::NEVER)).max()
    }

    /// What was begun up to this number and is not done.
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
    let shared = &running.0;
    let janitor = &shared.janitor;
    let mut jobs = FuturesUnordered::new();
    let mut repetitions = FuturesUnordered::new();
    loop {
        {
            let mut desk = janitor.desk();
            while jobs.len() < AT_ONCE
                && let Some(job) = desk.jobs.pop_front()
            {
                jobs.push(job);
            }
            if jobs.is_empty() && repetitions.is_empty() {
                // Under the lock, so that a job submitted now starts a new task.
                desk.running = false;
                return;
            }
        }
        tokio::select! {
            biased;
            Some(failed) = jobs.next() => {
                repetitions.extend(failed.map(|job| repeat(shared.clone(), job)));
            }
            Some(()) = repetitions.next() => {}
            () = janitor.woken.notified() => {}
        }
    }
}

/// Lets the next job start a new task when this one ends with its runtime.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.janitor.desk().running = false;
    }
}

/// The first try. What failed is to be repeated.
async fn first(shared: Arc<Shared>, mut job: Job) -> Option<Job> {
    let limit = Shared::answer_limit(job.claim.ttl);
    let answer = shared.call(limit, shared.backend.release(&job.claim)).await;
    let failure = answer.as_ref().err().cloned();
    if let Some(reply) = job.reply.take() {
        // Whoever released may have stopped waiting; the release counts all the same.
        let _unwanted = reply.send(answer);
    }
    let Some(failure) = failure else {
        shared.janitor.confirmed.notify_waiters();
        return None;
    };
    let again = shared.janitor.failed(&job, shared.clock.now(), failure);
    again.then_some(job)
}

/// Repeats until the server has responded.
async fn repeat(shared: Arc<Shared>, job: Job) {
    let janitor = &shared.janitor;
    let limit = Shared::answer_limit(job.claim.ttl);
    let longest = limit.min(LONGEST_PAUSE);
    let mut pause = FIRST_PAUSE;
    loop {
        wait_to_repeat(&shared, janitor.pause(pause)).await;
        pause = (pause * 2).min(longest);
        let turn = janitor.repetitions.acquire().await;
        let answer = shared.call(limit, shared.backend.release(&job.claim)).await;
        drop(turn);
        let Err(failure) = answer else { break };
        if !janitor.failed(&job, shared.clock.now(), failure) {
            return;
        }
    }
    janitor.confirmed.notify_waiters();
}

/// Waits for as long as this, or until another release was confirmed; but never so short that a
/// server which fails for one key and works for another is asked in a hot loop.
async fn wait_to_repeat(shared: &Shared, pause: Duration) {
    let mut confirmed = std::pin::pin!(shared.janitor.confirmed.notified());
    confirmed.as_mut().enable();
    let floor = pause.min(SHORTEST_WAIT);
    shared.clock.sleep(floor).await;
    tokio::select! {
        () = confirmed => {}
        () = shared.clock.sleep(pause.saturating_sub(floor)) => {}
    }
}

/// How many first tries, and how many repetitions, are under way at the same time.
const AT_ONCE: usize = 64;
/// The pauses between two tries of one release.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a repetition waits at least, whatever else succeeds.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
/// How many unconfirmed releases are kept beyond their leases: a client whose server never comes
/// back must not fill its memory.
const MOST_OPEN: usize = 10_000;
