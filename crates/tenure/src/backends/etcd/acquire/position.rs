//! Where a claim stands in the queue of its key: what is read for each mode, and what follows from
//! it.
//!
//! Everything about one claim is read by one transaction, at one revision, and bounded by the
//! claim's own create revision.
//!
//! - Exclusive: the youngest two of the queue. Granted if there is no older claim.
//! - Shared: its own key, and the youngest claim that is not shared. Granted if there is none, or
//!   if that one is downgraded.
//! - Permits: its own key, the youngest claim that is not to permits, and all that are. Granted if
//!   there is none of the first kind, and the permits up to it are there.
//!
//! The oldest claim is read for all, because it is a holder: it is shown to those that wait, and it
//! decides whether the key is a lock or a semaphore. Only where that is not enough, [`among_all`]
//! reads the keys of the whole queue: to count several holders, and to leave out the keys of
//! foreign clients' locks with longer names, such as `name/more`.
//!
//! **The other kind.** A claim to a lock that finds a semaphore's claim as the oldest, or the
//! reverse, is refused: its caller deletes it at once. A claim that was in the queue before only
//! waits for such a key, because it may be one that is about to be deleted.

use std::collections::HashMap;

use super::super::Context;
use super::super::claims::{ClaimState, PermitQueue, Predecessor, WaitsFor, request_limit};
use super::super::error::unexpected;
use super::super::layout::messages::{KeyValue, RangeRequest, RangeResponse, TxnResponse};
use super::super::layout::queue::{self, QueuedClaim, is_outside};
use super::super::layout::{self, TXN, is_in_queue};
use crate::backend::{Holder, Mode};
use crate::error::{Error, Result};

/// Where a claim stands in the queue of its key.
pub(super) enum QueuePosition {
    /// It may hold, by this create revision.
    Granted(i64),
    /// Older claims leave it no room.
    Behind(QueueEntry),
    /// It was not written, because it does not wait, and would not have been granted.
    Refused(Holders),
    /// It was not written, was deleted, or its lease has ended.
    Missing,
}

/// A claim that waits.
pub(super) struct QueueEntry {
    pub(super) revision: i64,
    pub(super) waits_for: WaitsFor,
    pub(super) holders: Holders,
    /// How many wait before it, if the read tells.
    pub(super) ahead: Option<u32>,
}

/// Who holds the key.
pub(super) struct Holders {
    pub(super) oldest: Holder,
    pub(super) count: u32,
}

impl Holders {
    /// A holder that holds alone.
    pub(super) fn alone(holder: &QueuedClaim) -> Holders {
        Holders { oldest: holder.holder(), count: 1 }
    }
}

/// What one transaction has read about a claim.
pub(super) struct QueueRead {
    pub(super) ranges: Vec<RangeResponse>,
    /// The revision of all reads.
    pub(super) revision: i64,
    /// Whether the same transaction wrote the claim, which therefore is the last in the queue.
    pub(super) is_last: bool,
}

impl QueueRead {
    pub(super) fn new(response: TxnResponse, is_last: bool) -> QueueRead {
        let revision = layout::revision(&response);
        QueueRead { ranges: layout::ranges(response), revision, is_last }
    }
}

/// What to read about a claim with this create revision; 0 if the transaction writes it.
pub(super) fn reads(context: &Context, state: &ClaimState, revision: i64) -> Vec<RangeRequest> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    if let Mode::Exclusive = state.claim.mode {
        return vec![layout::youngest_two(&prefix, revision), layout::oldest(&prefix)];
    }
    let own = layout::keys_only(layout::get(&state.server_key));
    [vec![own], reads_of_others(&prefix, state.claim.mode, revision)].concat()
}

/// What a claim of this mode, which is not exclusive, reads about those before it.
pub(super) fn reads_of_others(prefix: &[u8], mode: Mode, revision: i64) -> Vec<RangeRequest> {
    let mut reads = vec![layout::oldest(prefix)];
    reads.extend(queue::outside(prefix, mode).map(|range| layout::youngest_in(range, revision)));
    if !mode.is_lock() {
        reads.push(layout::all_in(queue::permits(prefix), revision));
    }
    reads
}

/// The position of a claim in what was read for it.
pub(super) async fn position_in(
    context: &Context,
    state: &ClaimState,
    read: QueueRead,
) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    if let Mode::Exclusive = state.claim.mode {
        return exclusive_position(context, state, &prefix, read).await;
    }
    let own = layout::first(read.ranges.first()).filter(|kv| is_own(kv, state));
    let Some(revision) = own.map(|kv| kv.create_revision) else {
        return Ok(QueuePosition::Missing);
    };
    let others = Others::new(&read.ranges[1..], &prefix, state.claim.mode)?;
    match others.obstacle(state.claim.mode) {
        Obstacle::Unclear => among_all(context, state, &prefix).await,
        Obstacle::Claim(obstacle) => {
            check_kind(state, &others.oldest)?;
            if others.oldest.mode != Mode::Exclusive {
                return among_all(context, state, &prefix).await;
            }
            let predecessor = predecessor(&obstacle.key, read.revision, state.claim.mode);
            let waits_for = WaitsFor::Change(predecessor);
            let holders = Holders::alone(&others.oldest);
            Ok(QueuePosition::Behind(QueueEntry { revision, waits_for, holders, ahead: None }))
        }
        Obstacle::None if state.claim.mode.is_lock() => Ok(QueuePosition::Granted(revision)),
        Obstacle::None => Ok(permits_position(state, others, read.revision, revision)),
    }
}

/// The position of a claim that waits until it is the oldest.
async fn exclusive_position(
    context: &Context,
    state: &ClaimState,
    prefix: &[u8],
    read: QueueRead,
) -> Result<QueuePosition> {
    let QueueRead { ranges, revision: read_at, is_last } = read;
    let [youngest_two, oldest]: [RangeResponse; 2] =
        ranges.try_into().map_err(|_| unexpected("a read is missing"))?;
    let youngest = &youngest_two.kvs;
    let Some(own) = youngest.first().filter(|kv| is_own(kv, state)) else {
        return Ok(QueuePosition::Missing);
    };
    let (Some(next), Some(holder)) = (youngest.get(1), oldest.kvs.first()) else {
        return Ok(QueuePosition::Granted(own.create_revision));
    };
    if !is_in_queue(&next.key, prefix) || !is_in_queue(&holder.key, prefix) {
        return among_all(context, state, prefix).await;
    }
    let holder = QueuedClaim::new(holder.clone(), prefix);
    check_kind(state, &holder)?;
    if holder.mode != Mode::Exclusive {
        return among_all(context, state, prefix).await;
    }
    let ahead = if is_last {
        // All claims of the queue, but for this one and the holder.
        u32::try_from(oldest.count - 2).ok()
    } else {
        (next.key == holder.kv.key).then_some(0)
    };
    let waits_for = WaitsFor::Change(predecessor(&next.key, read_at, Mode::Exclusive));
    let holders = Holders::alone(&holder);
    let revision = own.create_revision;
    Ok(QueuePosition::Behind(QueueEntry { revision, waits_for, holders, ahead }))
}

/// The position of a claim to permits that has only such claims before it.
fn permits_position(
    state: &ClaimState,
    others: Others,
    read_at: i64,
    revision: i64,
) -> QueuePosition {
    let before = others.permits.into_iter().filter(|claim| claim.kv.create_revision < revision);
    let mut claims: Vec<_> = before.map(|claim| (claim.kv.key, claim.mode)).collect();
    // By its own present limit, whatever its key says.
    claims.push((state.server_key.clone(), state.claim.mode));
    let queue = PermitQueue { claims, read_at };
    if queue.is_granted() {
        return QueuePosition::Granted(revision);
    }
    let holding = queue::holders(queue.claims.iter().map(|(_, mode)| *mode));
    let ahead = count(queue.claims.len() - 1 - holding);
    let holders = Holders { oldest: others.oldest.holder(), count: count(holding) };
    let waits_for = WaitsFor::Permits(queue);
    QueuePosition::Behind(QueueEntry { revision, waits_for, holders, ahead: Some(ahead) })
}

/// What a claim that is not exclusive has read about those before it.
pub(super) struct Others {
    pub(super) oldest: QueuedClaim,
    /// The youngest claim of another mode.
    outside: Option<KeyValue>,
    /// Whether a key that was read is no claim to this key, but to a longer name.
    has_longer_names: bool,
    /// The claims to permits, if the claim is one.
    pub(super) permits: Vec<QueuedClaim>,
}

/// What is in the way of a claim that is not exclusive.
pub(super) enum Obstacle<'a> {
    /// No claim of another mode.
    None,
    /// This claim.
    Claim(&'a KeyValue),
    /// What was read does not tell.
    Unclear,
}

impl Others {
    /// From what [`reads_of_others`] asked for.
    pub(super) fn new(ranges: &[RangeResponse], prefix: &[u8], mode: Mode) -> Result<Others> {
        let [oldest, one, two, rest @ ..] = ranges else {
            return Err(unexpected("a read is missing"));
        };
        let outside = one.kvs.iter().chain(&two.kvs).max_by_key(|kv| kv.create_revision).cloned();
        let oldest = oldest.kvs.first().cloned().unwrap_or_default();
        let read = [Some(&oldest), outside.as_ref()];
        let is_longer = |kv: &KeyValue| !kv.key.is_empty() && !is_in_queue(&kv.key, prefix);
        let has_longer_names = read.into_iter().flatten().any(is_longer);
        let permits = match rest.first() {
            Some(range) => queue::claims(range.kvs.clone(), prefix),
            None if mode.is_lock() => Vec::new(),
            None => return Err(unexpected("a read is missing")),
        };
        let oldest = QueuedClaim::new(oldest, prefix);
        Ok(Others { oldest, outside, has_longer_names, permits })
    }

    pub(super) fn obstacle(&self, mode: Mode) -> Obstacle<'_> {
        match &self.outside {
            // All claims of the other modes are younger than one of this mode.
            None => Obstacle::None,
            Some(_) if self.has_longer_names => Obstacle::Unclear,
            // If the youngest is the downgraded one, there is no other.
            Some(_) if mode == Mode::Shared && self.is_downgraded() => Obstacle::None,
            Some(obstacle) => Obstacle::Claim(obstacle),
        }
    }

    /// Whether the youngest claim of another mode is the oldest of all, and has become shared.
    pub(super) fn is_downgraded(&self) -> bool {
        let is_oldest = |kv: &KeyValue| kv.key == self.oldest.kv.key;
        self.outside.as_ref().is_some_and(is_oldest) && self.oldest.mode == Mode::Shared
    }
}

/// The position of a claim by the keys of the whole queue.
pub(super) async fn among_all(
    context: &Context,
    state: &ClaimState,
    prefix: &[u8],
) -> Result<QueuePosition> {
    let (queue, read_at) = whole_queue(context, prefix, state).await?;
    let Some(rank) = queue.iter().position(|claim| is_own(&claim.kv, state)) else {
        return Ok(QueuePosition::Missing);
    };
    let revision = queue[rank].kv.create_revision;
    let holding = queue::holders(queue.iter().map(|claim| claim.mode));
    if rank < holding {
        return Ok(QueuePosition::Granted(revision));
    }
    check_kind(state, &queue[0])?;
    let mode = state.claim.mode;
    let excludes = |claim: &&QueuedClaim| match mode {
        Mode::Exclusive => true,
        _ => is_outside(&claim.kv.key, prefix, mode),
    };
    let waits_for = match queue[..rank].iter().rev().find(excludes) {
        Some(claim) => WaitsFor::Change(predecessor(&claim.kv.key, read_at, mode)),
        None => {
            let claims = queue[..=rank].iter().map(|claim| (claim.kv.key.clone(), claim.mode));
            WaitsFor::Permits(PermitQueue { claims: claims.collect(), read_at })
        }
    };
    let holders = Holders { oldest: queue[0].holder(), count: count(holding) };
    let ahead = Some(count(rank - holding));
    Ok(QueuePosition::Behind(QueueEntry { revision, waits_for, holders, ahead }))
}

/// Reads the keys of the whole queue, the values of claims to permits, and who is the oldest.
pub(super) async fn whole_queue(
    context: &Context,
    prefix: &[u8],
    state: &ClaimState,
) -> Result<(Vec<QueuedClaim>, i64)> {
    let reads = vec![
        layout::keys_only(layout::all(prefix)),
        layout::all_in(queue::permits(prefix), 0),
        layout::oldest(prefix),
    ];
    let limit = request_limit(state.claim.ttl);
    let response = context.connection.call(TXN, layout::read_all(reads), limit).await?;
    let response: TxnResponse = response.body;
    let read_at = layout::revision(&response);
    let [mut all, permits, oldest]: [RangeResponse; 3] =
        layout::ranges(response).try_into().map_err(|_| unexpected("a read is missing"))?;
    let valued = permits.kvs.into_iter().chain(oldest.kvs);
    let mut valued: HashMap<_, _> = valued.map(|kv| (kv.key.clone(), kv)).collect();
    for kv in &mut all.kvs {
        if let Some(with_value) = valued.remove(&kv.key) {
            *kv = with_value;
        }
    }
    let mut queue = queue::claims(all.kvs, prefix);
    // A claim to permits is judged by the limit that it states now.
    let is_restated = |claim: &&mut QueuedClaim| is_own(&claim.kv, state) && !claim.mode.is_lock();
    if let Some(own) = queue.iter_mut().find(is_restated) {
        own.mode = state.claim.mode;
    }
    Ok((queue, read_at))
}

/// A claim that comes to a key of the other kind is refused.
fn check_kind(state: &ClaimState, oldest: &QueuedClaim) -> Result<()> {
    let was_queued = state.revision.is_some();
    if was_queued || oldest.mode.is_lock() == state.claim.mode.is_lock() {
        return Ok(());
    }
    Err(Error::other_kind(&state.claim.key, oldest.mode))
}

fn predecessor(server_key: &[u8], read_at: i64, mode: Mode) -> Predecessor {
    let or_downgraded = mode == Mode::Shared;
    Predecessor { server_key: server_key.to_vec(), watch_from: read_at + 1, or_downgraded }
}

/// Whether this is the claim's key, on its lease.
pub(super) fn is_own(kv: &KeyValue, state: &ClaimState) -> bool {
    kv.key == state.server_key && kv.lease == state.session.id
}

pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
