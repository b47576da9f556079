//! Operator requests: list holders and waiters, force-release a grant, and the condition for
//! transactions of the user.

use std::collections::HashMap;

use super::claims::ClientClaims;
use super::connection::api::{Api, KvEntry, SessionInfo, TxnOp, TxnOutcome};
use super::layout::{LockKeys, LockRecord, common_prefix, role};
use super::snapshot::{KeySnapshot, OwnedEntry};
use super::{Condition, snapshot};
use crate::backend::{Holder, HolderInfo, Holding, Scope, Waiter};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

/// The held locks of a scope with their waiters, sorted by key.
pub(super) async fn list(api: &Api, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let entries = match scope {
        Scope::Key(key) => api.read_tree(LockKeys::new(key).tree()).await?,
        Scope::Prefix(prefix) => api.read_all(common_prefix(prefix)).await?,
    };
    let mut locks: HashMap<Key, Vec<KvEntry>> = HashMap::new();
    for entry in entries {
        let Some(role) = role(&entry.key) else { continue };
        if scope.contains(role.lock()) {
            locks.entry(role.lock().clone()).or_default().push(entry);
        }
    }
    let snapshots: Vec<_> = locks
        .into_iter()
        .map(|(key, entries)| {
            let snapshot = KeySnapshot::new(&key, entries);
            (key, snapshot)
        })
        .collect();
    let locked = snapshots.iter().filter_map(|(_, snapshot)| held_lock(snapshot));
    let sessions = foreign_sessions(api, locked).await;
    let mut holdings: Vec<_> = snapshots
        .into_iter()
        .filter_map(|(key, snapshot)| {
            let exclusive = held_lock(&snapshot).map(|lock| holder(lock, &sessions));
            let beside = snapshot.holders.iter().map(OwnedEntry::holder);
            let mut holders: Vec<_> = exclusive.into_iter().chain(beside).collect();
            holders.sort_by_key(|holder| holder.token);
            let mut holding = Holding::of(key, holders)?;
            holding.waiters = waiters(&snapshot.waiters);
            Some(holding)
        })
        .collect();
    holdings.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(holdings)
}

/// Force-releases exactly the grant with this token.
pub(super) async fn evict(api: &Api, key: &Key, token: FencingToken) -> Result<bool> {
    let keys = LockKeys::new(key);
    let lock = keys.lock();
    let ops = [TxnOp::CheckIndex(lock.clone(), token.index()), TxnOp::Delete(lock)];
    if let TxnOutcome::Committed(_) = api.transact(&ops).await? {
        return Ok(true);
    }
    let Some(held) = find_held(api, key, &keys, token).await? else { return Ok(false) };
    let ops = [TxnOp::CheckIndex(held.key.clone(), held.modified), TxnOp::Delete(held.key)];
    Ok(matches!(api.transact(&ops).await?, TxnOutcome::Committed(_)))
}

/// The grant beside others with this token.
async fn find_held(
    api: &Api,
    key: &Key,
    keys: &LockKeys,
    token: FencingToken,
) -> Result<Option<KvEntry>> {
    let snapshot = KeySnapshot::new(key, api.read_tree(keys.tree()).await?);
    let is_named =
        |held: &OwnedEntry| held.grant().is_ok_and(|grant| grant.token.index() == token.index());
    let held = snapshot.holders.into_iter().find(is_named);
    Ok(held.map(|held| held.entry))
}

/// What is true in Consul as long as this grant is held.
pub(super) async fn condition(
    api: &Api,
    claims: &ClientClaims,
    key: &Key,
    token: FencingToken,
) -> Result<Option<Condition>> {
    // The guard of a client with a prefix has the key without it.
    let full_key = claims.full_key(key, token);
    let key = full_key.as_ref().unwrap_or(key);
    let keys = LockKeys::new(key);
    let lock = api.read(&keys.lock()).await?.filter(|lock| lock.modified == token.index());
    let found = match lock {
        Some(lock) => Some(lock),
        None => find_held(api, key, &keys, token).await?,
    };
    let Some(KvEntry { key, session, modified: index, .. }) = found else { return Ok(None) };
    Ok(session.map(|session| Condition { key, session, index }))
}

/// The key of the lock, if it is held exclusively.
fn held_lock(snapshot: &KeySnapshot) -> Option<&KvEntry> {
    snapshot.lock.as_ref().filter(|lock| lock.session.is_some())
}

/// The sessions of the datacenter, if a foreign client holds one of these locks: its session is all
/// that describes it.
async fn foreign_sessions<'a>(
    api: &Api,
    mut held: impl Iterator<Item = &'a KvEntry>,
) -> Vec<SessionInfo> {
    if held.all(|lock| LockRecord::decode(&lock.value).is_some()) {
        return Vec::new();
    }
    // Without the right to read sessions, the list only says less about foreign clients.
    api.sessions().await.unwrap_or_default()
}

fn holder(lock: &KvEntry, sessions: &[SessionInfo]) -> Holder {
    let session = sessions.iter().find(|session| Some(&session.id) == lock.session.as_ref());
    match (LockRecord::decode(&lock.value), session) {
        (None, Some(session)) => {
            let info = HolderInfo::new(&*session.name, &*session.node, 0, &*lock.value);
            Holder {
                token: snapshot::token(lock).ok(),
                ttl_left: session.ttl,
                ..Holder::new(&info)
            }
        }
        _ => snapshot::holder(lock),
    }
}

/// The waiters of a queue, in their order.
fn waiters(queue: &[OwnedEntry]) -> Vec<Waiter> {
    let records = queue.iter().filter_map(|waiter| LockRecord::decode(&waiter.entry.value));
    let describe = |record: LockRecord| {
        let mode = record.mode;
        Waiter { mode, ..Waiter::new(&record.holder_info) }
    };
    records.map(describe).collect()
}
