//! The renewer: one task per client that renews every held lock in batches and notices its loss.
//!
//! **State.** A [`Schedule`] of all held leases under one mutex. The task sleeps until the next
//! entry is due, takes the due work out, and sends it; responses, hints and new locks wake it.
//!
//! **Invariants.**
//! - A lock ends here only because the server said so or because its lease is over on the client's
//!   own clock. A renewal that failed or got no response proves nothing: it is repeated until the
//!   lease ends.
//! - An ended lease stays ended: a response that comes late extends nothing (`LeaseState::extend`).
//! - One claim has at most one renewal under way: its entry has no renewal time until the response.
//! - Every lost lock is released too: the backend may keep something of the claim, and the server
//!   may have carried out a renewal whose response was lost.
//!
//! **Renewals fail alone.** One call has one limit, so that only claims with similar limits share
//! it: otherwise a short lease that fails would take a long one along again and again. And what
//! failed together is repeated apart, in calls of a thirty-second of the size: one claim whose
//! server is frozen, or whose row is blocked, must not keep the others unconfirmed until their
//! leases end.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::unconstrained;

use crate::backend::LostReason;
use crate::engine::ClientInner;
use crate::engine::lease_state::LeaseState;
use crate::engine::releaser::Releaser;
use crate::engine::schedule::{BATCH, DueRenewal, Entry, Schedule};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::support::clock::Moment;
use crate::support::sync::Mutex;

/// How long a lock is held before the backend watches it: most are held for less.
const WATCH_AFTER: Duration = Duration::from_millis(20);
/// The pause between a hint that a lock may be lost and the next watch of that lock.
const WATCH_AGAIN: Duration = Duration::from_millis(250);
/// Into how many calls a call that failed is split. There is time for two or three tries before the
/// lease ends, so that they have to be small at once.
const SPLIT: usize = 32;

/// The held leases of a client, and the task that renews them.
#[derive(Debug, Default)]
pub(crate) struct Renewer {
    schedule: Mutex<Schedule>,
    woken: Notify,
    emptied: Notify,
}

/// The responses to one call of `renew`.
struct RenewalCall {
    sent: Moment,
    responses: Vec<(Arc<LeaseState>, Result<Duration>)>,
}

impl Renewer {
    /// Registers a held lock for renewal, and starts the task if it does not run.
    pub(crate) fn add(
        inner: &Arc<ClientInner>,
        lease: Arc<LeaseState>,
        sent: Moment,
        ttl: Duration,
    ) {
        let renewer = &inner.renewer;
        let mut schedule = renewer.schedule();
        if schedule.stopped {
            // Nothing would renew it or notice its end: it ends at once.
            drop(schedule);
            if lease.finish(LostReason::Shutdown).is_ok() {
                let pending = inner.releaser.begin(lease.key.clone());
                Releaser::release_in_background(inner, lease.claim.clone(), pending);
            }
            return;
        }
        // A pushed grant may have less than a ttl left: then it is renewed sooner.
        let renew_at = lease.renew_every.map_or(Moment::NEVER, |every| sent + every.min(ttl / 3));
        let watch_at = lease.since + WATCH_AFTER;
        if schedule.insert(Entry::new(lease, renew_at, watch_at)) {
            renewer.woken.notify_one();
        }
        let starts = !std::mem::replace(&mut schedule.running, true);
        drop(schedule);
        if starts {
            inner.executor.spawn(run(RenewerTask(inner.clone())));
        }
    }

    /// Removes a lock that was released.
    pub(crate) fn remove(&self, lease: &LeaseState) {
        let mut schedule = self.schedule();
        schedule.remove(lease);
        if schedule.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Everything that is held now.
    pub(crate) fn leases(&self) -> Vec<Arc<LeaseState>> {
        self.schedule().leases().cloned().collect()
    }

    /// Returns when nothing is held.
    pub(crate) async fn until_empty(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.schedule().is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Ends the task.
    pub(crate) fn stop(&self) {
        self.schedule().stopped = true;
        self.woken.notify_one();
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock()
    }
}

/// The task of the renewer.
async fn run(running: RenewerTask) {
    let inner = &running.0;
    let mut calls = FuturesUnordered::new();
    let mut watches = FuturesUnordered::new();
    loop {
        let work = {
            let mut schedule = inner.renewer.schedule();
            if schedule.stopped {
                return;
            }
            schedule.due_work(inner.clock.now())
        };
        for (lease, reason) in work.ended {
            on_ended(inner, &lease, reason);
        }
        calls.extend(batches(work.renew).into_iter().map(|batch| renew(inner.clone(), batch)));
        watches.extend(work.watch.into_iter().map(|lease| watch(inner.clone(), lease)));
        tokio::select! {
            // In a fixed order, so that a simulated schedule can be replayed. Responses come before
            // new work, which is collected in every round anyway.
            biased;
            Some(renewal) = calls.next() => on_renewal(inner, renewal),
            Some(lease) = watches.next() => {
                on_hint(inner, &lease);
                // A broken connection fires all hints at once; collected together, they are renewed
                // in few calls.
                while let Some(Some(lease)) = unconstrained(watches.next()).now_or_never() {
                    on_hint(inner, &lease);
                }
            }
            () = inner.renewer.woken.notified() => {}
            () = inner.clock.sleep_until(work.next) => {}
        }
    }
}

/// Lets the next `add` start a new task when this one ends together with its runtime.
struct RenewerTask(Arc<ClientInner>);

impl Drop for RenewerTask {
    fn drop(&mut self) {
        self.0.renewer.schedule().running = false;
    }
}

/// Sorts renewals into calls. Claims share a call if they may be in batches of the same size, and
/// if their limits are within a factor of two.
fn batches(due: Vec<DueRenewal>) -> Vec<Vec<Arc<LeaseState>>> {
    let mut groups: BTreeMap<(u32, u32), Vec<Arc<LeaseState>>> = BTreeMap::new();
    for DueRenewal { lease, batch } in due {
        let limit = ClientInner::response_limit(lease.claim.ttl).as_millis();
        groups.entry((batch, limit.max(1).ilog2())).or_default().push(lease);
    }
    let calls = groups.into_iter().flat_map(|((batch, _), group)| {
        group.chunks(batch as usize).map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    calls.collect()
}

/// Sends one call of `renew`. Its leases count from before it.
async fn renew(inner: Arc<ClientInner>, batch: Vec<Arc<LeaseState>>) -> RenewalCall {
    let sent = inner.clock.now();
    let min_ttl = inner.info.min_ttl;
    let claims: Vec<_> = batch.iter().map(|lease| lease.renewal(sent, min_ttl)).collect();
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let call = async { Ok(inner.backend.renew(&claims).await) };
    let responses = match inner.call(ClientInner::response_limit(shortest), call).await {
        Ok(responses) => responses,
        Err(error) => vec![Err(error); batch.len()],
    };
    let missing = || Err(Error::new(ErrorKind::Internal, "the backend left out a response"));
    let responses = responses.into_iter().chain(std::iter::repeat_with(missing));
    RenewalCall { sent, responses: batch.into_iter().zip(responses).collect() }
}

fn on_renewal(inner: &Arc<ClientInner>, renewal: RenewalCall) {
    let sent = renewal.sent;
    let smaller = u32::try_from(renewal.responses.len() / SPLIT).unwrap_or(BATCH).max(1);
    for (lease, response) in renewal.responses {
        match response {
            Ok(ttl) => on_renewed(inner, &lease, sent, ttl),
            Err(error) if error.kind() == ErrorKind::Lost => {
                let reason = error.gone_reason().unwrap_or_else(|| lease.likely_reason());
                on_lost(inner, &lease, reason);
            }
            Err(error) => on_renewal_failed(inner, &lease, smaller, error),
        }
    }
}

fn on_renewed(inner: &ClientInner, lease: &LeaseState, sent: Moment, ttl: Duration) {
    let Some(margin) = lease.extend(sent, ttl) else { return };
    let next = lease.renew_every.map_or(Moment::NEVER, |every| sent + every.min(ttl / 2));
    inner.renewer.schedule().reschedule(lease, |entry| {
        entry.renew_at = next;
        entry.batch = BATCH;
    });
    let (key, token) = (lease.key.clone(), lease.token);
    inner.observers.tell(|| Event::Renewed { key, token, margin });
}

/// The server said that the claim is no longer held.
pub(super) fn on_lost(inner: &Arc<ClientInner>, lease: &Arc<LeaseState>, reason: LostReason) {
    if inner.renewer.schedule().remove(lease).is_none() {
        return;
    }
    match lease.finish(reason) {
        Ok(()) => on_ended(inner, lease, reason),
        Err(earlier) => on_ended(inner, lease, earlier),
    }
}

/// Whether the lock is still held is unknown: the renewal is repeated soon, in a smaller batch.
fn on_renewal_failed(inner: &ClientInner, lease: &LeaseState, batch: u32, cause: Error) {
    let now = inner.clock.now();
    let pause = (lease.claim.ttl / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
    inner.renewer.schedule().reschedule(lease, |entry| {
        entry.renew_at = now + pause;
        entry.batch = entry.batch.min(batch);
    });
    let (key, token, margin) = (lease.key.clone(), lease.token, lease.end().since(now));
    inner.observers.tell(|| Event::RenewalFailed { key, token, margin, cause });
}

/// Handles a lock that ended without being released by its guard.
fn on_ended(inner: &Arc<ClientInner>, lease: &Arc<LeaseState>, reason: LostReason) {
    inner.renewer.emptied.notify_waiters();
    if matches!(reason, LostReason::Released | LostReason::Shutdown) {
        return;
    }
    inner.observers.tell(|| Event::Lost(lease.lost_by(reason)));
    let pending = inner.releaser.begin(lease.key.clone());
    Releaser::release_in_background(inner, lease.claim.clone(), pending);
}

/// Awaits the backend's hint that a lock may be lost, for as long as it is held.
async fn watch(inner: Arc<ClientInner>, lease: Arc<LeaseState>) -> Arc<LeaseState> {
    let mut hint = AssertUnwindSafe(inner.backend.until_lost(&lease.claim)).catch_unwind();
    poll_fn(|context| match lease.poll_ended(context) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => hint.poll_unpin(context).map(drop),
    })
    .await;
    drop(hint);
    lease
}

/// A lock may be lost: renew it now, which shows it, and watch it again a little later, so that a
/// hint that fires too often does not make a hot loop.
fn on_hint(inner: &ClientInner, lease: &LeaseState) {
    let now = inner.clock.now();
    inner.renewer.schedule().reschedule(lease, |entry| {
        entry.renew_at = now;
        entry.watch_at = now + WATCH_AGAIN;
    });
}
