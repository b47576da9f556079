//! Joining the queue of a lock: one transaction creates the queue entry, sets the queue marker, and
//! reads who came before.
//!
//! The marker names the owner of the last entry, so that a claim learns its predecessor from the
//! same transaction, however long the queue is. A read of a key that does not exist refuses a whole
//! transaction in Consul. Therefore the transaction reads only the keys that are known to exist,
//! checks that the others do not, and is repeated when that was wrong.

use super::acquire::{Acquisition, BlockedBy};
use super::claims::PredecessorKey;
use super::connection::api::{KvEntry, RefusalReason, TxnOp, TxnOutcome, decisive_reason};
use super::error;
use crate::error::{Error, ErrorKind, Result};

/// How often one acquire tries to join a queue that other clients create or delete meanwhile.
const JOIN_TRIES_MAX: usize = 4;

/// A new queue entry, and what was read when it was created.
pub(super) struct JoinedQueue {
    /// The index that created the entry.
    pub(super) created: u64,
    pub(super) lock: Option<KvEntry>,
    /// Whether other entries were there before.
    pub(super) behind_others: bool,
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
                    // By the positions in `join_ops`: the marker came or went, the lock went.
                    let changed = |op| refusals.iter().any(|refusal| refusal.op == op);
                    blocked.queue ^= changed(1);
                    blocked.lock &= !changed(2);
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
        TxnOp::Get(keys.queue_marker())
    } else {
        TxnOp::CheckAbsent(keys.queue_marker())
    });
    if blocked.lock {
        ops.push(TxnOp::Get(keys.lock()));
    }
    ops.push(TxnOp::Lock {
        key: keys.queue_entry(owner),
        session: acquisition.record.session.id.clone(),
        flags: 0,
        value: acquisition.lock_record(),
    });
    ops.push(TxnOp::Set(keys.queue_marker(), owner.to_string()));
    ops
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
    let marker_before = find(&keys.queue_marker()).filter(|_| blocked.queue);
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
    Ok(JoinedQueue { created, lock, behind_others: marker_before.is_some() || !is_new })
}
