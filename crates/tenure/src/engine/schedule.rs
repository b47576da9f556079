//! The renewer's schedule: what to do next for each lease, ordered by time.
//!
//! Every lease has one entry, and every entry is in the time index exactly once, at the earliest of
//! its three times: its next renewal, the moment to start watching it for a loss, and its end. An
//! entry is only ever changed by taking it out and inserting it again, so that the index cannot go
//! out of step with it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::LostReason;
use crate::engine::lease_state::LeaseState;
use crate::support::clock::Moment;

/// How many renewals go into one call.
pub(crate) const BATCH: usize = 500;
/// Renewals that are due so soon go along with one that is due now.
const COALESCE: Duration = Duration::from_secs(1);

/// Every held lease of a client, and when to act on it next.
#[derive(Debug)]
pub(crate) struct Schedule {
    entries: HashMap<u64, Entry>,
    /// Each entry by its next time; exactly once.
    due: BTreeSet<(Moment, u64)>,
    /// Until when the renewer's task sleeps.
    asleep_until: Moment,
    /// Whether the renewer's task runs.
    pub(crate) running: bool,
    /// Whether the client was shut down: nothing is added any more.
    pub(crate) stopped: bool,
}

/// One lease and its next times.
#[derive(Debug)]
pub(crate) struct Entry {
    lease: Arc<LeaseState>,
    /// Under which time the entry is in the index.
    listed: Moment,
    /// `NEVER` while a renewal is under way, and for a fixed lease.
    pub(crate) renew_at: Moment,
    /// `NEVER` while the backend's hint is awaited.
    pub(crate) watch_at: Moment,
    /// With how many claims at most it is renewed in one call.
    pub(crate) batch: usize,
}

/// What is to be done now, and when to look at the schedule again.
#[derive(Debug)]
pub(crate) struct DueWork {
    pub(crate) ended: Vec<(Arc<LeaseState>, LostReason)>,
    pub(crate) renew: Vec<DueRenewal>,
    pub(crate) watch: Vec<Arc<LeaseState>>,
    pub(crate) next: Moment,
}

/// A renewal to be sent, and with how many others it may share a call.
#[derive(Debug)]
pub(crate) struct DueRenewal {
    pub(crate) lease: Arc<LeaseState>,
    pub(crate) batch: usize,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            entries: HashMap::new(),
            due: BTreeSet::new(),
            asleep_until: Moment::NEVER,
            running: false,
            stopped: false,
        }
    }
}

impl Schedule {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<LeaseState>> {
        self.entries.values().map(|entry| &entry.lease)
    }

    /// Inserts an entry. `true` if the renewer's task would sleep past its first time.
    pub(crate) fn insert(&mut self, mut entry: Entry) -> bool {
        let number = entry.lease.claim.owner.number();
        entry.listed = entry.next();
        self.due.insert((entry.listed, number));
        let sooner = entry.listed < self.asleep_until;
        self.entries.insert(number, entry);
        sooner
    }

    pub(crate) fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.due.remove(&(entry.listed, number));
        Some(entry)
    }

    /// Changes the times of one entry, if it is still there.
    pub(crate) fn reschedule(&mut self, number: u64, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.remove(number) {
            change(&mut entry);
            self.insert(entry);
        }
    }

    /// Takes out what is due by `now`. If that includes a renewal, those that are due soon go
    /// along.
    pub(crate) fn due_work(&mut self, now: Moment) -> DueWork {
        let mut work = DueWork { ended: vec![], renew: vec![], watch: vec![], next: Moment::NEVER };
        self.collect(now, now, &mut work);
        if !work.renew.is_empty() {
            self.collect(now, now + COALESCE, &mut work);
        }
        work.next = self.due.first().map_or(Moment::NEVER, |(moment, _)| *moment);
        self.asleep_until = work.next;
        work
    }

    /// Collects the work of every entry that is listed up to `horizon`. An ended lease leaves the
    /// schedule; every other entry is inserted again with its next time.
    fn collect(&mut self, now: Moment, horizon: Moment, work: &mut DueWork) {
        let due = self.due.range(..=(horizon, u64::MAX));
        let numbers: Vec<u64> = due.map(|(_, number)| *number).collect();
        for number in numbers {
            let Some(mut entry) = self.remove(number) else { continue };
            if let Some(reason) = entry.lease.ended_by(now) {
                work.ended.push((entry.lease, reason));
                continue;
            }
            if entry.watch_at <= now {
                entry.watch_at = Moment::NEVER;
                work.watch.push(entry.lease.clone());
            }
            // A renewal goes along early by at most a tenth of its interval: else a client with
            // many locks would renew them all at the pace of the most frequent one.
            let soon = entry.lease.renew_every.map_or(now, |every| now + every / 10);
            if entry.renew_at <= soon.min(horizon) {
                entry.renew_at = Moment::NEVER;
                work.renew.push(DueRenewal { lease: entry.lease.clone(), batch: entry.batch });
            }
            self.insert(entry);
        }
    }
}

impl Entry {
    pub(crate) fn new(lease: Arc<LeaseState>, renew_at: Moment, watch_at: Moment) -> Entry {
        Entry { lease, listed: Moment::NEVER, renew_at, watch_at, batch: BATCH }
    }

    fn next(&self) -> Moment {
        self.renew_at.min(self.watch_at).min(self.lease.end())
    }
}
