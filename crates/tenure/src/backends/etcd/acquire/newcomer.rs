//! A claim that does not wait: written only if it is granted by that.
//!
//! One transaction compares and writes: *no claim of the queue that would exclude this one is
//! younger than what was read*. At first nothing was read, so that it says *there is none at all*,
//! which is all that an exclusive claim ever compares. A failed comparison reads who is there. If
//! the claim fits beside them (a reader beside a downgraded holder, permits beside others), the
//! transaction is repeated with the revision of that read: claims that have left meanwhile leave
//! more room, and a claim that came meanwhile makes the comparison fail once more.

use super::super::Context;
use super::super::claims::{ClaimState, PermitQueue};
use super::super::layout::messages::{Compare, RangeResponse, TxnRequest};
use super::super::layout::queue::{self, QueuedClaim};
use super::super::layout::{self, KeyRange, is_in_queue};
use super::position::{
    Holders, Obstacle, Others, QueuePosition, count, reads_of_others, whole_queue,
};
use super::{MAX_WRITES, cancelled, enqueue, put_claim, read_position, write};
use crate::backend::{Busy, Claim, Mode};
use crate::error::{Error, Result};

/// Writes the claim only if that grants it: a refusal changes nothing at the server.
pub(super) async fn write_if_free(context: &Context, state: &ClaimState) -> Result<QueuePosition> {
    let prefix = context.space.queue_prefix(&state.claim.key);
    // Claims that were created before it do not exclude this one.
    let mut known = 0;
    for _ in 0..MAX_WRITES {
        let request = request(context, state, &prefix, known);
        let response = write(context, state, request).await?;
        let (succeeded, read_at) = (response.succeeded, layout::revision(&response));
        let ranges = layout::ranges(response);
        match layout::first(ranges.first()) {
            Some(own) if succeeded => return Ok(QueuePosition::Granted(own.create_revision)),
            // An earlier attempt wrote it.
            Some(own) => return read_position(context, state, own.create_revision).await,
            None => {}
        }
        match standing(context, state, &prefix, &ranges[1..]).await? {
            Standing::Fits => known = read_at + 1,
            Standing::Refused(holders) => return Ok(QueuePosition::Refused(holders)),
            Standing::Empty => return Err(cancelled()),
            Standing::Unclear => break,
        }
    }
    // Written whatever is before it, which tells where it stands.
    enqueue(context, state).await
}

fn request(context: &Context, state: &ClaimState, prefix: &[u8], known: i64) -> TxnRequest {
    let tombstone = context.space.tombstone_key(state.session.id, state.claim.owner);
    let mut compare = comparisons(prefix, state.claim.mode, known);
    compare.push(layout::if_absent(&tombstone));
    if state.claim.mode != Mode::Exclusive {
        // An earlier attempt may have written it; that no claim is there covers it otherwise.
        compare.push(layout::if_absent(&state.server_key));
    }
    let own = || layout::read_op(layout::get(&state.server_key));
    let others = match state.claim.mode {
        Mode::Exclusive => vec![layout::oldest(prefix)],
        mode => reads_of_others(prefix, mode, 0),
    };
    let mut failure = vec![own()];
    failure.extend(others.into_iter().map(layout::read_op));
    TxnRequest { compare, success: vec![put_claim(state), own()], failure }
}

/// The conditions under which a claim that is written now fits, if it fits beside all claims that
/// were created before the revision `known`.
fn comparisons(prefix: &[u8], mode: Mode, known: i64) -> Vec<Compare> {
    match mode {
        _ if known == 0 && mode != Mode::Shared => vec![layout::if_none_below(prefix)],
        Mode::Shared => {
            let ranges = queue::outside(prefix, mode);
            // A revision is above 0, so that 1 stands for "there is none".
            ranges.map(|range| layout::if_all_before(range, known.max(1))).into()
        }
        _ => vec![layout::if_all_before(KeyRange::below(prefix), known)],
    }
}

/// How a claim that was not written would have stood.
enum Standing {
    Fits,
    Refused(Holders),
    /// There is no other claim, so that it is the tombstone that was found.
    Empty,
    /// A foreign client has locks with longer names below this one, which are not waited for.
    Unclear,
}

async fn standing(
    context: &Context,
    state: &ClaimState,
    prefix: &[u8],
    ranges: &[RangeResponse],
) -> Result<Standing> {
    let mode = state.claim.mode;
    if let Mode::Exclusive = mode {
        let Some(oldest) = layout::first(ranges.first()) else { return Ok(Standing::Empty) };
        if !is_in_queue(&oldest.key, prefix) {
            return Ok(Standing::Unclear);
        }
        return refused(context, state, prefix, QueuedClaim::new(oldest.clone(), prefix)).await;
    }
    let others = Others::new(ranges, prefix, mode)?;
    match others.obstacle(mode) {
        Obstacle::Unclear => Ok(Standing::Unclear),
        Obstacle::Claim(_) => refused(context, state, prefix, others.oldest).await,
        // The downgraded holder, which the comparison found.
        Obstacle::None if others.is_downgraded() => Ok(Standing::Fits),
        Obstacle::None if mode.is_lock() || others.permits.is_empty() => Ok(Standing::Empty),
        Obstacle::None => Ok(among_permits(state, others)),
    }
}

/// Whether a claim to permits fits beside all others.
fn among_permits(state: &ClaimState, others: Others) -> Standing {
    let all = others.permits.into_iter().map(|claim| (claim.kv.key, claim.mode));
    let mut claims: Vec<_> = all.collect();
    let holding = queue::holders(claims.iter().map(|(_, mode)| *mode));
    claims.push((state.server_key.clone(), state.claim.mode));
    if (PermitQueue { claims, read_at: 0 }).is_granted() {
        return Standing::Fits;
    }
    Standing::Refused(Holders { oldest: others.oldest.holder(), count: count(holding) })
}

/// Refused, by a key of the other kind or by who holds it.
async fn refused(
    context: &Context,
    state: &ClaimState,
    prefix: &[u8],
    oldest: QueuedClaim,
) -> Result<Standing> {
    if oldest.mode.is_lock() != state.claim.mode.is_lock() {
        return Err(Error::other_kind(&state.claim.key, oldest.mode));
    }
    if oldest.mode == Mode::Exclusive {
        return Ok(Standing::Refused(Holders::alone(&oldest)));
    }
    let (queue, _) = whole_queue(context, prefix, state).await?;
    // None if all have left just now: then it was one at least.
    let holding = queue::holders(queue.iter().map(|claim| claim.mode)).max(1);
    Ok(Standing::Refused(Holders { oldest: oldest.holder(), count: count(holding) }))
}

impl Holders {
    /// The response to a claim that they leave no room.
    pub(super) fn busy(self, claim: &Claim) -> Busy {
        let Holders { oldest, count } = self;
        Busy { holder: Some(Box::new(oldest)), holders: count, ..Busy::new(claim.key.clone()) }
    }
}
