//! Joining the queue of a lock: one transaction creates the queue entry, sets the queue marker, and
//! reads who came before.
//!
//! The marker names the owner of the last entry, so that a claim learns its predecessor from the
//! same transaction, however long the queue is. A read of a key that does not exist refuses a whole
//! transaction in Consul. Therefore the transaction reads only the keys that are known to exist,
//! checks that the others do not, and is repeated when that was wrong.
//!
//! Where holders beside others matter, because they are in the way or because the claim can be one
//! of them, one predecessor says too little: then the transaction reads all keys of the lock. The
//! read of a prefix is never refused.

use super::acquire::Acquisition;
use super::claims::PredecessorKey;
use super::connection::api::{
    KvEntry, RefusalReason, TxnOp, TxnOutcome, decisive_reason, is_refused,
};
use super::error;
use super::grant_request::BlockedBy;
use super::layout::Marker;
use super::snapshot::KeySnapshot;
use crate::backend::Mode;
use crate::error::{Error, ErrorKind, Result};

/// How often one acquire tries to join a queue that other clients create or delete meanwhile.
const JOIN_TRIES_MAX: usize = 4;

/// A new queue entry, and what was read when it was created.
pub(super) struct JoinedQueue {
    /// The index that created the entry.
    pub(super) created: u64,
    pub(super) read: JoinRead,
}

/// What the transaction read.
pub(super) enum JoinRead {
    Lock {
        lock: Option<KvEntry>,
        /// Whether other entries were there before.
        behind_others: bool,
    },
    All(KeySnapshot),
}

/// The outcome of joining.
pub(super) enum JoinOutcome {
    Joined(JoinedQueue),
    Refused(RefusalReason),
}

/// Creates a queue entry at the end of the queue. `blocked` says which keys were seen.
pub(super) async fn join(
    acquisition: &Acquisition<'_>,
    mut blocked: BlockedBy,
) -> Result<JoinOutcome> {
    if blocked.holders || acquisition.claim.mode != Mode::Exclusive {
        return join_reading_all(acquisition).await;
    }
    let claims = &acquisition.context.claims;
    let owner = acquisition.claim.owner;
    for _ in 0..JOIN_TRIES_MAX {
        let earlier = claims.begin_request(owner);
        let ops = join_ops(acquisition, blocked);
        let outcome = acquisition.context.api.transact(&ops).await?;
        claims.end_request(owner, earlier);
        match outcome {
            TxnOutcome::Committed(entries) => {
                return joined(acquisition, &entries, blocked).map(JoinOutcome::Joined);
            }
            TxnOutcome::Refused(refusals) => match decisive_reason(&refusals) {
                RefusalReason::CheckFailed => {
                    // The marker came or went, the lock went.
                    let keys = &acquisition.keys;
                    let changed = |key: &str| is_refused(&ops, &refusals, key);
                    blocked.queue ^= changed(&keys.marker(Marker::Queue));
                    blocked.lock &= !changed(&keys.lock());
                }
                reason => return Ok(JoinOutcome::Refused(reason)),
            },
        }
    }
    let message = "other clients come and go too fast to join the queue";
    Err(Error::new(ErrorKind::Unavailable, message))
}

fn join_ops(acquisition: &Acquisition<'_>, blocked: BlockedBy) -> Vec<TxnOp> {
    let keys = &acquisition.keys;
    let owner = acquisition.claim.owner;
    let mut ops = vec![TxnOp::CheckAbsent(keys.tombstone(owner))];
    ops.push(if blocked.queue {
        TxnOp::Get(keys.marker(Marker::Queue))
    } else {
        TxnOp::CheckAbsent(keys.marker(Marker::Queue))
    });
    if blocked.lock {
        ops.push(TxnOp::Get(keys.lock()));
    }
    ops.extend(entry_ops(acquisition));
    ops
}

fn entry_ops(acquisition: &Acquisition<'_>) -> [TxnOp; 2] {
    let keys = &acquisition.keys;
    let owner = acquisition.claim.owner;
    let entry = TxnOp::Lock {
        key: keys.queue_entry(owner),
        session: acquisition.record.session.id.clone(),
        flags: 0,
        value: acquisition.lock_record(),
    };
    [entry, TxnOp::Set(keys.marker(Marker::Queue), owner.to_string())]
}

async fn join_reading_all(acquisition: &Acquisition<'_>) -> Result<JoinOutcome> {
    let Acquisition { context, claim, keys, .. } = acquisition;
    let mut ops = vec![TxnOp::CheckAbsent(keys.tombstone(claim.owner))];
    ops.extend(entry_ops(acquisition));
    ops.push(TxnOp::Tree(keys.tree()));
    let earlier = context.claims.begin_request(claim.owner);
    let outcome = context.api.transact(&ops).await?;
    context.claims.end_request(claim.owner, earlier);
    let entries = match outcome {
        TxnOutcome::Committed(entries) => entries,
        TxnOutcome::Refused(refusals) => match decisive_reason(&refusals) {
            RefusalReason::CheckFailed => {
                let message = "the claim was cancelled before it could join the queue";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            reason => return Ok(JoinOutcome::Refused(reason)),
        },
    };
    // The two writes return what they wrote; the read comes after them.
    let snapshot = KeySnapshot::new(&claim.key, entries.into_iter().skip(2));
    let own = snapshot.waiters.iter().find(|waiter| waiter.owner == claim.owner);
    let created = own.ok_or_else(error::incomplete)?.entry.created;
    // What is wrong with the lock's key is found by the decision that follows.
    let predecessor = snapshot.predecessor(&claim.key, claim.mode, created);
    let predecessor = predecessor.unwrap_or(PredecessorKey::Unknown);
    let ahead = Some(snapshot.ahead(created));
    context.claims.set_queued(claim.owner, created, ahead, predecessor);
    Ok(JoinOutcome::Joined(JoinedQueue { created, read: JoinRead::All(snapshot) }))
}

fn joined(
    acquisition: &Acquisition<'_>,
    entries: &[KvEntry],
    blocked: BlockedBy,
) -> Result<JoinedQueue> {
    let keys = &acquisition.keys;
    let owner = acquisition.claim.owner;
    let find = |key: &str| entries.iter().find(|entry| entry.key == key);
    let created = find(&keys.queue_entry(owner)).ok_or_else(error::incomplete)?.created;
    // The first entry with the marker's name is the one that was read, before it was set.
    let marker_before = find(&keys.marker(Marker::Queue)).filter(|_| blocked.queue);
    let lock = find(&keys.lock()).cloned();
    // After a lost response the entry is older than this request, and others may be behind it.
    let is_new = entries.last().is_some_and(|marker| marker.modified == created);
    let last_before = marker_before.and_then(|marker| marker.value.parse().ok());
    let predecessor = match (marker_before, last_before) {
        _ if !is_new => PredecessorKey::Unknown,
        (None, _) => {
            PredecessorKey::Holder { index: lock.as_ref().map_or(0, |lock| lock.modified) }
        }
        // The owner that the marker names had its entry when the marker was written, so that the
        // entry can be watched from the marker's index on.
        (Some(marker), Some(last)) => PredecessorKey::Waiter {
            key: keys.queue_entry(last),
            owner: last,
            index: marker.modified,
        },
        (Some(_), None) => PredecessorKey::Unknown,
    };
    let ahead = (is_new && marker_before.is_none()).then_some(0);
    acquisition.context.claims.set_queued(owner, created, ahead, predecessor);
    let behind_others = marker_before.is_some() || !is_new;
    Ok(JoinedQueue { created, read: JoinRead::Lock { lock, behind_others } })
}
