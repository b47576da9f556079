//! Release: held locks, queue entries, and claims with a request of unknown outcome.
//!
//! A claim leaves up to three kinds of keys at the server: its grant (the lock, or a key of its own
//! beside others), its queue entry, and the markers that name its owner as the last that came. What
//! has to be deleted depends on what is known:
//!
//! - *Held*: one transaction deletes the grant's key, if it has the index of the grant. A later
//!   grant of the same key has another index, so that a release never deletes it. A holder that
//!   found no other and created the marker deletes that as well, if it has the same index: then no
//!   other has come since.
//! - *Waiting*: one transaction deletes the queue entry.
//! - *Unconfirmed*: a request has no response, and may still arrive after this release. First a
//!   tombstone is written, in one transaction that also reads what is there, and deletes the queue
//!   entry and the shared grant or permits; then the lock is deleted, if the request had acquired
//!   it. Every request of the claim
//!   checks the tombstone, so that one that arrives later is refused: this is the race of a
//!   cancelled claim that would otherwise hold the lock without a client that knows of it.
//!
//! A tombstone is held by the session of the claim, and goes when the session ends. The session is
//! retired: it accepts no new claims, and is destroyed with its last one. So a tombstone needs no
//! timer, and lasts as long as a request in that session can have an effect.
//!
//! A marker is deleted by the last that came, if nothing is left that it stands for, and otherwise
//! handed on to the last that is left. Both check the marker's index: a claim that comes in between
//! writes it, and wins. A marker that stays behind does no harm: the next acquire to which it
//! matters finds nothing beside it, and deletes it.
//!
//! A release that fails is remembered (`claims`), because other claims may keep the session alive.
//! It is repeated after a renewal of the session, once the engine has stopped to repeat it.

use std::sync::Arc;

use super::Context;
use super::claims::{ClaimRecord, GrantKey, StoredGrant};
use super::connection::api::{KvEntry, RefusalReason, TxnOp, TxnOutcome, is_refused};
use super::layout::{LockKeys, Marker};
use super::session::Session;
use super::snapshot::KeySnapshot;
use crate::backend::Owner;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;

/// How often the release of a grant is tried: each refusal shows that a marker has changed, or that
/// a foreign client wrote into the grant's key.
const DELETE_TRIES_MAX: usize = 6;

/// Deletes everything that the claim has at the server. `true` if it was held.
pub(super) async fn release(context: &Context, owner: Owner, unconfirmed: bool) -> Result<bool> {
    let Some(record) = context.claims.begin_release(owner) else { return Ok(false) };
    let keys = LockKeys::new(&record.key);
    let held = match (record.unconfirmed || unconfirmed, record.grant) {
        // Everything that hung on the session went with it.
        _ if record.session.is_gone() => false,
        (true, _) => release_unconfirmed(context, owner, &record, &keys).await?,
        (false, Some(grant)) => release_held(context, owner, &record, &keys, grant).await?,
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
    mut grant: StoredGrant,
) -> Result<bool> {
    let queue = keys.marker(Marker::Queue);
    let (mut read_queue, mut holders) = (record.has_waited, HoldersMarker::of(&grant));
    for _ in 0..DELETE_TRIES_MAX {
        let held = grant.name(keys, owner);
        let mut ops =
            vec![TxnOp::CheckIndex(held.clone(), grant.index), TxnOp::Delete(held.clone())];
        if read_queue {
            ops.push(TxnOp::Get(queue.clone()));
        }
        holders.push_ops(&mut ops, keys, grant.index);
        let refusals = match context.api.transact(&ops).await? {
            TxnOutcome::Committed(entries) => {
                delete_markers_if_last(context, owner, record, keys, &entries).await;
                return Ok(true);
            }
            TxnOutcome::Refused(refusals) => refusals,
        };
        let refused = |key: &str| is_refused(&ops, &refusals, key);
        if refused(&held) {
            // The grant is lost, or a foreign client wrote into its key, which leaves the key with
            // its session.
            let snapshot = KeySnapshot::new(&record.key, context.api.read_tree(keys.tree()).await?);
            let Some(own) = snapshot.own_grant(&context.claims, owner, record)? else {
                return Ok(false);
            };
            grant = own;
            holders = HoldersMarker::of(&grant);
        } else if refused(&keys.marker(Marker::Holders)) {
            holders = holders.after_refusal();
        }
        // A marker that does not exist refuses the transaction too: do not read it again.
        read_queue &= !refused(&queue);
    }
    let message = "a foreign client keeps writing into the key of the lock";
    Err(Error::new(ErrorKind::Unavailable, message))
}

/// What the release of a grant does about the holders marker.
#[derive(Clone, Copy)]
enum HoldersMarker {
    /// There is none, or it is gone.
    Ignore,
    /// No other holder was there before, and none has come since if the marker has the index of the
    /// grant: delete both.
    Delete,
    /// See who came last.
    Read,
}

impl HoldersMarker {
    fn of(grant: &StoredGrant) -> HoldersMarker {
        match grant.key {
            GrantKey::Lock => HoldersMarker::Ignore,
            GrantKey::Held { first: true } => HoldersMarker::Delete,
            GrantKey::Held { first: false } => HoldersMarker::Read,
        }
    }

    fn push_ops(self, ops: &mut Vec<TxnOp>, keys: &LockKeys, index: u64) {
        let marker = keys.marker(Marker::Holders);
        match self {
            HoldersMarker::Ignore => {}
            HoldersMarker::Delete => {
                ops.push(TxnOp::CheckIndex(marker.clone(), index));
                ops.push(TxnOp::Delete(marker));
                ops.push(TxnOp::Delete(keys.marker(Marker::Permits)));
            }
            HoldersMarker::Read => ops.push(TxnOp::Get(marker)),
        }
    }

    /// The marker had another index, or did not exist.
    fn after_refusal(self) -> HoldersMarker {
        match self {
            HoldersMarker::Delete => HoldersMarker::Read,
            HoldersMarker::Read | HoldersMarker::Ignore => HoldersMarker::Ignore,
        }
    }
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
    let ops = [TxnOp::Delete(entry.clone()), TxnOp::Get(keys.marker(Marker::Queue))];
    match context.api.transact(&ops).await? {
        TxnOutcome::Committed(entries) => {
            delete_markers_if_last(context, owner, record, keys, &entries).await;
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
        TxnOp::Tree(keys.tree()),
        TxnOp::Delete(keys.queue_entry(owner)),
        TxnOp::Delete(keys.held(owner)),
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
    let own = snapshot.own_grant(&context.claims, owner, record)?;
    let held = match own.filter(|grant| grant.key == GrantKey::Lock) {
        Some(lock) => {
            let ops = [TxnOp::CheckIndex(keys.lock(), lock.index), TxnOp::Delete(keys.lock())];
            matches!(context.api.transact(&ops).await?, TxnOutcome::Committed(_))
        }
        // A grant beside others was deleted with the tombstone.
        None => own.is_some(),
    };
    for marker in [Marker::Queue, Marker::Holders] {
        if snapshot.marker(marker).is_some_and(|entry| entry.value == owner.to_string()) {
            delete_marker(context, &record.key, keys, marker).await;
        }
    }
    Ok(held)
}

/// Deletes the markers that name this claim as the last that came. `entries` are those of a
/// transaction that read the markers that exist.
async fn delete_markers_if_last(
    context: &Context,
    owner: Owner,
    record: &ClaimRecord,
    keys: &LockKeys,
    entries: &[KvEntry],
) {
    for marker in [Marker::Queue, Marker::Holders] {
        let name = keys.marker(marker);
        match entries.iter().find(|entry| entry.key == name) {
            Some(entry) if entry.value == owner.to_string() => {
                delete_marker(context, &record.key, keys, marker).await;
            }
            Some(_) if marker == Marker::Queue => context.claims.set_contended(&record.key),
            _ => {}
        }
    }
}

/// Deletes a marker if nothing is left that it stands for, and otherwise leaves that to the last
/// one. A failure costs the next acquire to which the marker matters a request, and nothing else.
async fn delete_marker(context: &Context, key: &Key, keys: &LockKeys, marker: Marker) {
    let Ok(entries) = context.api.read_tree(keys.tree()).await else { return };
    let snapshot = KeySnapshot::new(key, entries);
    let Some(entry) = snapshot.marker(marker) else { return };
    let mut ops = vec![TxnOp::CheckIndex(entry.key.clone(), entry.modified)];
    match snapshot.last(marker) {
        Some(last) => ops.push(TxnOp::Set(entry.key.clone(), last.to_string())),
        None => ops.push(TxnOp::Delete(entry.key.clone())),
    }
    if marker == Marker::Holders && snapshot.holders.is_empty() {
        ops.push(TxnOp::Delete(keys.marker(Marker::Permits)));
    }
    let _ignored = context.api.transact(&ops).await;
}
