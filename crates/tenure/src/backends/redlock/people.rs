//! What people see of a lock that lies on several nodes.

use std::collections::BTreeMap;

use crate::backend::Owner;
use crate::backends::redis::Shown;
use crate::claim::Holding;
use crate::key::Key;
use crate::token::FencingToken;

/// What is held on most nodes, in the order of keys.
pub(super) fn holdings(seen: Vec<BTreeMap<Key, Shown>>, needed: usize) -> Vec<Holding> {
    let mut keys: Vec<Key> = seen.iter().flat_map(|node| node.keys().cloned()).collect();
    keys.sort();
    keys.dedup();
    let holding = |key: Key| Some(merge(&seen, &key, needed)?.holding(key));
    keys.into_iter().filter_map(holding).collect()
}

/// The owner of the grant with this token, if it is the one that holds.
pub(super) fn owner_of(
    seen: Vec<BTreeMap<Key, Shown>>,
    key: &Key,
    token: FencingToken,
    needed: usize,
) -> Option<Owner> {
    let shown = merge(&seen, key, needed)?;
    shown.owner.parse().ok().filter(|_| shown.holder.token == Some(token))
}

/// The holder that most nodes show, with its highest token, and everybody who waits on any of them.
fn merge(seen: &[BTreeMap<Key, Shown>], key: &Key, needed: usize) -> Option<Shown> {
    let shown: Vec<&Shown> = seen.iter().filter_map(|node| node.get(key)).collect();
    let agree = |one: &&&Shown| shown.iter().filter(|s| s.owner == one.owner).count() >= needed;
    let of_owner = shown.iter().filter(agree).max_by_key(|shown| shown.holder.token)?;
    let mut merged = (*of_owner).clone();
    for queued in shown.iter().flat_map(|shown| &shown.queue) {
        if merged.queue.iter().all(|known| known.owner != queued.owner) {
            merged.queue.push(queued.clone());
        }
    }
    Some(merged)
}
