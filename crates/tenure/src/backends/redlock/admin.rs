//! What operators request of a lock that lies on several nodes.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::future::join_all;

use super::quorum::{Quorum, ReleaseVotes, too_few_respond};
use crate::backend::{Backend, Claim, Holding, Mode, Owner, Scope};
use crate::backends::redis::{HeldGrant, HeldLock};
use crate::error::Result;
use crate::key::Key;
use crate::token::{FencingToken, TOKENS_PER_GRANT};

/// What a node shows, by key; nothing if it did not respond.
type Shown = Option<BTreeMap<Key, HeldLock>>;

/// What a majority of nodes says is held, in the order of keys.
pub(super) async fn list(quorum: &Quorum, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let nodes = read_nodes(quorum, scope).await?;
    let mut keys: Vec<Key> = nodes.iter().flatten().flat_map(|node| node.keys().cloned()).collect();
    keys.sort();
    keys.dedup();
    let holding = |key: Key| merge(&nodes, &key, quorum.majority())?.holding(key);
    Ok(keys.into_iter().filter_map(holding).collect())
}

/// Ends the grant with this token on all nodes, notifying its holder where the node knows a token
/// of it. Any token will do that a node shows for this grant.
pub(super) async fn evict(quorum: &Quorum, key: &Key, token: FencingToken) -> Result<bool> {
    let nodes = read_nodes(quorum, Scope::Key(key)).await?;
    let Some(name) = owner_of(&nodes, key, token, quorum.majority()) else { return Ok(false) };
    let Ok(owner) = name.parse::<Owner>() else { return Ok(false) };
    let claim = Claim::new(key.clone(), owner, quorum.config.longest);
    let evicted = join_all(quorum.nodes().iter().zip(&nodes).map(|(node, shown)| async {
        // By the token that this node shows: another one might be of another reader there.
        let shown = shown.as_ref().and_then(|locks| locks.get(key));
        let grant = shown.and_then(|lock| lock.grants.iter().find(|grant| grant.owner == name));
        let evicted = match grant.and_then(|grant| grant.holder.token) {
            Some(token) => quorum.bounded(node, node.redis.evict(key, token)).await?,
            None => false,
        };
        Ok(evicted || quorum.bounded(node, node.redis.release(&claim)).await?)
    }));
    ReleaseVotes(evicted.await).decide(quorum.majority(), key)
}

/// What the nodes show, in their order; a majority has to respond.
async fn read_nodes(quorum: &Quorum, scope: Scope<'_>) -> Result<Vec<Shown>> {
    let nodes = join_all(quorum.nodes().iter().map(|node| node.held_locks(scope))).await;
    let responded = nodes.iter().filter(|node| node.is_ok()).count();
    if responded < quorum.majority() {
        let error = nodes.into_iter().find_map(Result::err);
        return Err(error.unwrap_or_else(|| too_few_respond("redlock")));
    }
    Ok(nodes.into_iter().map(Result::ok).collect())
}

/// The owner of the grant with this token, if it is one that holds.
fn owner_of(nodes: &[Shown], key: &Key, token: FencingToken, majority: usize) -> Option<String> {
    // Not only the token that is shown: with nodes away, it may be that of one that granted late.
    let has_token = |grant: &&HeldGrant| {
        let range = if grant.holder.mode == Mode::Exclusive { TOKENS_PER_GRANT } else { 1 };
        let first = grant.holder.token.map(FencingToken::get);
        first.is_some_and(|first| (first..first + u64::from(range)).contains(&token.get()))
    };
    let held = grants_by_owner(nodes, key, majority);
    let known = held.values().flatten().copied().find(has_token)?;
    Some(known.owner.clone())
}

/// The holders that a majority of nodes shows, and all claims that wait on any of them.
///
/// The token of a grant was raised on a majority of the nodes. A node that granted after that has a
/// token of its own, which no other node has, and which is the higher one if clocks agree.
fn merge(nodes: &[Shown], key: &Key, majority: usize) -> Option<HeldLock> {
    let held = grants_by_owner(nodes, key, majority);
    let shown = |grants: &Vec<&HeldGrant>| {
        let is_same = |a: &HeldGrant, b: &HeldGrant| {
            (a.holder.token, a.holder.mode) == (b.holder.token, b.holder.mode)
        };
        let same = |one: &HeldGrant| grants.iter().filter(|other| is_same(one, other)).count();
        let best = grants.iter().max_by_key(|one| (same(one), Reverse(one.holder.token)))?;
        Some((*best).clone())
    };
    let mut merged =
        HeldLock { grants: held.values().filter_map(shown).collect(), queue: Vec::new() };
    if merged.grants.is_empty() {
        return None;
    }
    merged.grants.sort_by_key(|grant| grant.holder.token);
    let all = nodes.iter().flatten().filter_map(|node| node.get(key));
    for queued in all.flat_map(|lock| &lock.queue) {
        if merged.queue.iter().all(|known| known.owner != queued.owner) {
            merged.queue.push(queued.clone());
        }
    }
    Some(merged)
}

/// What the nodes show of the claims that a majority of them names.
fn grants_by_owner<'a>(
    nodes: &'a [Shown],
    key: &Key,
    majority: usize,
) -> BTreeMap<&'a str, Vec<&'a HeldGrant>> {
    let mut held = BTreeMap::<&str, Vec<&HeldGrant>>::new();
    let locks = nodes.iter().flatten().filter_map(|node| node.get(key));
    for grant in locks.flat_map(|lock| &lock.grants) {
        held.entry(&grant.owner).or_default().push(grant);
    }
    held.retain(|_, grants| grants.len() >= majority);
    held
}
