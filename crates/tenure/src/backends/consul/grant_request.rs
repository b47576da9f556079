//! The transaction that grants a claim: what it assumes and checks, what it writes, and what its
//! refusal says. The protocol is described in `acquire`.

use super::acquire::Acquisition;
use super::claims::{GrantKey, StoredGrant};
use super::connection::api::{KvEntry, Refusal, TxnOp, is_refused};
use super::error;
use super::layout::{LOCK_FLAG, Marker};
use super::snapshot;
use crate::backend::Mode;
use crate::error::Result;

/// What the transaction assumes, and therefore checks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Preconditions {
    /// The claim has a queue entry: it may be granted although the queue marker exists.
    pub(super) queued: bool,
    /// The index of the lock's key, if a foreign client left it behind.
    pub(super) leftover: Option<u64>,
    /// The index of a queue marker without queue entries.
    pub(super) empty_queue: Option<u64>,
    /// The index of the holders marker. For a claim to permits it stands for those that were
    /// counted; an exclusive claim has seen it beside none.
    pub(super) holders: Option<u64>,
    /// The index of the permits marker, if a reader has seen it beside no permits.
    pub(super) permits: Option<u64>,
}

/// Which keys kept the claim from the grant.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockedBy {
    pub(super) lock: bool,
    pub(super) queue: bool,
    /// Holders beside others; or only their marker, which may be left over.
    pub(super) holders: bool,
}

impl BlockedBy {
    pub(super) const HOLDERS: BlockedBy = BlockedBy { lock: false, queue: false, holders: true };
    /// The lock is assumed to be held as well.
    pub(super) const QUEUE: BlockedBy = BlockedBy { lock: true, queue: true, holders: false };
}

/// The operations of the transaction: checks, then the grant, then the claim's own queue entry.
pub(super) fn ops(acquisition: &Acquisition<'_>, conditions: Preconditions) -> Vec<TxnOp> {
    let keys = &acquisition.keys;
    let owner = acquisition.claim.owner;
    let mut ops = vec![TxnOp::CheckAbsent(keys.tombstone(owner))];
    ops.push(match conditions.leftover {
        Some(index) => TxnOp::CheckIndex(keys.lock(), index),
        None => TxnOp::CheckAbsent(keys.lock()),
    });
    // A waiter does not check the queue marker: it is there for claims like this one.
    if !conditions.queued {
        check_gone(&mut ops, keys.marker(Marker::Queue), conditions.empty_queue);
    }
    match acquisition.claim.mode {
        Mode::Exclusive => {
            check_gone(&mut ops, keys.marker(Marker::Holders), conditions.holders);
            if conditions.holders.is_some() {
                ops.push(TxnOp::Delete(keys.marker(Marker::Permits)));
            }
            ops.push(lock(acquisition, keys.lock(), LOCK_FLAG));
        }
        Mode::Shared => {
            check_gone(&mut ops, keys.marker(Marker::Permits), conditions.permits);
            // Refused during the lock-delay of a writer that crashed, which only the lock's own key
            // has. Nothing of it stays.
            ops.push(lock(acquisition, keys.lock(), LOCK_FLAG));
            ops.push(TxnOp::Delete(keys.lock()));
            hold(&mut ops, acquisition);
        }
        Mode::Permits { .. } => {
            // Unchanged since the permits that are out were counted, and no reader was seen.
            ops.push(match conditions.holders {
                Some(index) => TxnOp::CheckIndex(keys.marker(Marker::Holders), index),
                None => TxnOp::CheckAbsent(keys.marker(Marker::Holders)),
            });
            hold(&mut ops, acquisition);
            ops.push(TxnOp::Set(keys.marker(Marker::Permits), owner.to_string()));
        }
    }
    if conditions.queued {
        // Wakes the next waiter, which watches the lock from then on.
        ops.push(TxnOp::Delete(keys.queue_entry(owner)));
    }
    ops
}

/// A marker is absent, or is deleted because it stands for nothing.
fn check_gone(ops: &mut Vec<TxnOp>, marker: String, left_over: Option<u64>) {
    match left_over {
        None => ops.push(TxnOp::CheckAbsent(marker)),
        Some(index) => {
            ops.push(TxnOp::CheckIndex(marker.clone(), index));
            ops.push(TxnOp::Delete(marker));
        }
    }
}

/// A grant beside others. A repeated request does not write it again, so that its index stays.
fn hold(ops: &mut Vec<TxnOp>, acquisition: &Acquisition<'_>) {
    let owner = acquisition.claim.owner;
    let held = acquisition.keys.held(owner);
    ops.push(TxnOp::CheckAbsent(held.clone()));
    ops.push(lock(acquisition, held, 0));
    ops.push(TxnOp::Set(acquisition.keys.marker(Marker::Holders), owner.to_string()));
}

fn lock(acquisition: &Acquisition<'_>, key: String, flags: u64) -> TxnOp {
    let session = acquisition.record.session.id.clone();
    TxnOp::Lock { key, session, flags, value: acquisition.lock_record() }
}

/// The grant, from what the transaction wrote.
pub(super) fn granted(acquisition: &Acquisition<'_>, entries: &[KvEntry]) -> Result<StoredGrant> {
    if acquisition.claim.mode == Mode::Exclusive {
        let lock = written(entries, &acquisition.keys.lock())?;
        let token = snapshot::token(lock)?;
        return Ok(StoredGrant { token, index: lock.modified, key: GrantKey::Lock });
    }
    let held = written(entries, &acquisition.keys.held(acquisition.claim.owner))?;
    let set = written(entries, &acquisition.keys.marker(Marker::Holders))?;
    let key = GrantKey::Held { first: set.created == set.modified };
    Ok(StoredGrant { token: snapshot::token(held)?, index: held.modified, key })
}

/// What the transaction wrote last under this key.
pub(super) fn written<'a>(entries: &'a [KvEntry], key: &str) -> Result<&'a KvEntry> {
    entries.iter().rev().find(|entry| entry.key == key).ok_or_else(error::incomplete)
}

/// Why the transaction was refused.
pub(super) fn blocked_by(
    acquisition: &Acquisition<'_>,
    ops: &[TxnOp],
    refusals: &[Refusal],
) -> BlockedBy {
    let keys = &acquisition.keys;
    let refused = |key: &str| is_refused(ops, refusals, key);
    BlockedBy {
        lock: refused(&keys.lock()),
        queue: refused(&keys.marker(Marker::Queue)),
        holders: refused(&keys.marker(Marker::Holders))
            || refused(&keys.marker(Marker::Permits))
            || refused(&keys.held(acquisition.claim.owner)),
    }
}
