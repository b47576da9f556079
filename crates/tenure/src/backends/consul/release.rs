//! Release: held locks, queue entries, and claims with a request of unknown outcome.
//!
//! A claim leaves up to three keys at the server: the lock, its queue entry, and the queue marker
//! if its owner is the last that joined. What has to be deleted depends on what is known:
//!
//! - *Held*: one transaction deletes the lock, if it has the index of the grant. A later grant of
//!   the same key has another index, so that a release never deletes it.
//! - *Waiting*: one transaction deletes the queue entry.
//! - *Unconfirmed*: a request has no response, and may still arrive after this release. First a
//!   tombstone is written, in one transaction that also deletes the queue entry and reads what is
//!   there; then the lock is deleted, if the request had acquired it. Every request of the claim
//!   checks the tombstone, so that one that arrives later is refused: this is the race of a
//!   cancelled claim that would otherwise hold the lock without a client that knows of it.
//!
//! A tombstone is held by the session of the claim, and goes when the session ends. The session is
//! retired: it accepts no new claims, and is destroyed with its last one. So a tombstone needs no
//! timer, and lasts as long as a request in that session can have an effect.
//!
//! The queue marker is deleted by the last that joined, if no entry is left, and otherwise handed
//! on to the last entry. Both check the marker's index: a claim that joins in between writes it,
//! and wins. A marker that stays behind does no harm: the next acquire without a queue deletes it.
//!
//! A release that fails is remembered (`claims`), because other claims may keep the session alive.
//! It is repeated after a renewal of the session, once the engine has stopped to repeat it.

use std::sync::Arc;

use super::Context;
use super::claims::ClaimRecord;
use super::connection::api::{KvEntry, RefusalReason, TxnOp, TxnOutcome};
use super::layout::LockKeys;
use super::session::Session;
use super::snapshot::{self, KeySnapshot};
use crate::backend::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::token::FencingToken;

/// How often the release of a held lock is tried, if a foreign client changes its key meanwhile.
const DELETE_TRIES_MAX: usize = 3;

/// Deletes everything that the claim has at the server. `true` if it was held.
pub(super) async fn release(context: &Context, owner: Owner, unconfirmed: bool) -> Result<bool> {
    let Some(record) = context.claims.begin_release(owner) else { return Ok(false) };
    let keys = LockKeys::new(&record.key);
    let held = match (record.unconfirmed || unconfirmed, record.token) {
        // Everything that hung on the session went with it.
        _ if record.session.is_gone() => false,
        (true, _) => release_unconfirmed(context, owner, &record, &keys).await?,
        (false, Some(token)) => release_held(context, owner, &record, &keys, token).await?,
        (false, None) => {
            release_waiting(context, owner, &record, &keys).await?;
            false
        }
    };
    if let Some(session) = context.claims.remove(owner) {
        // If this fails, the session is not renewed any more, and ends with its ttl.
        let _ignored = context.api.destroy_session(&session.id).await;
    }
    Ok(held)
}

/// Repeats releases that failed, of claims on this session. Other claims may renew the session, so
/// that these would not end with it.
pub(super) async fn retry_failed(context: &Context, session: &Arc<Session>) {
    for owner in context.claims.failed_releases(session) {
        // If it fails again, it is repeated after the next renewal.
        let _ignored = release(context, owner, true).await;
    }
}

async fn release_held(
    context: &Context,
    owner: Owner,
    record: &ClaimRecord,
    keys: &LockKeys,
    token: FencingToken,
) -> Result<bool> {
    let lock = keys.lock();
    let mut index = token.index();
    let mut read_marker = record.has_waited;
    for _ in 0..DELETE_TRIES_MAX {
        let mut ops = vec![TxnOp::CheckIndex(lock.clone(), index), TxnOp::Delete(lock.clone())];
        if read_marker {
            ops.push(TxnOp::Get(keys.queue_marker()));
        }
        let refusals = match context.api.transact(&ops).await? {
            TxnOutcome::Committed(entries) => {
                delete_marker_if_last(context, owner, record, keys, &entries).await;
                return Ok(true);
            }
            TxnOutcome::Refused(refusals) => refusals,
        };
        if refusals.iter().any(|refusal| refusal.op == 0) {
            // The lock is lost, or a foreign client wrote into its key, which leaves the lock with
            // its holder.
            match context.api.read(&lock).await? {
                Some(entry)
                    if snapshot::is_held_or_overwritten(&context.claims, &entry, owner, record) =>
                {
                    index = entry.modified;
                }
                _ => return Ok(false),
            }
        }
        // A marker that does not exist refuses the transaction too: do not read it again.
        read_marker = false;
    }
    let message = "a foreign client keeps writing into the key of the lock";
    Err(Error::new(ErrorKind::Unavailable, message))
}

async fn release_waiting(
    context: &Context,
    owner: Owner,
    record: &ClaimRecord,
    keys: &LockKeys,
) -> Result<()> {
    if record.queue_entry.is_none() {
        return Ok(());
    }
    let entry = keys.queue_entry(owner);
    let ops = [TxnOp::Delete(entry.clone()), TxnOp::Get(keys.queue_marker())];
    match context.api.transact(&ops).await? {
        TxnOutcome::Committed(entries) => {
            delete_marker_if_last(context, owner, record, keys, &entries).await;
        }
        // There is no marker: only the entry has to be deleted.
        TxnOutcome::Refused(_) => drop(context.api.transact(&[TxnOp::Delete(entry)]).await?),
    }
    Ok(())
}

/// Releases a claim of which a request has no response: writes the tombstone that refuses the
/// request if it arrives later, then deletes what it created if it arrived before.
async fn release_unconfirmed(
    context: &Context,
    owner: Owner,
    record: &ClaimRecord,
    keys: &LockKeys,
) -> Result<bool> {
    record.session.retire();
    let ops = [
        TxnOp::Lock {
            key: keys.tombstone(owner),
            session: record.session.id.clone(),
            flags: 0,
            value: String::new(),
        },
        TxnOp::Delete(keys.queue_entry(owner)),
        TxnOp::Tree(keys.tree()),
    ];
    let entries = match context.api.transact(&ops).await? {
        TxnOutcome::Committed(entries) => entries,
        TxnOutcome::Refused(refusals)
            if refusals.iter().any(|refusal| refusal.reason == RefusalReason::SessionGone) =>
        {
            record.session.set_gone();
            return Ok(false);
        }
        TxnOutcome::Refused(_) => {
            let message = "consul refused the tombstone of a cancelled claim";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
    };
    let snapshot = KeySnapshot::new(&record.key, entries);
    let own_lock = snapshot
        .lock
        .as_ref()
        .filter(|lock| snapshot::is_held_or_overwritten(&context.claims, lock, owner, record));
    let held = match own_lock {
        Some(lock) => {
            let check = TxnOp::CheckIndex(lock.key.clone(), lock.modified);
            let ops = [check, TxnOp::Delete(lock.key.clone())];
            matches!(context.api.transact(&ops).await?, TxnOutcome::Committed(_))
        }
        None => false,
    };
    if snapshot.queue_marker.is_some_and(|marker| marker.value == owner.to_string()) {
        delete_marker(context, &record.key, keys).await;
    }
    Ok(held)
}

/// Deletes the queue marker if this claim was the last that joined. `entries` are those of a
/// transaction that read the marker, if it exists.
async fn delete_marker_if_last(
    context: &Context,
    owner: Owner,
    record: &ClaimRecord,
    keys: &LockKeys,
    entries: &[KvEntry],
) {
    let marker = keys.queue_marker();
    match entries.iter().find(|entry| entry.key == marker) {
        Some(entry) if entry.value == owner.to_string() => {
            delete_marker(context, &record.key, keys).await;
        }
        Some(_) => context.claims.set_contended(&record.key),
        None => {}
    }
}

/// Deletes the queue marker if no claim waits, and otherwise leaves that to the last waiter. A
/// failure costs the next acquire of this lock a request, and nothing else.
async fn delete_marker(context: &Context, key: &Key, keys: &LockKeys) {
    let Ok(entries) = context.api.read_tree(keys.tree()).await else { return };
    let snapshot = KeySnapshot::new(key, entries);
    let Some(marker) = snapshot.queue_marker else { return };
    let check = TxnOp::CheckIndex(marker.key.clone(), marker.modified);
    let change = match snapshot.waiters.last() {
        None => TxnOp::Delete(marker.key),
        Some((last, _)) => TxnOp::Set(marker.key, last.to_string()),
    };
    let _ignored = context.api.transact(&[check, change]).await;
}
