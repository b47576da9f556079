//! Operator requests: list holders and waiters, force-release a grant, and the condition for
//! transactions of the user.

use std::collections::HashMap;

use super::claims::ClientClaims;
use super::connection::api::{Api, KvEntry, SessionInfo, TxnOp, TxnOutcome};
use super::layout::{KeyRole, LockKeys, LockRecord, common_prefix, role};
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
    let mut held: HashMap<Key, KvEntry> = HashMap::new();
    let mut queues: HashMap<Key, Vec<KvEntry>> = HashMap::new();
    for entry in entries {
        match role(&entry.key) {
            Some(KeyRole::Lock(key)) if entry.session.is_some() && scope.contains(&key) => {
                held.insert(key, entry);
            }
            Some(KeyRole::QueueEntry(key, _)) => queues.entry(key).or_default().push(entry),
            _ => {}
        }
    }
    let sessions = foreign_sessions(api, held.values()).await;
    let mut holdings: Vec<_> = held
        .into_iter()
        .map(|(key, lock)| {
            let queue = queues.remove(&key).unwrap_or_default();
            let mut holding = Holding::new(key, holder(&lock, &sessions));
            holding.waiters = waiters(queue);
            holding
        })
        .collect();
    holdings.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(holdings)
}

/// Force-releases exactly the grant with this token.
pub(super) async fn evict(api: &Api, key: &Key, token: FencingToken) -> Result<bool> {
    let lock = LockKeys::new(key).lock();
    let ops = [TxnOp::CheckIndex(lock.clone(), token.index()), TxnOp::Delete(lock)];
    Ok(matches!(api.transact(&ops).await?, TxnOutcome::Committed(_)))
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
    let keys = LockKeys::new(full_key.as_ref().unwrap_or(key));
    let found = api.read(&keys.lock()).await?;
    let Some(lock) = found.filter(|lock| lock.modified == token.index()) else {
        return Ok(None);
    };
    let KvEntry { key, session, modified: index, .. } = lock;
    Ok(session.map(|session| Condition { key, session, index }))
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
fn waiters(mut queue: Vec<KvEntry>) -> Vec<Waiter> {
    queue.sort_by_key(|entry| entry.created);
    let records = queue.iter().filter_map(|entry| LockRecord::decode(&entry.value));
    records.map(|record| Waiter::new(&record.holder_info)).collect()
}
