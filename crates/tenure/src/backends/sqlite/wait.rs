//! Wait: `until_free` and `until_lost`. When to tell a client that a request is worthwhile.
//!
//! A watch is a registered wait. It fires once, which is a hint: the client then sends a request,
//! which decides. A watch fires
//!
//! - when a **wake-up** for its owner comes, from this process or over the wake socket. The
//!   process that hands off a key sends one to each owner that it offered the key to, and an
//!   eviction sends one to the holder. So a release wakes those that it lets in, and no others;
//! - when the **process of a holder ends** and its session is dead. Only the first two of a queue
//!   watch these processes, by a pidfd: the first one notices, and the second one if the first died
//!   together with the holder. Behind holders that share the key, the second also watches the
//!   first: if that one cannot be granted, it keeps others out;
//! - when a **poll** of the file finds that the key has room, the entry expired, the lock lost, or,
//!   without a queue entry, other holders than before. A watch polls at the first end of a holder's
//!   lease, which may let the first waiter in although others hold on, and from time to time, since
//!   everything else can be missed.
//!
//! **The race.** What changed before the watch was registered sends no more wake-up. So a watch is
//! registered first and then polls once: a change before the poll is found by it, and a change
//! after it finds the watch. In the same way the process of a holder is watched first, and its
//! session is probed afterwards.
//!
//! Only the first of a queue polls at the exact end of a lease; the others follow in steps, so
//! that a lease that expires does not wake them all.
//!
//! `support::wakeups` is not used here. A watch belongs to the thread of the store, together with
//! the time of its next poll and the process that it watches; it fires once, and a thread that
//! ends has to fire all of them, which dropping the senders of the channels does.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::connection::store::OpenStore;
use super::holders::fits;
use super::layout::row::ClaimRow;
use super::liveness::Session;
use super::wake_socket::WakeReason;
use crate::backend::{Mode, Owner};
use crate::error::Result;
use crate::key::Key;
use crate::support::backoff::jitter;
use crate::token::FencingToken;

/// How long the first of a queue goes without a poll: its wake-up may be lost.
const POLL_FIRST: Duration = Duration::from_secs(1);
/// How long the others of a queue go without a poll: the first one polls for them.
const POLL_OTHERS: Duration = Duration::from_millis(2500);
/// How long a watch goes without a poll that no wake-up can reach, or that cannot notice the end of
/// the holder's process.
const POLL_OFTEN: Duration = Duration::from_millis(250);
/// Polls of several watches are spread over this time.
const SPREAD: Duration = Duration::from_millis(50);
/// A poll at the end of a lease comes so much later, so that it is not a moment too early.
const AFTER_END: Duration = Duration::from_millis(2);
/// Between the polls of two waiters of a queue at the end of a lease.
const STEP: Duration = Duration::from_millis(20);
/// How many processes one watch watches: of so many readers the others are found by its polls.
const PROCESSES: usize = 16;

/// A registered wait. It fires by sending, and is removed then.
pub(super) struct HintWatch {
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) wait_for: WatchFor,
    pub(super) fire: oneshot::Sender<()>,
}

/// What a watch waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchFor {
    /// The key may be free. An owner with a queue entry gets a wake-up; others poll often.
    Free { queued: bool },
    /// The owner may have lost the key.
    Lost,
}

/// All watches of one store, by their ids.
#[derive(Default)]
pub(super) struct HintWatches {
    watches: HashMap<u64, HintWatch>,
    owners: HashMap<Owner, Vec<u64>>,
    /// When to poll, the earliest first; and the same by watch.
    due: BTreeSet<(Instant, u64)>,
    due_of: HashMap<u64, Instant>,
    processes: HashMap<u64, Vec<WatchedProcess>>,
    /// The holders that a watch without a queue entry has found.
    seen: HashMap<u64, Vec<Option<FencingToken>>>,
}

/// The process of a holder, or of the first waiter, that a watch has found.
struct WatchedProcess {
    session: Session,
    process: HolderProcess,
}

enum HolderProcess {
    /// This process.
    Own,
    /// It cannot be watched; or it has ended, and a child process has inherited its liveness file.
    Unknown,
    Watched(OwnedFd),
}

impl HintWatches {
    /// Registers a watch, then polls for it.
    pub(super) fn add(&mut self, store: &mut OpenStore, id: u64, watch: HintWatch) {
        store.bind_wake_socket();
        self.owners.entry(watch.owner).or_default().push(id);
        self.watches.insert(id, watch);
        self.poll(store, id);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<HintWatch> {
        let watch = self.watches.remove(&id)?;
        self.processes.remove(&id);
        self.seen.remove(&id);
        if let Some(at) = self.due_of.remove(&id) {
            self.due.remove(&(at, id));
        }
        if let Some(ids) = self.owners.get_mut(&watch.owner) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.owners.remove(&watch.owner);
            }
        }
        Some(watch)
    }

    /// Fires the watches of all owners for which a wake-up has come.
    pub(super) fn deliver_wake_ups(&mut self, store: &mut OpenStore) {
        for (owner, reason) in store.receive_wake_ups() {
            let Some(ids) = self.owners.get(&owner).cloned() else { continue };
            if reason == WakeReason::Evicted {
                store.evicted.insert(owner);
            }
            ids.into_iter().for_each(|id| self.fire(id));
        }
        if store.is_replaced() {
            let lost = |watch: &HintWatch| watch.wait_for == WatchFor::Lost;
            let ids = self.watches.iter().filter(|(_, watch)| lost(watch)).map(|(id, _)| *id);
            ids.collect::<Vec<_>>().into_iter().for_each(|id| self.fire(id));
        }
    }

    /// Polls for all watches whose time has come.
    pub(super) fn poll_due(&mut self, store: &OpenStore) {
        let now = Instant::now();
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            self.due_of.remove(&id);
            self.poll(store, id);
        }
    }

    /// When the next poll is due.
    pub(super) fn next_poll(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The processes whose end is to be noticed, by watch and session.
    pub(super) fn processes(&self) -> impl Iterator<Item = ((u64, Session), BorrowedFd<'_>)> {
        let all = self.processes.iter();
        let all = all.flat_map(|(id, watched)| watched.iter().map(|watched| (*id, watched)));
        all.filter_map(|(id, watched)| match &watched.process {
            HolderProcess::Watched(pidfd) => Some(((id, watched.session), pidfd.as_fd())),
            HolderProcess::Own | HolderProcess::Unknown => None,
        })
    }

    /// A process that a watch has found has ended.
    pub(super) fn process_ended(&mut self, store: &OpenStore, (id, session): (u64, Session)) {
        let mut watched = self.processes.get_mut(&id).into_iter().flatten();
        if let Some(watched) = watched.find(|watched| watched.session == session) {
            // If a child keeps the liveness file locked, the session goes on: the end of the
            // process must not be noticed again and again.
            watched.process = HolderProcess::Unknown;
            self.poll(store, id);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty()
            && self.owners.is_empty()
            && self.due.is_empty()
            && self.due_of.is_empty()
            && self.processes.is_empty()
            && self.seen.is_empty()
    }

    fn fire(&mut self, id: u64) {
        if let Some(watch) = self.remove(id) {
            // The client may have been dropped at this very moment.
            let _ignored = watch.fire.send(());
        }
    }

    fn poll(&mut self, store: &OpenStore, id: u64) {
        let Some(watch) = self.watches.get(&id) else { return };
        match read(store, watch) {
            Ok(Status::Changed) => self.fire(id),
            Ok(Status::Unchanged) => {}
            Ok(Status::Held(held)) => self.wait_for_holders(store, id, &held),
            // The next request of the client meets the same error and can report it.
            Err(_) => self.poll_after(id, POLL_FIRST),
        }
    }

    /// Watches the processes of the holders, and sets the time of the next poll.
    fn wait_for_holders(&mut self, store: &OpenStore, id: u64, held: &Held) {
        let rank = held.rank;
        if rank.is_none() {
            let tokens = held.holders.iter().map(|holder| holder.token).collect();
            let before = self.seen.insert(id, tokens);
            if before.is_some_and(|before| before != self.seen[&id]) {
                return self.fire(id);
            }
        }
        let near: Vec<&ClaimRow> = held.near().collect();
        self.watch_processes(id, &near);
        // After the processes are watched: one that ended before is found by its liveness file.
        let mut probed = HashSet::new();
        let mut sessions = near.iter().map(|row| row.session).filter(|one| probed.insert(*one));
        if sessions.any(|session| store.find_dead(session).is_some()) {
            return self.fire(id);
        }
        let reachable = store.wake_socket().is_some();
        let unknown = |watched: &WatchedProcess| matches!(watched.process, HolderProcess::Unknown);
        let noticed = self.processes.get(&id).is_some_and(|all| !all.iter().any(unknown));
        let longest = match rank {
            Some(0) if reachable && noticed => POLL_FIRST,
            Some(1..) if reachable => POLL_OTHERS,
            _ => POLL_OFTEN,
        };
        // The first of the queue notices the end of a lease, and the next one only if that fails.
        let end = held.first_end(store.boot.now_ms()) + AFTER_END + STEP * rank.unwrap_or(0);
        self.poll_after(id, end.min(longest + jitter(Duration::ZERO, SPREAD)));
    }

    /// Watches the processes of these rows, and no others any more.
    fn watch_processes(&mut self, id: u64, rows: &[&ClaimRow]) {
        let mut before = self.processes.remove(&id).unwrap_or_default();
        let mut watched: Vec<WatchedProcess> = Vec::new();
        for row in rows {
            let session = row.session;
            if watched.len() == PROCESSES || watched.iter().any(|one| one.session == session) {
                continue;
            }
            let known = before.iter().position(|known| known.session == session);
            watched.push(match known {
                Some(known) => before.swap_remove(known),
                None => WatchedProcess { session, process: watch_process(row.pid) },
            });
        }
        if !watched.is_empty() {
            self.processes.insert(id, watched);
        }
    }

    fn poll_after(&mut self, id: u64, pause: Duration) {
        let at = Instant::now() + pause;
        if let Some(before) = self.due_of.insert(id, at) {
            self.due.remove(&(before, id));
        }
        self.due.insert((at, id));
    }
}

/// What a poll found in the file.
enum Status {
    /// A request is worthwhile.
    Changed,
    /// The owner still holds the key. Only a wake-up can end that early.
    Unchanged,
    /// Others hold the key.
    Held(Held),
}

/// A key that has no room for the owner of a watch.
struct Held {
    holders: Vec<ClaimRow>,
    /// The first waiter, if holders share the key.
    first: Option<ClaimRow>,
    /// How many waiters are ahead, if the owner waits.
    rank: Option<u32>,
}

impl Held {
    /// The rows whose sessions this watch has to notice the end of.
    fn near(&self) -> impl Iterator<Item = &ClaimRow> {
        let near = self.rank.is_none_or(|rank| rank < 2);
        let second = self.rank.is_none_or(|rank| rank == 1);
        let holders = self.holders.iter().filter(move |_| near);
        // The first waiter before the holders: there may be more than are watched.
        self.first.iter().filter(move |_| second).chain(holders)
    }

    /// When the first lease or the first queue entry ends that keeps others out.
    fn first_end(&self, now: i64) -> Duration {
        let ends = self.holders.iter().chain(&self.first).map(|row| row.left(now));
        ends.min().unwrap_or_default()
    }
}

fn read(store: &OpenStore, watch: &HintWatch) -> Result<Status> {
    let now = store.boot.now_ms();
    let holders = store.holders(&watch.key)?;
    let own = holders.iter().find(|holder| holder.owner == watch.owner);
    let queued = match watch.wait_for {
        WatchFor::Lost if own.is_some_and(|own| own.expires > now) => {
            return Ok(Status::Unchanged);
        }
        WatchFor::Lost => return Ok(Status::Changed),
        WatchFor::Free { queued } => queued,
    };
    // One lease among several that has ended may be what the first waiter waited for.
    if own.is_some() || holders.is_empty() || holders.iter().any(|holder| holder.expires <= now) {
        return Ok(Status::Changed);
    }
    let first = match holders[0].mode {
        Mode::Exclusive => None,
        _ => store.first_waiter(&watch.key)?,
    };
    if first.as_ref().is_some_and(|first| first.expires <= now || fits(&holders, first.mode)) {
        return Ok(Status::Changed);
    }
    let rank = match store.queue_entry(&watch.key, watch.owner)? {
        Some(entry) if entry.expires > now => Some(store.ahead(&watch.key, entry.position, now)?),
        // The queue entry expired: only another request brings a new one.
        _ if queued => return Ok(Status::Changed),
        _ => None,
    };
    Ok(Status::Held(Held { holders, first, rank }))
}

/// Watches a process by a pidfd, which becomes readable when it ends. A hint only: in another
/// namespace of process ids the number means another process, or none.
#[cfg(target_os = "linux")]
fn watch_process(pid: i32) -> HolderProcess {
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
    match Pid::from_raw(pid) {
        Some(pid) if pid == getpid() => HolderProcess::Own,
        Some(pid) => match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => HolderProcess::Watched(pidfd),
            Err(_) => HolderProcess::Unknown,
        },
        None => HolderProcess::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
fn watch_process(pid: i32) -> HolderProcess {
    if std::process::id() == pid as u32 { HolderProcess::Own } else { HolderProcess::Unknown }
}
