//! The renewer's schedule: what to do next for each lease, ordered by time.
//!
//! Every lease has one entry, under the earliest of its three times: its next renewal, the moment
//! to start watching it for a loss, and its end. The lease remembers under which time that is
//! (`LeaseState::listed`), so that its entry is found. An entry is only ever changed by taking it
//! out and inserting it again, so that the two cannot go out of step.
//!
//! A client may hold a million locks, and renews each every few seconds: what is read of every lock
//! in every round would be most of its CPU time. So an entry has what the schedule needs to skip
//! it, and the lease itself is read only when there is something to do for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::LostReason;
use crate::engine::lease_state::LeaseState;
use crate::support::clock::Moment;

/// How many renewals go into one call.
pub(crate) const BATCH: u32 = 500;
/// Renewals that are due so soon go along with one that is due now.
const COALESCE: Duration = Duration::from_secs(1);

/// Every held lease of a client, and when to act on it next.
#[derive(Debug)]
pub(crate) struct Schedule {
    /// By the next time of the entry, and the number of the claim.
    entries: BTreeMap<(Moment, u64), Entry>,
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
    /// How much earlier than due its renewal may go along with others, in ms.
    early_ms: u32,
    /// `NEVER` while a renewal is under way, and for a fixed lease.
    pub(crate) renew_at: Moment,
    /// `NEVER` while the backend's hint is awaited.
    pub(crate) watch_at: Moment,
    /// With how many claims at most it is renewed in one call.
    pub(crate) batch: u32,
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
    pub(crate) batch: u32,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            entries: BTreeMap::new(),
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
    pub(crate) fn insert(&mut self, entry: Entry) -> bool {
        let listed = entry.next();
        let sooner = listed < self.asleep_until;
        entry.lease.listed.set(listed);
        self.entries.insert((listed, entry.lease.claim.owner.number()), entry);
        sooner
    }

    pub(crate) fn remove(&mut self, lease: &LeaseState) -> Option<Entry> {
        // No other lease has this number: if this one is not in the schedule, nothing is found.
        self.entries.remove(&(lease.listed.get(), lease.claim.owner.number()))
    }

    /// Changes the times of one entry, if it is still there.
    pub(crate) fn reschedule(&mut self, lease: &LeaseState, change: impl FnOnce(&mut Entry)) {
        if let Some(mut entry) = self.remove(lease) {
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
        work.next = self.entries.first_key_value().map_or(Moment::NEVER, |((next, _), _)| *next);
        self.asleep_until = work.next;
        work
    }

    /// Collects the work of every entry that is listed up to `horizon`. An ended lease leaves the
    /// schedule; every other entry is inserted again with its next time.
    fn collect(&mut self, now: Moment, horizon: Moment, work: &mut DueWork) {
        let listed = self.entries.range(..=(horizon, u64::MAX));
        let has_work = |((next, _), entry): &(&(Moment, u64), &Entry)| {
            *next <= now || entry.is_renewed_by(now, horizon)
        };
        let keys: Vec<_> = listed.filter(has_work).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(mut entry) = self.entries.remove(&key) else { continue };
            if let Some(reason) = entry.lease.ended_by(now) {
                work.ended.push((entry.lease, reason));
                continue;
            }
            if entry.watch_at <= now {
                entry.watch_at = Moment::NEVER;
                work.watch.push(entry.lease.clone());
            }
            if entry.is_renewed_by(now, horizon) {
                entry.renew_at = Moment::NEVER;
                work.renew.push(DueRenewal { lease: entry.lease.clone(), batch: entry.batch });
            }
            self.insert(entry);
        }
    }
}

impl Entry {
    pub(crate) fn new(lease: Arc<LeaseState>, renew_at: Moment, watch_at: Moment) -> Entry {
        // At most a tenth of its interval: else a client with many locks would renew them all at
        // the pace of the most frequent one.
        let early = lease.renew_every.map_or(Duration::ZERO, |every| every / 10);
        let early_ms = u32::try_from(early.as_millis()).unwrap_or(u32::MAX);
        Entry { lease, early_ms, renew_at, watch_at, batch: BATCH }
    }

    /// Whether its renewal is due, or goes along with others up to `horizon`.
    fn is_renewed_by(&self, now: Moment, horizon: Moment) -> bool {
        self.renew_at <= horizon.min(now + Duration::from_millis(self.early_ms.into()))
    }

    fn next(&self) -> Moment {
        self.renew_at.min(self.watch_at).min(self.lease.end())
    }
}
