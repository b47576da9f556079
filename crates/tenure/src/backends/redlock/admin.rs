//! What operators request of a lock that lies on several nodes.

use std::collections::BTreeMap;

use futures_util::future::join_all;

use super::quorum::{Quorum, ReleaseVotes, too_few_respond};
use crate::backend::{Backend, Claim, Holding, Owner, Scope};
use crate::backends::redis::HeldLock;
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// What a majority of nodes says is held, in the order of keys.
pub(super) async fn list(quorum: &Quorum, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let nodes = read_nodes(quorum, scope).await?;
    let mut keys: Vec<Key> = nodes.iter().flat_map(|node| node.keys().cloned()).collect();
    keys.sort();
    keys.dedup();
    let holding = |key: Key| Some(merge(&nodes, &key, quorum.majority())?.holding(key));
    Ok(keys.into_iter().filter_map(holding).collect())
}

/// Ends the grant with this token on all nodes, notifying its holder where the node knows its
/// token.
pub(super) async fn evict(quorum: &Quorum, key: &Key, token: FencingToken) -> Result<bool> {
    let nodes = read_nodes(quorum, Scope::Key(key)).await?;
    let Some(owner) = owner_of(&nodes, key, token, quorum.majority()) else { return Ok(false) };
    let claim = Claim::new(key.clone(), owner, quorum.config.longest);
    let evicted = join_all(quorum.nodes().iter().map(|node| async {
        let evicted = quorum.bounded(node, node.redis.evict(key, token)).await?;
        Ok(evicted || quorum.bounded(node, node.redis.release(&claim)).await?)
    }));
    ReleaseVotes(evicted.await).decide(quorum.majority(), key)
}

/// What the nodes show; a majority has to respond.
async fn read_nodes(quorum: &Quorum, scope: Scope<'_>) -> Result<Vec<BTreeMap<Key, HeldLock>>> {
    let nodes = join_all(quorum.nodes().iter().map(|node| node.held_locks(scope))).await;
    let (nodes, failed): (Vec<_>, Vec<_>) = nodes.into_iter().partition(Result::is_ok);
    if nodes.len() < quorum.majority() {
        let error = failed.into_iter().find_map(Result::err);
        return Err(error.unwrap_or_else(|| too_few_respond("redlock")));
    }
    Ok(nodes.into_iter().flatten().collect())
}

/// The owner of the grant with this token, if it is the one that holds.
fn owner_of(
    nodes: &[BTreeMap<Key, HeldLock>],
    key: &Key,
    token: FencingToken,
    majority: usize,
) -> Option<Owner> {
    let lock = merge(nodes, key, majority)?;
    lock.owner.parse().ok().filter(|_| lock.holder.token == Some(token))
}

/// The holder that a majority of nodes shows, with its highest token, and all claims that wait on
/// any of them.
fn merge(nodes: &[BTreeMap<Key, HeldLock>], key: &Key, majority: usize) -> Option<HeldLock> {
    let locks: Vec<&HeldLock> = nodes.iter().filter_map(|node| node.get(key)).collect();
    let agree =
        |one: &&&HeldLock| locks.iter().filter(|lock| lock.owner == one.owner).count() >= majority;
    let of_majority = locks.iter().filter(agree).max_by_key(|lock| lock.holder.token)?;
    let mut merged = (*of_majority).clone();
    for queued in locks.iter().flat_map(|lock| &lock.queue) {
        if merged.queue.iter().all(|known| known.owner != queued.owner) {
            merged.queue.push(queued.clone());
        }
    }
    Some(merged)
}
