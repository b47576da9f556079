//! What operators request of a lock that lies on several nodes.

use std::cmp::Reverse;
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
/// token. Any token will do that a node shows for this grant.
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
    let locks = locks_of_holder(nodes, key, majority);
    // Not only the token that is shown: with nodes away, it may be that of one that granted late.
    let known = locks.iter().find(|lock| lock.holder.token == Some(token))?;
    known.owner.parse().ok()
}

/// The holder that a majority of nodes shows, and all claims that wait on any of them.
///
/// Its token was raised on a majority of the nodes. A node that granted after that has a token of
/// its own, which no other node has, and which is the higher one if clocks agree.
fn merge(nodes: &[BTreeMap<Key, HeldLock>], key: &Key, majority: usize) -> Option<HeldLock> {
    let locks = locks_of_holder(nodes, key, majority);
    let same =
        |one: &HeldLock| locks.iter().filter(|lock| lock.holder.token == one.holder.token).count();
    let shown = locks.iter().max_by_key(|lock| (same(lock), Reverse(lock.holder.token)))?;
    let mut merged = (*shown).clone();
    let all = nodes.iter().filter_map(|node| node.get(key));
    for queued in all.flat_map(|lock| &lock.queue) {
        if merged.queue.iter().all(|known| known.owner != queued.owner) {
            merged.queue.push(queued.clone());
        }
    }
    Some(merged)
}

/// What the nodes show of the claim that a majority of them names; nothing if they name none.
fn locks_of_holder<'a>(
    nodes: &'a [BTreeMap<Key, HeldLock>],
    key: &Key,
    majority: usize,
) -> Vec<&'a HeldLock> {
    let locks: Vec<&HeldLock> = nodes.iter().filter_map(|node| node.get(key)).collect();
    let count = |owner: &str| locks.iter().filter(|lock| lock.owner == owner).count();
    locks.iter().copied().filter(|lock| count(&lock.owner) >= majority).collect()
}
