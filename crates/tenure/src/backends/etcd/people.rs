//! What people ask: who holds what, who waits, and that somebody be turned out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use super::Condition;
use super::ask::{self, RANGE, TXN};
use super::names::is_direct;
use super::proto::{
    KeyValue, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, RangeResponse, TxnRequest,
    TxnResponse,
};
use super::store::Store;
use super::take::{describe, note};
use super::wire::Method;
use crate::backend::Scope;
use crate::claim::{Holder, Holding, Waiter};
use crate::error::Result;
use crate::key::Key;
use crate::token::FencingToken;

impl Store {
    pub(super) async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let prefix = match scope {
            Scope::Key(key) => self.space.claims(key),
            Scope::Prefix(prefix) => self.space.prefix(prefix),
        };
        let mut claims = self.claims(&prefix, scope).await?;
        claims.sort_by_key(|(_, kv)| kv.create_revision);
        // By age within each lock.
        let mut locks: BTreeMap<Key, Vec<KeyValue>> = BTreeMap::new();
        for (key, kv) in claims {
            locks.entry(key).or_default().push(kv);
        }
        let holders = locks.values().filter_map(|queue| queue.first());
        let left = self.times_left(holders.map(|kv| kv.lease)).await;
        let holdings = locks.into_iter().filter_map(|(key, queue)| {
            let (first, rest) = queue.split_first()?;
            let ttl_left = left.get(&first.lease).copied();
            let mut holding = Holding::new(key, Holder { ttl_left, ..describe(first) });
            holding.waiters = rest.iter().map(|kv| Waiter::new(&note(kv))).collect();
            Some(holding)
        });
        Ok(holdings.collect())
    }

    /// The claims of these locks. Without a path in the URL they may lie anywhere in the key space
    /// of the server, so that its keys are read page by page, and the values of claims only: those
    /// hang on leases, other data does not.
    async fn claims(&self, prefix: &[u8], scope: Scope<'_>) -> Result<Vec<(Key, KeyValue)>> {
        let (mut claims, mut from) = (Vec::new(), ask::all(prefix).key);
        loop {
            let request = ask::page(prefix, from, PAGE);
            let page: RangeResponse = self.wire.call(RANGE, request, LOOK).await?.body;
            let Some(last) = page.kvs.last() else { break };
            // The smallest key that comes after it.
            from = [&last.key[..], &[0]].concat();
            let (full, kvs) = (page.kvs.len() as i64 >= PAGE, page.kvs.into_iter());
            claims.extend(kvs.filter_map(|kv| {
                let key = self.space.lock_of(&kv.key).filter(|key| scope.holds(key))?;
                Some((key, kv))
            }));
            if !full {
                break;
            }
        }
        let (leased, mut rest): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|(_, kv)| kv.lease != 0);
        for some in leased.chunks(VALUES) {
            let reads = some.iter().map(|(_, kv)| ask::get(&kv.key)).collect();
            let answer: TxnResponse = self.wire.call(TXN, ask::look(reads), LOOK).await?.body;
            let read = some.iter().zip(ask::found(answer));
            // What is gone meanwhile is left out.
            rest.extend(read.filter_map(|((key, _), found)| {
                Some((key.clone(), found.kvs.into_iter().next()?))
            }));
        }
        Ok(rest)
    }

    pub(super) async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        let Some(holder) = self.holder(key).await? else { return Ok(false) };
        if holder.create_revision != token.as_i64() {
            return Ok(false);
        }
        let request = TxnRequest {
            compare: vec![ask::created(&holder.key, holder.create_revision)],
            success: vec![ask::delete(&holder.key)],
            failure: Vec::new(),
        };
        let answer = self.wire.call::<_, TxnResponse>(TXN, request, LOOK).await?;
        // After an unanswered attempt nobody can tell who deleted it; it is gone all the same.
        Ok(answer.body.succeeded || answer.doubtful)
    }

    /// The comparison that is true as long as this grant is held.
    pub(super) async fn condition(
        &self,
        key: &Key,
        token: FencingToken,
    ) -> Result<Option<Condition>> {
        // The guard of a client with a prefix hides it.
        let whole = self.table.whole_key(key, token.as_i64());
        let key = whole.as_ref().unwrap_or(key);
        let request = ask::keys(ask::created_by(&self.space.claims(key), token.as_i64()));
        let found: RangeResponse = self.wire.call(RANGE, request, LOOK).await?.body;
        let Some(kv) = found.kvs.into_iter().next() else { return Ok(None) };
        // Somebody older is there, so that nobody was granted this token yet.
        if self.holder(key).await?.is_none_or(|holder| holder.key != kv.key) {
            return Ok(None);
        }
        Ok(Some(Condition { key: kv.key, create_revision: kv.create_revision }))
    }

    /// Whoever is oldest.
    async fn holder(&self, key: &Key) -> Result<Option<KeyValue>> {
        self.holder_with_revision(key).await.map(|(holder, _)| holder)
    }

    /// Whoever is oldest, and the revision at which that was so.
    pub(super) async fn holder_with_revision(&self, key: &Key) -> Result<(Option<KeyValue>, i64)> {
        let prefix = self.space.claims(key);
        let found: RangeResponse = self.wire.call(RANGE, ask::first(&prefix), LOOK).await?.body;
        let nested = |found: &RangeResponse| {
            found.kvs.first().is_some_and(|kv| !is_direct(&kv.key, &prefix))
        };
        let found: RangeResponse = match nested(&found) {
            true => self.wire.call(RANGE, ask::keys(ask::all(&prefix)), LOOK).await?.body,
            false => found,
        };
        let revision = found.header.map_or(0, |header| header.revision);
        Ok((found.kvs.into_iter().find(|kv| is_direct(&kv.key, &prefix)), revision))
    }

    /// For how long the servers keep these leases without hearing from their clients. What cannot
    /// be had is left out.
    async fn times_left(&self, leases: impl Iterator<Item = i64>) -> HashMap<i64, Duration> {
        let mut leases: Vec<i64> = leases.filter(|lease| *lease != 0).collect();
        leases.sort_unstable();
        leases.dedup();
        leases.truncate(MOST_LEASES);
        let asks = leases.into_iter().map(|id| async move {
            let request = LeaseTimeToLiveRequest { id };
            let answer = self.wire.call::<_, LeaseTimeToLiveResponse>(TIME_TO_LIVE, request, LOOK);
            let seconds = u64::try_from(answer.await.ok()?.body.ttl).ok()?;
            Some((id, Duration::from_secs(seconds)))
        });
        join_all(asks).await.into_iter().flatten().collect()
    }
}

const TIME_TO_LIVE: Method = Method("/etcdserverpb.Lease/LeaseTimeToLive");
/// How long one answer may take.
pub(super) const LOOK: Duration = Duration::from_secs(4);
/// How many keys are read at a time.
const PAGE: i64 = 5000;
/// How many values are read at a time: a value has a megabyte and a half at most, unless the
/// servers were told otherwise.
const VALUES: usize = 40;
/// A listing asks for the time left of at most so many clients.
const MOST_LEASES: usize = 200;
