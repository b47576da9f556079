//! Waiting: blocking queries, which Consul responds to when a key changes.
//!
//! A waiter has a queue entry and watches one key: the entry just before its own, or the lock if
//! there is none. So a release wakes one waiter, however long the queue is, and so does a waiter
//! that is cancelled or crashes. A reader passes over the readers before it, so that those of a run
//! watch the same key and are granted together. A waiter that no other blocks, and that does not
//! fit beside holders, watches all of these: one query returns whenever one of them leaves. Of the
//! waiters of one client for one key, only the first watches: each blocking query is a connection,
//! and Consul accepts 200 from one address.
//!
//! One handoff, with waiters A and B of different clients: the holder deletes `NAME/.lock`; A's
//! query ends with "no such key"; A sets its predecessor to `Turn` and returns; the engine calls
//! `try_acquire`, which acquires the lock and deletes A's entry in one transaction; B's query on
//! that entry ends; B reads the lock, finds A as its holder, and watches the lock from the index of
//! that read on.
//!
//! No wake-up is lost: a blocking query carries the index of the state that was seen last, and
//! Consul responds at once if the key has changed since. An index of 0 reads without waiting. These
//! functions are hints: they may return early or late, and decide nothing. A query ends after a
//! quarter of the ttl anyway; the engine then calls `try_acquire`, which keeps the session alive.

use std::time::Duration;

use super::Context;
use super::claims::PredecessorKey;
use super::layout::{LockKeys, LockRecord};
use super::snapshot::{self, KeySnapshot, LockState};
use crate::backend::{Claim, Owner};
use crate::error::Result;
use crate::support::backoff;
use crate::support::clock::Clock;

/// How soon a lock is tried again that Consul keeps locked for a lock-delay, the end of which it
/// does not tell.
pub(super) const LOCK_DELAY_POLL: Duration = Duration::from_secs(1);
/// The pause after a query that failed.
const ERROR_PAUSE: Duration = Duration::from_millis(250);
/// How long a lock is held before its loss is watched for. Most are held for a moment only.
const WATCH_AFTER: Duration = Duration::from_millis(250);
/// A query that would wait for less is left to the next call.
const SHORTEST_QUERY: Duration = Duration::from_millis(10);
/// The longest that a query waits; Consul accepts up to ten minutes.
const QUERY_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns when it is worth trying to acquire again.
pub(super) async fn until_free(context: &Context, claim: &Claim) {
    let record = context.claims.get(claim.owner);
    let watched = match record.and_then(|record| record.queue_entry) {
        None => watch_lock(context, claim).await,
        Some(entry) if entry.delayed => {
            tokio::time::sleep(jittered(LOCK_DELAY_POLL)).await;
            context.claims.update_queue_entry(claim.owner, |entry| entry.delayed = false);
            return;
        }
        Some(_) => {
            // The waiter before this one in the local queue wakes it when it leaves the queue.
            context.claims.until_first(claim.owner).await;
            watch_queue(context, claim).await
        }
    };
    if watched.is_err() {
        tokio::time::sleep(jittered(ERROR_PAUSE)).await;
    }
}

/// Returns when the claim may be lost. A limited number of locks is watched; for the others the
/// next renewal finds the loss.
pub(super) async fn until_lost(context: &Context, claim: &Claim) {
    tokio::time::sleep(WATCH_AFTER.max(claim.ttl / 30)).await;
    let Some(record) = context.claims.get(claim.owner) else { return };
    let Some(grant) = record.grant else { return };
    // Without a free watch this claim waits for its renewal, or for being dropped.
    let Ok(_watch) = context.watches.try_acquire() else {
        return std::future::pending().await;
    };
    let keys = LockKeys::new(&claim.key);
    let key = grant.name(&keys, claim.owner);
    // From the index of the grant on, so that a change before this query counts.
    let mut index = grant.index;
    loop {
        match context.api.watch(&key, index, QUERY_WAIT_MAX).await {
            Ok(seen) => {
                index = seen.index;
                let snapshot = KeySnapshot::new(&claim.key, seen.entry);
                let own = snapshot.own_grant(&context.claims, claim.owner, &record);
                if !own.is_ok_and(|own| own.is_some()) {
                    return;
                }
            }
            Err(_no_response) => tokio::time::sleep(jittered(ERROR_PAUSE)).await,
        }
    }
}

/// Without a queue entry: returns when the exclusive holder has left, or when one of several
/// holders has.
async fn watch_lock(context: &Context, claim: &Claim) -> Result<()> {
    let keys = LockKeys::new(&claim.key);
    let mut index = 0;
    loop {
        let seen = context.api.watch(&keys.lock(), index, query_wait(claim)).await?;
        if let LockState::Free(_) = snapshot::lock_state(&claim.key, seen.entry.as_ref())? {
            break;
        }
        index = seen.index;
    }
    if index == 0 {
        // It was not held exclusively to begin with.
        let snapshot = read_snapshot(context, claim, &keys).await?;
        if !snapshot.holders.is_empty() {
            let (prefix, index) = (keys.all_held(), snapshot.last_change());
            context.api.watch_all(&prefix, index, query_wait(claim)).await?;
        }
    }
    Ok(())
}

/// With a queue entry: watches the predecessor. Returns when it is this claim's turn, or when one
/// query has ended, so that the engine refreshes the queue entry.
async fn watch_queue(context: &Context, claim: &Claim) -> Result<()> {
    let keys = LockKeys::new(&claim.key);
    let owner = claim.owner;
    loop {
        let record = context.claims.get(owner);
        let Some(entry) = record.and_then(|record| record.queue_entry) else { return Ok(()) };
        let (predecessor, watched) = match entry.predecessor {
            PredecessorKey::Turn => return Ok(()),
            PredecessorKey::Unknown => {
                (find_predecessor(context, claim, &keys, entry.created).await?, false)
            }
            PredecessorKey::Holder { index } => {
                (watch_holder(context, claim, &keys, index).await?, true)
            }
            PredecessorKey::Holders { index } => {
                (watch_holders(context, claim, &keys, index).await?, true)
            }
            PredecessorKey::Waiter { key, owner, index } => {
                let seen = context.api.watch(&key, index, query_wait(claim)).await?;
                match seen.entry {
                    Some(_) => (PredecessorKey::Waiter { key, owner, index: seen.index }, true),
                    None => (after_waiter(context, claim, &keys, owner).await?, false),
                }
            }
        };
        // Kept in the table: the next call continues from this index.
        let turn = matches!(predecessor, PredecessorKey::Turn);
        context.claims.update_queue_entry(owner, |entry| entry.predecessor = predecessor);
        if turn || watched {
            return Ok(());
        }
    }
}

/// The queue entry before this one is gone. If its waiter holds the lock now, this claim is next.
async fn after_waiter(
    context: &Context,
    claim: &Claim,
    keys: &LockKeys,
    before: Owner,
) -> Result<PredecessorKey> {
    if !claim.mode.is_lock() {
        return Ok(PredecessorKey::Unknown);
    }
    // Index 0 reads at once, and returns the index to watch from.
    let seen = context.api.watch(&keys.lock(), 0, query_wait(claim)).await?;
    let holder = seen.entry.and_then(|lock| LockRecord::decode(&lock.value));
    match holder {
        Some(holder) if holder.owner == before => Ok(PredecessorKey::Holder { index: seen.index }),
        // It was cancelled or crashed: there may be others before this one.
        _ => Ok(PredecessorKey::Unknown),
    }
}

async fn watch_holder(
    context: &Context,
    claim: &Claim,
    keys: &LockKeys,
    index: u64,
) -> Result<PredecessorKey> {
    let seen = context.api.watch(&keys.lock(), index, query_wait(claim)).await?;
    match snapshot::lock_state(&claim.key, seen.entry.as_ref())? {
        LockState::Free(_) => Ok(PredecessorKey::Turn),
        LockState::Held(_) => Ok(PredecessorKey::Holder { index: seen.index }),
    }
}

/// Watches the holders beside which this claim does not fit, until it does. The keys are read again
/// before it acquires: the marker that the last holder left may still be there.
async fn watch_holders(
    context: &Context,
    claim: &Claim,
    keys: &LockKeys,
    mut index: u64,
) -> Result<PredecessorKey> {
    let end = Clock::Boot.now() + query_wait(claim);
    loop {
        let left = end.since(Clock::Boot.now());
        if left < SHORTEST_QUERY {
            return Ok(PredecessorKey::Holders { index });
        }
        let seen = context.api.watch_all(&keys.all_held(), index, left).await?;
        index = seen.index;
        if KeySnapshot::new(&claim.key, seen.entries).fits(claim.mode) {
            return Ok(PredecessorKey::Holders { index });
        }
    }
}

/// Reads the queue. `created` is the index of this claim's entry.
async fn find_predecessor(
    context: &Context,
    claim: &Claim,
    keys: &LockKeys,
    created: u64,
) -> Result<PredecessorKey> {
    let snapshot = read_snapshot(context, claim, keys).await?;
    let ahead = Some(snapshot.ahead(created));
    context.claims.update_queue_entry(claim.owner, |entry| entry.ahead = ahead);
    snapshot.predecessor(&claim.key, claim.mode, created)
}

async fn read_snapshot(context: &Context, claim: &Claim, keys: &LockKeys) -> Result<KeySnapshot> {
    Ok(KeySnapshot::new(&claim.key, context.api.read_tree(keys.tree()).await?))
}

/// How long a query waits: short enough to end before the engine calls again, so that its
/// connection can be used again.
fn query_wait(claim: &Claim) -> Duration {
    jittered(claim.ttl / 4).min(QUERY_WAIT_MAX)
}

/// Up to an eighth less, so that clients that started together do not stay in step.
fn jittered(span: Duration) -> Duration {
    backoff::jitter(span - span / 8, span)
}
