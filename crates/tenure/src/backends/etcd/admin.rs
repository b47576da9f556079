//! Operator requests: list holders and waiters, evict a holder, and the condition of a grant.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use super::connection::{Connection, Method};
use super::layout::messages::{
    KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeResponse, TxnRequest,
    TxnResponse,
};
use super::layout::queue::{self, QueuedClaim};
use super::layout::{self, RANGE, Space, TXN, is_in_queue};
use super::{Condition, Context};
use crate::backend::{Holder, Holding, Mode, Scope};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

const TIME_TO_LIVE: Method = Method("/etcdserverpb.Lease/LeaseTimeToLive");
/// How long one request may take.
pub(super) const READ_LIMIT: Duration = Duration::from_secs(4);
/// How many keys are read at a time.
const PAGE: i64 = 5000;
/// How many values are read at a time: a value has a megabyte and a half at most, unless the
/// servers are configured otherwise.
const MAX_VALUES: usize = 40;
/// A listing requests the time left of at most so many clients.
const MAX_LEASES: usize = 200;

pub(super) async fn list(
    connection: &Connection,
    space: &Space,
    scope: Scope<'_>,
) -> Result<Vec<Holding>> {
    let mut by_key: BTreeMap<Key, Vec<KeyValue>> = BTreeMap::new();
    for (key, kv) in claims(connection, space, scope).await? {
        by_key.entry(key).or_default().push(kv);
    }
    let queues = by_key.into_iter().map(|(key, kvs)| {
        let queue = queue::claims(kvs, &space.queue_prefix(&key));
        let holding = queue::holders(queue.iter().map(|claim| claim.mode));
        (key, queue, holding)
    });
    let queues: Vec<_> = queues.collect();
    let holders = queues.iter().flat_map(|(_, queue, holding)| &queue[..*holding]);
    let left = times_left(connection, holders.map(|claim| claim.kv.lease)).await;
    let holdings = queues.into_iter().filter_map(|(key, queue, holding)| {
        let (holders, waiters) = queue.split_at(holding);
        let describe = |claim: &QueuedClaim| {
            let ttl_left = left.get(&claim.kv.lease).copied();
            Holder { ttl_left, ..claim.holder() }
        };
        let mut holding = Holding::of(key, holders.iter().map(describe).collect())?;
        holding.waiters = waiters.iter().map(QueuedClaim::waiter).collect();
        Some(holding)
    });
    Ok(holdings.collect())
}

/// Deletes the key of the grant with this token. `true` if it was there.
pub(super) async fn evict(
    connection: &Connection,
    space: &Space,
    key: &Key,
    token: FencingToken,
) -> Result<bool> {
    let revision = layout::revision_of(token);
    let Some(holder) = grant_at(connection, space, key, revision).await? else { return Ok(false) };
    let request = TxnRequest {
        compare: vec![layout::if_created_at(&holder.key, revision)],
        success: vec![layout::delete_op(&holder.key)],
        failure: Vec::new(),
    };
    let response = connection.call::<_, TxnResponse>(TXN, request, READ_LIMIT).await?;
    // If an earlier attempt is unconfirmed, it may be the one that deleted the key.
    Ok(response.body.succeeded || response.unconfirmed)
}

/// The comparison that is true as long as this grant is held.
pub(super) async fn condition(
    context: &Context,
    key: &Key,
    token: FencingToken,
) -> Result<Option<Condition>> {
    let Context { connection, space, .. } = context;
    let revision = layout::revision_of(token);
    // The guard of a client with a prefix does not show that prefix.
    let whole = context.claims.whole_key(key, revision);
    let key = whole.as_ref().unwrap_or(key);
    let holder = grant_at(connection, space, key, revision).await?;
    Ok(holder.map(|kv| Condition { key: kv.key, create_revision: revision }))
}

/// The key of the grant with this create revision. A waiter has a create revision too, which is
/// granted only when the older claims leave it room.
async fn grant_at(
    connection: &Connection,
    space: &Space,
    key: &Key,
    revision: i64,
) -> Result<Option<KeyValue>> {
    let (oldest, _) = holder_at(connection, space, key).await?;
    let Some(oldest) = oldest else { return Ok(None) };
    if oldest.kv.create_revision == revision {
        return Ok(Some(oldest.kv));
    }
    if oldest.mode == Mode::Exclusive {
        return Ok(None);
    }
    let mut queue: Vec<_> = claims(connection, space, Scope::Key(key)).await?;
    queue.retain(|(found, _)| found == key);
    let kvs = queue.into_iter().map(|(_, kv)| kv).collect();
    let mut queue = queue::claims(kvs, &space.queue_prefix(key));
    queue.truncate(queue::holders(queue.iter().map(|claim| claim.mode)));
    let grant = queue.into_iter().find(|claim| claim.kv.create_revision == revision);
    Ok(grant.map(|claim| claim.kv))
}

/// The oldest claim to a key, and the revision at which it was read.
pub(super) async fn holder_at(
    connection: &Connection,
    space: &Space,
    key: &Key,
) -> Result<(Option<QueuedClaim>, i64)> {
    let prefix = space.queue_prefix(key);
    let request = layout::oldest(&prefix);
    let mut found: RangeResponse = connection.call(RANGE, request, READ_LIMIT).await?.body;
    // If the oldest belongs to a foreign client's lock with a longer name, the holder is behind it.
    if found.kvs.first().is_some_and(|kv| !is_in_queue(&kv.key, &prefix)) {
        let request = layout::keys_only(layout::all(&prefix));
        found = connection.call(RANGE, request, READ_LIMIT).await?.body;
    }
    let revision = found.header.map_or(0, |header| header.revision);
    let holder = found.kvs.into_iter().find(|kv| is_in_queue(&kv.key, &prefix));
    Ok((holder.map(|kv| QueuedClaim::new(kv, &prefix)), revision))
}

/// The claims of the locks in a scope, with their values.
///
/// Without a path in the URL they may be anywhere in the key space of the server. So keys are read
/// page by page, and only the values of claims that have a lease: foreign data usually has none,
/// and may be large.
async fn claims(
    connection: &Connection,
    space: &Space,
    scope: Scope<'_>,
) -> Result<Vec<(Key, KeyValue)>> {
    let keys = claim_keys(connection, space, scope).await?;
    let (leased, mut claims): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|(_, kv)| kv.lease != 0);
    for some in leased.chunks(MAX_VALUES) {
        let reads = some.iter().map(|(_, kv)| layout::get(&kv.key)).collect();
        let request = layout::read_all(reads);
        let response: TxnResponse = connection.call(TXN, request, READ_LIMIT).await?.body;
        let read = some.iter().zip(layout::ranges(response));
        // A claim that was deleted meanwhile is left out.
        claims.extend(
            read.filter_map(|((key, _), range)| Some((key.clone(), range.kvs.into_iter().next()?))),
        );
    }
    Ok(claims)
}

/// The claims of the locks in a scope, without their values.
async fn claim_keys(
    connection: &Connection,
    space: &Space,
    scope: Scope<'_>,
) -> Result<Vec<(Key, KeyValue)>> {
    let prefix = match scope {
        Scope::Key(key) => space.queue_prefix(key),
        Scope::Prefix(prefix) => space.list_prefix(prefix),
    };
    let mut claims = Vec::new();
    let mut from = layout::all(&prefix).key;
    loop {
        let request = layout::page(&prefix, from, PAGE);
        let page: RangeResponse = connection.call(RANGE, request, READ_LIMIT).await?.body;
        let Some(last) = page.kvs.last() else { break };
        // The smallest key that comes after it.
        from = [&last.key[..], &[0]].concat();
        let is_full = page.kvs.len() as i64 >= PAGE;
        claims.extend(page.kvs.into_iter().filter_map(|kv| {
            let key = space.lock_of(&kv.key).filter(|key| scope.contains(key))?;
            Some((key, kv))
        }));
        if !is_full {
            break;
        }
    }
    Ok(claims)
}

/// How long the servers keep these leases without another keep-alive. A lease whose time cannot be
/// read is left out.
async fn times_left(
    connection: &Connection,
    leases: impl Iterator<Item = i64>,
) -> HashMap<i64, Duration> {
    let mut leases: Vec<i64> = leases.filter(|lease| *lease != 0).collect();
    leases.sort_unstable();
    leases.dedup();
    leases.truncate(MAX_LEASES);
    let requests = leases.into_iter().map(|id| async move {
        let request = LeaseTimeToLiveRequest { id };
        let response =
            connection.call::<_, LeaseTimeToLiveResponse>(TIME_TO_LIVE, request, READ_LIMIT);
        let seconds = u64::try_from(response.await.ok()?.body.ttl).ok()?;
        Some((id, Duration::from_secs(seconds)))
    });
    join_all(requests).await.into_iter().flatten().collect()
}
