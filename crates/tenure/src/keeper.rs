//! Keeps every held lock alive: one task per client, one timer queue, renewals in batches.
//!
//! Only the server's word or the end of the lease ends a lock here. A failed renewal is doubt: it
//! is tried again until the lease ends.
//!
//! Renewals do not share their fate. One call has one limit, so that only claims whose own limits
//! are alike go together: else a short lease that fails would take a long one along again and
//! again. And what failed together is tried again apart: one claim whose server is frozen, or whose
//! row is blocked, must not keep the others in doubt until their leases end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::Notify;
use tokio::task::unconstrained;

use crate::claim::LostReason;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::janitor::Janitor;
use crate::observe::Event;
use crate::shared::Shared;

/// The book of everything held, and the task that works it off.
#[derive(Debug)]
pub(crate) struct Keeper {
    book: Mutex<Book>,
    woken: Notify,
    emptied: Notify,
}

#[derive(Debug)]
struct Book {
    entries: HashMap<u64, Entry>,
    /// When to look at which entry next; each is in here exactly once.
    due: BTreeSet<(Moment, u64)>,
    /// Until when the task sleeps.
    asleep_until: Moment,
    running: bool,
    stopped: bool,
}

#[derive(Debug)]
struct Entry {
    held: Arc<Held>,
    listed: Moment,
    /// `NEVER` while a renewal is in flight, and for a fixed lease.
    renew_at: Moment,
    /// `NEVER` while the backend's hint is awaited.
    watch_at: Moment,
    /// With how many claims at most it is renewed in one call.
    company: usize,
}

/// What is to be done now, and when to look again.
#[derive(Debug)]
struct Work {
    over: Vec<(Arc<Held>, LostReason)>,
    renew: Vec<Due>,
    watch: Vec<Arc<Held>>,
    next: Moment,
}

/// A renewal to be sent, and which others may go along.
#[derive(Debug)]
struct Due {
    held: Arc<Held>,
    company: usize,
}

/// The answers to one call of `renew`.
struct Renewal {
    sent: Moment,
    answers: Vec<(Arc<Held>, Result<Duration>)>,
}

impl Default for Keeper {
    fn default() -> Keeper {
        let book = Book {
            entries: HashMap::new(),
            due: BTreeSet::new(),
            asleep_until: Moment::NEVER,
            running: false,
            stopped: false,
        };
        Keeper { book: Mutex::new(book), woken: Notify::new(), emptied: Notify::new() }
    }
}

impl Keeper {
    /// Takes a lock into care.
    pub(crate) fn adopt(shared: &Arc<Shared>, held: Arc<Held>, sent: Moment, ttl: Duration) {
        let keeper = &shared.keeper;
        let mut book = keeper.book();
        if book.stopped {
            // Nobody would renew it, nor tell its end: it is over at once.
            drop(book);
            if held.finish(LostReason::Shutdown).is_ok() {
                let pending = shared.janitor.begin(held.key.clone());
                Janitor::withdraw(shared, held.claim.clone(), pending);
            }
            return;
        }
        // A pushed grant may have a shorter lease than was asked for: then renew it sooner.
        let renew_at = held.renew_every.map_or(Moment::NEVER, |every| sent + every.min(ttl / 3));
        // The hint is asked for only when a lock is held for longer than a moment: most are not.
        let watch_at = held.since + WATCH_AFTER;
        let listed = Moment::NEVER;
        let entry = Entry { held, listed, renew_at, watch_at, company: BATCH };
        if book.insert(entry) {
            keeper.woken.notify_one();
        }
        let start = !std::mem::replace(&mut book.running, true);
        drop(book);
        if start {
            shared.home.spawn(run(Running(shared.clone())));
        }
    }

    /// Stops caring for a lock that was released.
    pub(crate) fn forget(&self, held: &Held) {
        let mut book = self.book();
        book.remove(held.claim.owner.number());
        if book.entries.is_empty() {
            self.emptied.notify_waiters();
        }
    }

    /// Everything that is held now.
    pub(crate) fn all(&self) -> Vec<Arc<Held>> {
        self.book().entries.values().map(|entry| entry.held.clone()).collect()
    }

    /// Returns when nothing is held.
    pub(crate) async fn until_empty(&self) {
        loop {
            let mut emptied = std::pin::pin!(self.emptied.notified());
            emptied.as_mut().enable();
            if self.book().entries.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Ends the task.
    pub(crate) fn stop(&self) {
        self.book().stopped = true;
        self.woken.notify_one();
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Whether the task has to be woken for it.
    fn insert(&mut self, mut entry: Entry) -> bool {
        let number = entry.held.claim.owner.number();
        entry.listed = entry.next();
        self.due.insert((entry.listed, number));
        let sooner = entry.listed < self.asleep_until;
        self.entries.insert(number, entry);
        sooner
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.due.remove(&(entry.listed, number));
        Some(entry)
    }

    /// Takes out what is due by `now`. If that includes a renewal, those that are due soon go
    /// along.
    fn work(&mut self, now: Moment) -> Work {
        let mut work = Work { over: vec![], renew: vec![], watch: vec![], next: Moment::NEVER };
        self.collect(now, now, &mut work);
        if !work.renew.is_empty() {
            self.collect(now, now + COALESCE, &mut work);
        }
        work.next = self.due.first().map_or(Moment::NEVER, |(moment, _)| *moment);
        self.asleep_until = work.next;
        work
    }

    fn collect(&mut self, now: Moment, horizon: Moment, work: &mut Work) {
        let due = self.due.range(..=(horizon, u64::MAX));
        let numbers: Vec<u64> = due.map(|(_, number)| *number).collect();
        for number in numbers {
            let Some(mut entry) = self.remove(number) else { continue };
            if let Some(reason) = entry.held.over_by(now) {
                work.over.push((entry.held, reason));
                continue;
            }
            if entry.watch_at <= now {
                entry.watch_at = Moment::NEVER;
                work.watch.push(entry.held.clone());
            }
            let soon = entry.held.renew_every.map_or(now, |every| now + every / 10);
            if entry.renew_at <= soon.min(horizon) {
                entry.renew_at = Moment::NEVER;
                work.renew.push(Due { held: entry.held.clone(), company: entry.company });
            }
            self.insert(entry);
        }
    }

    /// Changes one entry's times.
    fn reschedule(&mut self, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.remove(number) {
            change(&mut entry);
            self.insert(entry);
        }
    }
}

impl Entry {
    fn next(&self) -> Moment {
        self.renew_at.min(self.watch_at).min(self.held.end())
    }
}

/// The keeper's task.
async fn run(running: Running) {
    let shared = &running.0;
    let mut calls = FuturesUnordered::new();
    let mut watches = FuturesUnordered::new();
    loop {
        let work = {
            let mut book = shared.keeper.book();
            if book.stopped {
                return;
            }
            book.work(shared.clock.now())
        };
        for (held, reason) in work.over {
            bury(shared, &held, reason);
        }
        calls.extend(batches(work.renew).into_iter().map(|batch| renew(shared.clone(), batch)));
        watches.extend(work.watch.into_iter().map(|held| watch(shared.clone(), held)));
        tokio::select! {
            // In one order, so that a schedule can be played again; answers before new work, which
            // is looked for each time anyway.
            biased;
            Some(renewal) = calls.next() => settle(shared, renewal),
            Some(number) = watches.next() => {
                suspect(shared, number);
                // All of them come at once when a connection breaks; together they are renewed in
                // few calls.
                while let Some(Some(number)) = unconstrained(watches.next()).now_or_never() {
                    suspect(shared, number);
                }
            }
            () = shared.keeper.woken.notified() => {}
            () = shared.clock.sleep_until(work.next) => {}
        }
    }
}

/// Lets the next adoption start a new task when this one ends with its runtime.
struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.keeper.book().running = false;
    }
}

/// Sorts renewals into calls: together go those that may have the same company, and whose limits
/// are within a factor of two.
fn batches(due: Vec<Due>) -> Vec<Vec<Arc<Held>>> {
    let mut groups: BTreeMap<(usize, u32), Vec<Arc<Held>>> = BTreeMap::new();
    for Due { held, company } in due {
        let limit = Shared::answer_limit(held.claim.ttl).as_millis();
        groups.entry((company, limit.max(1).ilog2())).or_default().push(held);
    }
    let calls = groups.into_iter().flat_map(|((company, _), group)| {
        group.chunks(company).map(<[_]>::to_vec).collect::<Vec<_>>()
    });
    calls.collect()
}

async fn renew(shared: Arc<Shared>, batch: Vec<Arc<Held>>) -> Renewal {
    let sent = shared.clock.now();
    let min_ttl = shared.info.min_ttl;
    let claims: Vec<_> = batch.iter().map(|held| held.renewal(sent, min_ttl)).collect();
    let shortest = claims.iter().map(|claim| claim.ttl).min().unwrap_or_default();
    let call = async { Ok(shared.backend.renew(&claims).await) };
    let answers = match shared.call(Shared::answer_limit(shortest), call).await {
        Ok(answers) => answers,
        Err(error) => vec![Err(error); batch.len()],
    };
    let missing = || Err(Error::new(ErrorKind::Internal, "the backend left out an answer"));
    let answers = answers.into_iter().chain(std::iter::repeat_with(missing));
    Renewal { sent, answers: batch.into_iter().zip(answers).collect() }
}

/// Takes the answers down.
fn settle(shared: &Arc<Shared>, renewal: Renewal) {
    let sent = renewal.sent;
    let apart = (renewal.answers.len() / SPLIT).max(1);
    for (held, answer) in renewal.answers {
        match answer {
            Ok(ttl) => confirm(shared, &held, sent, ttl),
            Err(error) if error.kind() == ErrorKind::Lost => {
                let reason = error.gone_reason().unwrap_or_else(|| held.likely_reason());
                lose(shared, &held, reason);
            }
            Err(error) => doubt(shared, &held, apart, error),
        }
    }
}

fn confirm(shared: &Shared, held: &Held, sent: Moment, ttl: Duration) {
    let Some(margin) = held.extend(sent, ttl) else { return };
    let next = held.renew_every.map_or(Moment::NEVER, |every| sent + every.min(ttl / 2));
    let number = held.claim.owner.number();
    shared.keeper.book().reschedule(number, |entry| {
        entry.renew_at = next;
        entry.company = BATCH;
    });
    let (key, token) = (held.key.clone(), held.token);
    shared.observers.tell(|| Event::Renewed { key, token, margin });
}

/// The server said that the lock is no longer ours.
fn lose(shared: &Arc<Shared>, held: &Arc<Held>, reason: LostReason) {
    if shared.keeper.book().remove(held.claim.owner.number()).is_none() {
        return;
    }
    match held.finish(reason) {
        Ok(()) => bury(shared, held, reason),
        Err(earlier) => bury(shared, held, earlier),
    }
}

/// The server did not say whether the lock is still ours: ask again soon, in smaller company.
fn doubt(shared: &Shared, held: &Held, apart: usize, cause: Error) {
    let now = shared.clock.now();
    let pause = (held.claim.ttl / 20).clamp(Duration::from_millis(5), Duration::from_secs(1));
    let number = held.claim.owner.number();
    shared.keeper.book().reschedule(number, |entry| {
        entry.renew_at = now + pause;
        entry.company = entry.company.min(apart);
    });
    let (key, token, margin) = (held.key.clone(), held.token, held.end().since(now));
    shared.observers.tell(|| Event::Doubt { key, token, margin, cause });
}

/// A lock is over that its guard did not release.
fn bury(shared: &Arc<Shared>, held: &Arc<Held>, reason: LostReason) {
    shared.keeper.emptied.notify_waiters();
    if matches!(reason, LostReason::Released | LostReason::Shutdown) {
        return;
    }
    shared.observers.tell(|| Event::Lost(held.lost_by(reason)));
    // Every claim ends with a release, also a lost one: the backend may keep something of it, and
    // the server may not know that it is over, if it heard a renewal whose answer we missed.
    Janitor::withdraw(shared, held.claim.clone(), shared.janitor.begin(held.key.clone()));
}

/// Awaits the backend's hint that a lock may be gone, for as long as it is held.
async fn watch(shared: Arc<Shared>, held: Arc<Held>) -> u64 {
    let mut hint = AssertUnwindSafe(shared.backend.until_lost(&held.claim)).catch_unwind();
    poll_fn(|context| match held.poll_over(context) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => hint.poll_unpin(context).map(drop),
    })
    .await;
    held.claim.owner.number()
}

/// A hint came: ask the server, and watch again a little later, so that an eager hint is not a
/// loop.
fn suspect(shared: &Shared, number: u64) {
    let now = shared.clock.now();
    shared.keeper.book().reschedule(number, |entry| {
        entry.renew_at = now;
        entry.watch_at = now + WATCH_AGAIN;
    });
}

/// How long a lock is held before its loss is watched for.
const WATCH_AFTER: Duration = Duration::from_millis(20);
/// How soon a hint is asked for again.
const WATCH_AGAIN: Duration = Duration::from_millis(250);
/// Renewals that are due so soon go along with one that is due now.
const COALESCE: Duration = Duration::from_secs(1);
/// How many renewals go into one call.
const BATCH: usize = 500;
/// Into how many calls a call that failed is split. There is time for two or three tries before the
/// lease ends, so that they have to be small at once.
const SPLIT: usize = 32;
