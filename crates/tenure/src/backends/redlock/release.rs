//! Releasing on all nodes, and the tombstones of rounds that were cancelled.
//!
//! **State.** On each node, what `redis` keeps: the lock, the queue entry, the tombstone. In the
//! client, `rounds` remembers for each claim the rounds that were cancelled and the nodes that may
//! still get a request of such a round and are not known to have its tombstone.
//!
//! **The race.** A node that was silent in a round may carry out its request later, and then hold
//! the lock for a round that the claim has cancelled. The claim's later rounds have another name,
//! so that this would keep the claim itself from the node until the lease ends.
//!
//! **The invariant.** A release is confirmed only when the rest of such nodes is so small that what
//! they may hold keeps no client from a majority. Until then the engine repeats it; each
//! repetition, and each further round, writes the missing tombstones again.

use futures_util::future::join_all;

use super::Redlock;
use super::quorum::{Quorum, ReleaseVotes, too_few_respond};
use super::rounds::MissingTombstone;
use crate::backend::{Backend, Claim, Owner};
use crate::error::Result;

pub(super) async fn release(redlock: &Redlock, claim: &Claim) -> Result<bool> {
    let Redlock { quorum, rounds } = redlock;
    let request = rounds.current(claim);
    let released = quorum.nodes().iter();
    let released = released.map(|node| quorum.bounded(node, node.redis.release(&request)));
    let released = ReleaseVotes(join_all(released).await);
    let settled = write_missing_tombstones(redlock, claim).await;
    let held = released.decide(quorum.majority(), &claim.key)?;
    if !settled {
        return Err(too_few_respond(claim.key.as_str()));
    }
    // Not before: a claim that was lost is released too, under the name that the nodes know.
    rounds.forget(claim.owner);
    Ok(held)
}

/// Cancels the current round on all nodes, with tombstones: a node may still get a late request of
/// it. The next round is made under another name. A node that does not respond gets its tombstone
/// later.
///
/// The name changes before anything is sent: this may be dropped while it waits, and the releases
/// may arrive all the same and refuse the old name.
pub(super) async fn cancel_round(redlock: &Redlock, claim: &Claim) {
    let missing = redlock.rounds.cancel_current(claim, redlock.quorum.nodes().len());
    let _written_later = write_tombstones(redlock, claim, missing).await;
}

/// Writes the tombstones that earlier rounds of this claim could not. `true` if so few are missing
/// afterwards that what those nodes may hold under an old name keeps no client from the lock.
pub(super) async fn write_missing_tombstones(redlock: &Redlock, claim: &Claim) -> bool {
    let missing = redlock.rounds.missing_tombstones(claim);
    if missing.is_empty() {
        return true;
    }
    let left = write_tombstones(redlock, claim, missing).await;
    let mut nodes: Vec<usize> = left.into_iter().map(|(_, node)| node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes.len() <= redlock.quorum.nodes().len() - redlock.quorum.majority()
}

/// Returns which tombstones could not be written.
async fn write_tombstones(
    redlock: &Redlock,
    claim: &Claim,
    missing: Vec<MissingTombstone>,
) -> Vec<(Owner, usize)> {
    let written = join_all(missing.iter().map(|one| write_tombstone(&redlock.quorum, one))).await;
    let (written, left): (Vec<_>, Vec<_>) =
        missing.iter().zip(written).partition(|(_, written)| *written);
    let name = |(one, _): (&MissingTombstone, bool)| (one.claim.owner, one.node);
    let written: Vec<_> = written.into_iter().map(name).collect();
    redlock.rounds.tombstones_written(claim.owner, &written);
    left.into_iter().map(name).collect()
}

/// Releases a claim of which a request may still arrive, which leaves a tombstone.
async fn write_tombstone(quorum: &Quorum, missing: &MissingTombstone) -> bool {
    let node = &quorum.nodes()[missing.node];
    quorum.bounded(node, node.redis.release(&missing.claim)).await.is_ok()
}
