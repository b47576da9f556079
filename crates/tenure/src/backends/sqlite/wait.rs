//! Who waits for a hint, and when to look for them: at a ring of the bell, at the end of the
//! holder's process, and from time to time, since both can be missed.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::beacon::Session;
use super::bell::Ring;
use super::change::ahead;
use super::row::Row;
use super::store::Store;
use crate::backend::Owner;
use crate::error::Result;
use crate::key::Key;

/// A registered hint. It is fired by sending, and gone when it was.
pub(super) struct Watch {
    pub(super) key: Key,
    pub(super) owner: Owner,
    pub(super) wish: Wish,
    pub(super) fire: oneshot::Sender<()>,
}

/// What a hint waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// That the key may be had. A waiter with a place in the queue is rung; others look often.
    Free { queued: bool },
    /// That the owner may have lost the key.
    Lost,
}

#[derive(Default)]
pub(super) struct Watches {
    watches: HashMap<u64, Watch>,
    owners: HashMap<Owner, Vec<u64>>,
    /// When to look again, earliest first; and by watch.
    due: BTreeSet<(Instant, u64)>,
    due_of: HashMap<u64, Instant>,
    holders: HashMap<u64, Holder>,
}

/// The holder that a watch has seen.
struct Holder {
    session: Session,
    process: Process,
}

enum Process {
    /// Ends with us.
    Ours,
    /// Cannot be watched, or has ended and left its beacon to a child.
    Unknown,
    Watched(OwnedFd),
}

impl Watches {
    /// Subscribes, then looks: what happened in between is not missed.
    pub(super) fn add(&mut self, store: &mut Store, id: u64, watch: Watch) {
        store.bell();
        self.owners.entry(watch.owner).or_default().push(id);
        self.watches.insert(id, watch);
        self.look(store, id);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Watch> {
        let watch = self.watches.remove(&id)?;
        self.holders.remove(&id);
        if let Some(at) = self.due_of.remove(&id) {
            self.due.remove(&(at, id));
        }
        if let Some(ids) = self.owners.get_mut(&watch.owner) {
            ids.retain(|one| *one != id);
            if ids.is_empty() {
                self.owners.remove(&watch.owner);
            }
        }
        Some(watch)
    }

    /// Fires for everybody who was rung.
    pub(super) fn hear(&mut self, store: &mut Store) {
        for (owner, ring) in store.rung() {
            let Some(ids) = self.owners.get(&owner).cloned() else { continue };
            if ring == Ring::Evicted {
                store.evicted.insert(owner);
            }
            ids.into_iter().for_each(|id| self.fire(id));
        }
        if store.is_replaced() {
            let lost = |watch: &Watch| watch.wish == Wish::Lost;
            let ids = self.watches.iter().filter(|(_, watch)| lost(watch)).map(|(id, _)| *id);
            ids.collect::<Vec<_>>().into_iter().for_each(|id| self.fire(id));
        }
    }

    /// Looks for everybody whose time has come.
    pub(super) fn look_around(&mut self, store: &Store) {
        let now = Instant::now();
        while let Some(&(at, id)) = self.due.first().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, id));
            self.due_of.remove(&id);
            self.look(store, id);
        }
    }

    /// When somebody has to look next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The processes whose end is of interest, by watch.
    pub(super) fn processes(&self) -> impl Iterator<Item = (u64, BorrowedFd<'_>)> {
        self.holders.iter().filter_map(|(id, holder)| match &holder.process {
            Process::Watched(handle) => Some((*id, handle.as_fd())),
            Process::Ours | Process::Unknown => None,
        })
    }

    /// The process of the holder that a watch has seen has ended.
    pub(super) fn ended(&mut self, store: &Store, id: u64) {
        if let Some(holder) = self.holders.get_mut(&id) {
            // If a child keeps its beacon, the end of the process must not be heard again and
            // again.
            holder.process = Process::Unknown;
            self.look(store, id);
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.watches.is_empty()
            && self.owners.is_empty()
            && self.due.is_empty()
            && self.due_of.is_empty()
            && self.holders.is_empty()
    }

    fn fire(&mut self, id: u64) {
        if let Some(watch) = self.remove(id) {
            // Whoever waited may have gone away at this very moment.
            let _gone = watch.fire.send(());
        }
    }

    fn look(&mut self, store: &Store, id: u64) {
        let Some(watch) = self.watches.get(&id) else { return };
        match see(store, watch) {
            Ok(Sight::Now) => self.fire(id),
            Ok(Sight::Wait) => {}
            Ok(Sight::Held { holder, rank }) => self.wait_for(store, id, &holder, rank),
            // The next ask of the core meets the same error and can report it.
            Err(_) => self.look_again(id, LOOK_HEAD),
        }
    }

    fn wait_for(&mut self, store: &Store, id: u64, holder: &Row, rank: Option<u32>) {
        let near = rank.is_none_or(|rank| rank < 2);
        let known = self.holders.get(&id).is_some_and(|known| known.session == holder.session);
        if !near {
            self.holders.remove(&id);
        } else if !known {
            let (session, process) = (holder.session, watch_process(holder.pid));
            self.holders.insert(id, Holder { session, process });
        }
        // After the process is watched: one that ended before is seen by its beacon.
        if near && store.dead(holder.session).is_some() {
            return self.fire(id);
        }
        let heard = store.hung_bell().is_some();
        let watched = |holder: &Holder| !matches!(holder.process, Process::Unknown);
        let longest = match rank {
            Some(0) if heard && self.holders.get(&id).is_some_and(watched) => LOOK_HEAD,
            Some(1..) if heard => LOOK_OTHERS,
            _ => LOOK_OFTEN,
        };
        // Expiry is noticed by the first of the queue, and only if that fails by the next.
        let end = holder.left(store.boot.now_ms()) + LATE + STEP * rank.unwrap_or(0);
        let uneven = Duration::from_millis(id * 37 % 50);
        self.look_again(id, end.min(longest + uneven));
    }

    fn look_again(&mut self, id: u64, after: Duration) {
        let at = Instant::now() + after;
        if let Some(before) = self.due_of.insert(id, at) {
            self.due.remove(&(before, id));
        }
        self.due.insert((at, id));
    }
}

/// What a look at the file has shown.
enum Sight {
    /// Worth asking again.
    Now,
    /// Nothing to do but to wait for a ring.
    Wait,
    /// By somebody else; we have this many before us in the queue, if we are in it.
    Held { holder: Row, rank: Option<u32> },
}

fn see(store: &Store, watch: &Watch) -> Result<Sight> {
    let now = store.boot.now_ms();
    let holder = store.head(&watch.key)?.filter(|head| head.place == 0 && head.expires > now);
    let queued = match (watch.wish, &holder) {
        (Wish::Lost, Some(holder)) if holder.owner == watch.owner => return Ok(Sight::Wait),
        (Wish::Lost, _) => return Ok(Sight::Now),
        (Wish::Free { queued }, _) => queued,
    };
    let Some(holder) = holder.filter(|holder| holder.owner != watch.owner) else {
        return Ok(Sight::Now);
    };
    let rank = match store.mine(&watch.key, watch.owner)? {
        Some((place, expires)) if expires > now => {
            let ahead = ahead(&store.conn, watch.key.as_str(), place, now);
            Some(ahead.map_err(|error| store.fault(error))?)
        }
        // Our place is gone: only asking again brings a new one.
        _ if queued => return Ok(Sight::Now),
        _ => None,
    };
    Ok(Sight::Held { holder, rank })
}

/// A handle that becomes readable when the process ends. A hint only: in another namespace of
/// process ids the number means somebody else, or nobody.
#[cfg(target_os = "linux")]
fn watch_process(pid: i32) -> Process {
    use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
    match Pid::from_raw(pid) {
        Some(pid) if pid == getpid() => Process::Ours,
        Some(pid) => match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Process::Watched(handle),
            Err(_) => Process::Unknown,
        },
        None => Process::Unknown,
    }
}

#[cfg(not(target_os = "linux"))]
fn watch_process(pid: i32) -> Process {
    if std::process::id() == pid as u32 { Process::Ours } else { Process::Unknown }
}

/// How long a waiter goes without a look: the first of a queue, whose bell may fail;
const LOOK_HEAD: Duration = Duration::from_secs(1);
/// those behind, for whom the first looks;
const LOOK_OTHERS: Duration = Duration::from_millis(2500);
/// and who cannot be rung, or whose holder's end cannot be heard.
const LOOK_OFTEN: Duration = Duration::from_millis(250);

/// After the end of a lease, so that the look does not come a moment too early.
const LATE: Duration = Duration::from_millis(2);
/// Between the looks of two waiters at the same end.
const STEP: Duration = Duration::from_millis(20);
