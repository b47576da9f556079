//! Background releases: of released and dropped guards, of lost locks, and of cancelled acquires.
//!
//! **State.** Every claim that may have left something at the server is *open* from the moment in
//! which its caller could learn that it ended ([`Releaser::begin`]) until the server has responded
//! to its release. One task per client sends the releases, a bounded number at a time; `flush`,
//! `shutdown` and the drop of a client's last handle wait for open claims.
//!
//! **Invariant.** A release is repeated until the server has responded, for as long as the client
//! lives: also when no caller waits for it any more, and also when its lease should have ended long
//! ago. Only the server's response proves that nothing of the claim is left there.
//!
//! **Races that it prevents.** A request that was sent into an outage longer than the ttl may be
//! carried out when the network heals, and would hold the lock for a whole lease. A claim that
//! belongs to a session which is kept alive for other claims does not end with its own lease. And a
//! release that fails because one server is frozen must not delay the releases of others: first
//! tries and repetitions have separate limits.
//!
//! - `open`: the releases that are not confirmed, and waiting for them

mod open;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, Semaphore};

use self::open::OpenReleases;
pub(crate) use self::open::Pending;
use crate::backend::Claim;
use crate::engine::ClientInner;
use crate::engine::in_place::InPlace;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::support::backoff::Backoff;
use crate::support::clock::{Clock, Moment};
use crate::support::short_wait;
use crate::support::sync::Mutex;

/// How many first tries, and how many repetitions, are under way at the same time.
pub(crate) const AT_ONCE: usize = 64;
/// Up to how many open releases a dropped guard sends its own at once. More than the tasks that
/// usually share a client, each of which may have one under way: else the next request of a task
/// would overtake its release, and find the lock busy.
const SENT_ON_DROP: usize = 256;
/// The pauses between two tries of one release.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest pause before a repetition, whatever else succeeds.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// The releases that are still to be confirmed.
pub(crate) struct Releaser {
    open: OpenReleases,
    jobs: Mutex<Jobs>,
    woken: Notify,
    /// Notified when a release was confirmed: those that failed before may succeed now.
    confirmed: Notify,
    /// Limits the repetitions that are under way at the same time. First tries have a limit of
    /// their own: repetitions to a frozen server must not delay them.
    repetitions: Semaphore,
}

/// What the task of the releaser has to do.
#[derive(Default)]
struct Jobs {
    submitted: VecDeque<BoxFuture<'static, Tried>>,
    /// Whether the task runs.
    running: bool,
}

/// One release.
struct ReleaseJob {
    claim: Claim,
    end: Moment,
    pending: Pending,
}

/// What the first try of a release came to.
struct Tried {
    response: Result<bool>,
    /// The job, if it has to be repeated.
    repeat: Option<ReleaseJob>,
}

impl Default for Releaser {
    fn default() -> Releaser {
        Releaser {
            open: OpenReleases::default(),
            jobs: Mutex::default(),
            woken: Notify::new(),
            confirmed: Notify::new(),
            repetitions: Semaphore::new(AT_ONCE),
        }
    }
}

impl Releaser {
    /// Counts a release as begun. Call it before the caller can learn that its claim has ended, so
    /// that a `flush` after that waits for the release.
    pub(crate) fn begin(self: &Arc<Self>, key: Key) -> Pending {
        Pending::new(self, key)
    }

    /// Releases a claim in the background: its caller does not wait for the response.
    pub(crate) fn release_in_background(inner: &Arc<ClientInner>, claim: Claim, pending: Pending) {
        let mut trying: BoxFuture<'static, Tried> =
            Box::pin(first(inner.clone(), ReleaseJob::new(inner, claim, pending)));
        // Begun on this thread: the request is sent when `drop` returns, also if the process ends
        // then, and before any request that the caller sends next, which would find the lock busy.
        // On the caller's own runtime, a release that need not wait is even finished here. Not in a
        // forked child, which shares the connection with its parent; and not when very many guards
        // are dropped at once, whose requests would only wait at the server.
        let few = inner.releaser.open.len() <= SENT_ON_DROP;
        if few && inner.executor.check().is_ok() {
            let mut context = Context::from_waker(Waker::noop());
            let poll = || short_wait::without(|| trying.as_mut().poll(&mut context));
            match inner.executor.in_context(poll) {
                Poll::Ready(Tried { repeat: None, .. }) => return,
                Poll::Ready(tried) => trying = Box::pin(std::future::ready(tried)),
                Poll::Pending => {}
            }
        }
        Releaser::submit(inner, trying);
    }

    /// Releases a lock, with its first try on the caller's thread. The response says whether it was
    /// held until now; after a failure, and if the caller drops this future, the release goes on in
    /// the background.
    pub(crate) async fn release(
        inner: &Arc<ClientInner>,
        claim: Claim,
        pending: Pending,
    ) -> Result<bool> {
        let trying = first(inner.clone(), ReleaseJob::new(inner, claim, pending));
        let tried = InPlace::new(inner.clone(), trying, Releaser::submit).await;
        let response = tried.response.clone();
        if tried.repeat.is_some() {
            Releaser::submit(inner, Box::pin(std::future::ready(tried)));
        }
        response
    }

    /// Returns when every release that was begun before this call is confirmed, or when the leases
    /// of the others should have ended.
    ///
    /// # Errors
    ///
    /// `Unavailable`, with what is not confirmed.
    pub(crate) async fn flush(&self, inner: &ClientInner) -> Result<()> {
        self.open.flush(&inner.clock, inner.info.name).await
    }

    /// Every release that was begun and is not confirmed, as an error.
    pub(crate) fn unconfirmed(&self, name: &str) -> Result<()> {
        self.open.unconfirmed(name)
    }

    /// Blocks while releases are confirmed, at the end of a client: see [`OpenReleases::wait`].
    pub(crate) fn wait(&self, clock: &Clock) {
        self.open.wait(clock);
    }

    /// The last handle of the client was dropped: from now on a release is repeated until its lease
    /// ends, and no longer.
    pub(crate) fn close(&self) {
        self.open.close();
        self.confirmed.notify_waiters();
    }

    /// Leaves the rest of a first try, and its repetitions, to the task of the releaser.
    fn submit(inner: &Arc<ClientInner>, trying: BoxFuture<'static, Tried>) {
        let releaser = &inner.releaser;
        let mut jobs = releaser.jobs.lock();
        jobs.submitted.push_back(trying);
        let start = !std::mem::replace(&mut jobs.running, true);
        drop(jobs);
        if start {
            inner.executor.spawn(run(ReleaserTask(inner.clone())));
        }
        releaser.woken.notify_one();
    }

    /// The pause before a release is repeated: longer the more releases fail, so that a server
    /// which recovers is not overloaded by them.
    fn pause(&self, pause: Duration) -> Duration {
        let rounds = self.open.len().div_ceil(AT_ONCE);
        pause.saturating_mul(u32::try_from(rounds).unwrap_or(u32::MAX).max(1))
    }
}

impl std::fmt::Debug for Releaser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Releaser({} open)", self.open.len())
    }
}

impl ReleaseJob {
    fn new(inner: &ClientInner, claim: Claim, pending: Pending) -> ReleaseJob {
        let end = inner.clock.now() + claim.ttl;
        pending.submitted(end);
        ReleaseJob { claim, end, pending }
    }

    /// Records a failed try. `false` if the release is not to be repeated.
    fn failed(&self, now: Moment, error: Error) -> bool {
        self.pending.failed(error) || now < self.end
    }
}

/// The task of the releaser: sends the submitted releases, some at a time, and ends when nothing is
/// left.
async fn run(running: ReleaserTask) {
    let inner = &running.0;
    let releaser = &inner.releaser;
    let mut jobs = FuturesUnordered::new();
    let mut repetitions = FuturesUnordered::new();
    loop {
        {
            let mut state = releaser.jobs.lock();
            while jobs.len() < AT_ONCE
                && let Some(job) = state.submitted.pop_front()
            {
                jobs.push(job);
            }
            if jobs.is_empty() && repetitions.is_empty() {
                // Under the lock, so that a job submitted now starts a new task.
                state.running = false;
                return;
            }
        }
        tokio::select! {
            biased;
            Some(tried) = jobs.next() => {
                let Tried { repeat: failed, .. } = tried;
                repetitions.extend(failed.map(|job| repeat(inner.clone(), job)));
            }
            Some(()) = repetitions.next() => {}
            () = releaser.woken.notified() => {}
        }
    }
}

/// Lets the next job start a new task when this one ends with its runtime.
struct ReleaserTask(Arc<ClientInner>);

impl Drop for ReleaserTask {
    fn drop(&mut self) {
        self.0.releaser.jobs.lock().running = false;
    }
}

/// The first try.
async fn first(inner: Arc<ClientInner>, job: ReleaseJob) -> Tried {
    let limit = ClientInner::response_limit(job.claim.ttl);
    let response = inner.call(limit, inner.backend.release(&job.claim)).await;
    let again = match &response {
        Ok(_) => {
            inner.releaser.confirmed.notify_waiters();
            false
        }
        Err(failure) => job.failed(inner.clock.now(), failure.clone()),
    };
    Tried { response, repeat: again.then_some(job) }
}

/// Repeats a release until the server has responded.
async fn repeat(inner: Arc<ClientInner>, job: ReleaseJob) {
    let releaser = &inner.releaser;
    let limit = ClientInner::response_limit(job.claim.ttl);
    let mut backoff = Backoff::new(FIRST_PAUSE, limit.min(LONGEST_PAUSE));
    loop {
        wait_to_repeat(&inner, releaser.pause(backoff.next())).await;
        let permit = releaser.repetitions.acquire().await;
        let response = inner.call(limit, inner.backend.release(&job.claim)).await;
        drop(permit);
        let Err(failure) = response else { break };
        if !job.failed(inner.clock.now(), failure) {
            return;
        }
    }
    releaser.confirmed.notify_waiters();
}

/// Waits for the pause, or until another release was confirmed; but never so short that a server
/// which fails for one key and works for another gets its requests in a hot loop.
async fn wait_to_repeat(inner: &ClientInner, pause: Duration) {
    let mut confirmed = std::pin::pin!(inner.releaser.confirmed.notified());
    confirmed.as_mut().enable();
    let floor = pause.min(SHORTEST_WAIT);
    inner.clock.sleep(floor).await;
    tokio::select! {
        () = confirmed => {}
        () = inner.clock.sleep(pause.saturating_sub(floor)) => {}
    }
}
