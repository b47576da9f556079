//! What operators request: who holds and who waits, and evicting a holder.

use std::collections::BTreeMap;
use std::sync::Arc;

use redis::Value;

use super::Redis;
use super::connection::Connection;
use super::error::from_redis;
use super::layout::response::{holder, millis, text, unexpected};
use super::layout::{Keys, lock_of, mode};
use crate::backend::{Holder, HolderInfo, Holding, Scope, Waiter};
use crate::error::{ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// How many locks are shown by one batch of requests.
const BATCH: usize = 500;

/// A held lock, as `lua/show.lua` shows it.
#[derive(Clone, Debug)]
pub(in crate::backends) struct HeldLock {
    /// The oldest first.
    pub(in crate::backends) grants: Vec<HeldGrant>,
    pub(in crate::backends) queue: Vec<QueuedClaim>,
}

/// A holder, with what the server knows it by.
#[derive(Clone, Debug)]
pub(in crate::backends) struct HeldGrant {
    pub(in crate::backends) owner: String,
    pub(in crate::backends) holder: Holder,
}

/// A waiter, with its owner id.
#[derive(Clone, Debug)]
pub(in crate::backends) struct QueuedClaim {
    pub(in crate::backends) owner: String,
    pub(in crate::backends) waiter: Waiter,
}

impl HeldLock {
    /// Reads a response of `lua/show.lua`; none if the lock is free.
    fn read(response: &Value) -> Option<HeldLock> {
        let Value::Array(parts) = response else { return None };
        let [_, Value::Array(grants), Value::Array(queue)] = &parts[..] else { return None };
        let mut grants: Vec<_> = grants.iter().filter_map(HeldGrant::read).collect();
        grants.sort_by_key(|grant| grant.holder.token);
        if grants.is_empty() {
            return None;
        }
        let queue = queue.iter().filter_map(QueuedClaim::read).collect();
        Some(HeldLock { grants, queue })
    }

    pub(in crate::backends) fn holding(self, key: Key) -> Option<Holding> {
        let holders = self.grants.into_iter().map(|grant| grant.holder).collect();
        let mut holding = Holding::of(key, holders)?;
        holding.waiters = self.queue.into_iter().map(|queued| queued.waiter).collect();
        Some(holding)
    }
}

impl HeldGrant {
    fn read(response: &Value) -> Option<HeldGrant> {
        let Value::Array(parts) = response else { return None };
        Some(HeldGrant { owner: text(parts.first()?), holder: holder(parts)? })
    }
}

impl QueuedClaim {
    fn read(response: &Value) -> Option<QueuedClaim> {
        let Value::Array(parts) = response else { return None };
        let [owner, info, age, mode] = &parts[..] else { return None };
        let mut waiter = Waiter::new(&HolderInfo::decode(&text(info)));
        waiter.waiting_for = millis(age);
        waiter.mode = mode::read(&text(mode));
        Some(QueuedClaim { owner: text(owner), waiter })
    }
}

pub(super) async fn list(redis: &Redis, scope: Scope<'_>) -> Result<Vec<Holding>> {
    let held = held_locks(redis, scope).await?;
    Ok(held.into_iter().filter_map(|(key, lock)| lock.holding(key)).collect())
}

pub(super) async fn evict(redis: &Redis, key: &Key, token: FencingToken) -> Result<bool> {
    let keys = Keys::of(key.as_str());
    let call = redis.scripts.evict(keys, token);
    match redis.servers.run(keys.lock, &call).await? {
        Value::Int(evicted) => Ok(evicted == 1),
        other => Err(unexpected("evict", &other)),
    }
}

/// What is held, in the order of keys. Locks that only foreign clients ever acquired are found by
/// key, not by prefix: tenure keeps nothing beside them.
pub(super) async fn held_locks(redis: &Redis, scope: Scope<'_>) -> Result<BTreeMap<Key, HeldLock>> {
    match read_locks(redis, scope).await {
        // A connection that was killed is often noticed only by the next request.
        Err(error) if error.kind() == ErrorKind::Unavailable => read_locks(redis, scope).await,
        held => held,
    }
}

async fn read_locks(redis: &Redis, scope: Scope<'_>) -> Result<BTreeMap<Key, HeldLock>> {
    let mut held = BTreeMap::new();
    match scope {
        Scope::Key(key) => {
            let call = redis.scripts.show(Keys::of(key.as_str()));
            let response = redis.servers.run(key.as_str(), &call).await?;
            held.extend(HeldLock::read(&response).map(|lock| (key.clone(), lock)));
        }
        Scope::Prefix(prefix) => {
            for connection in redis.servers.masters().await? {
                let keys = known_locks(&connection, prefix).await?;
                for batch in keys.chunks(BATCH) {
                    read_batch(redis, &connection, batch, &mut held).await?;
                }
            }
        }
    }
    Ok(held)
}

async fn read_batch(
    redis: &Redis,
    connection: &Arc<Connection>,
    keys: &[Key],
    held: &mut BTreeMap<Key, HeldLock>,
) -> Result<()> {
    let calls: Vec<_> = keys.iter().map(|key| redis.scripts.show(Keys::of(key.as_str()))).collect();
    let commands: Vec<_> = calls.iter().map(|call| call.by_hash().clone()).collect();
    let responses = connection.execute_all(&commands).await;
    let responses = responses.map_err(|error| from_redis(error, "redis"))?;
    for ((key, call), response) in keys.iter().zip(&calls).zip(responses) {
        let response = match response {
            // The script is not known there, or the key has moved.
            Value::ServerError(_) => redis.servers.run(key.as_str(), call).await?,
            response => response,
        };
        held.extend(HeldLock::read(&response).map(|lock| (key.clone(), lock)));
    }
    Ok(())
}

/// The locks of which a server keeps a state and whose keys start so.
async fn known_locks(connection: &Connection, prefix: &str) -> Result<Vec<Key>> {
    let mut keys = Vec::new();
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg("tenure:s:*").arg("COUNT").arg(1000);
        let response = connection.execute(&scan).await;
        let response = response.map_err(|error| from_redis(error, "redis"))?;
        let (next, found): (String, Vec<Vec<u8>>) =
            redis::from_redis_value(response).map_err(|error| from_redis(error.into(), "redis"))?;
        let locks = found.iter().filter_map(|key| std::str::from_utf8(key).ok());
        let locks = locks.filter_map(|key| lock_of("s", key));
        let locks = locks.filter(|lock| lock.starts_with(prefix));
        // A foreign client may have used a name that is no key of tenure.
        keys.extend(locks.filter_map(|lock| Key::new(lock).ok()));
        if next == "0" {
            break;
        }
        cursor = next;
    }
    // A scan may show a key twice.
    keys.sort();
    keys.dedup();
    Ok(keys)
}
