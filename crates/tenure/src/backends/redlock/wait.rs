//! Waiting for a majority of nodes.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::Redlock;
use super::quorum::random_pause;
use crate::backend::{Backend, Claim, Grant};

/// Returns when the claim should try another round.
///
/// Most nodes that were busy should say that the lock is free, since the first claim that requests
/// it is alone with it for a moment. But the nodes may not agree which waiter is first: a waiter
/// that is notified by some of them tries a little later. A node that was not busy has nothing to
/// say: there the lock was free all the time, because that node lost it, or because the holder won
/// without it.
pub(super) async fn until_free(redlock: &Redlock, claim: &Claim) -> Option<Grant> {
    let Redlock { quorum, rounds } = redlock;
    let request = rounds.current(claim);
    let last_lost = rounds.last_lost(claim.owner);
    // A claim that only watches has requested nothing: a node that is free says so at once, and one
    // is not enough.
    let first = if last_lost.is_some() { 1 } else { quorum.majority() };
    let all = || ((0..quorum.nodes().len()).collect(), 0);
    let (busy, lost): (Vec<usize>, u32) = last_lost.unwrap_or_else(all);
    let mut hints: FuturesUnordered<_> =
        busy.iter().map(|node| quorum.nodes()[*node].redis.until_free(&request)).collect();
    for _ in 0..first {
        if hints.next().await.is_none() {
            // The engine tries again after the time that the busy response named.
            return std::future::pending().await;
        }
    }
    let majority_of_busy = async {
        for _ in first..busy.len() / 2 + 1 {
            hints.next().await;
        }
    };
    // Either way it is time to try.
    let _timed_out = tokio::time::timeout(pause(lost), majority_of_busy).await.is_err();
    None
}

/// Returns when any node says that the held claim may be lost.
pub(super) async fn until_lost(redlock: &Redlock, claim: &Claim) {
    let request = redlock.rounds.current(claim);
    let nodes = redlock.quorum.nodes();
    let mut hints: FuturesUnordered<_> =
        nodes.iter().map(|node| node.redis.until_lost(&request)).collect();
    hints.next().await;
}

/// A pause that is seldom twice the same, so that two claims do not try at the same moment; long
/// enough that a crowd of waiters does not keep the nodes busy. It grows with the rounds that were
/// lost to the same holder.
fn pause(lost: u32) -> Duration {
    random_pause(50, 150, lost)
}
