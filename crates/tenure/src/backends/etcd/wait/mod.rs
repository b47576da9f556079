//! Waiting: until_free and until_lost, by watches of keys at the server.
//!
//! - An exclusive claim watches the youngest claim before it, for its deletion.
//! - A shared claim watches the youngest claim before it that is not shared, for its deletion or
//!   its downgrade.
//! - A claim to permits waits until those before it leave enough of them: one watch of the client
//!   tells all its waiters of the key (`departures`).
//! - A claim without a queue entry watches the holder; if there are several, the whole queue.
//!
//! So a release wakes one writer, or the readers of a run, or those whose permits are there. A
//! writer behind many readers looks once for each departure of the youngest that is left, and not
//! for every one. A waiter that leaves wakes as a holder does: it may be what excludes the readers
//! behind it.
//!
//! All are hints: whatever ends a watch, be it a deletion, a compaction, a refusal or a broken
//! stream, means "read the queue again", and the engine does that every third of the ttl without
//! any hint. So a mistake here delays a waiter, but breaks no lock. What this folder prevents is a
//! missed or late wake-up:
//!
//! - Each watch begins at the revision after the read that it continues. The server replays what
//!   happened in between.
//! - Such a replay is slow: the server serves watches that begin in the past only ten times a
//!   second. Where other clients have written since the read, [`until_changed`] therefore opens a
//!   second watch that begins now, and once that has begun reads the key itself: the key was
//!   changed before the read, or the watch will tell.

mod departures;
mod watches;

pub(super) use self::departures::Departures;
pub(super) use self::watches::Watches;
use super::Context;
use super::admin::{READ_LIMIT, holder_at};
use super::claims::WaitsFor;
use super::layout::messages::RangeResponse;
use super::layout::{self, KeyRange, RANGE};
use crate::backend::{Claim, Mode};

/// Returns when it is worth trying to acquire again.
pub(super) async fn until_free(context: &Context, claim: &Claim) {
    let state = context.claims.find_live(claim);
    let queued = state.and_then(|state| Some((state.waits_for?, state.session)));
    let Some((waits_for, session)) = queued else {
        return until_holders_change(context, claim).await;
    };
    let worth_it = async {
        match waits_for {
            WaitsFor::Change(predecessor) => {
                let key = predecessor.server_key;
                let or_put = predecessor.or_downgraded;
                until_changed(context, key, predecessor.watch_from, or_put).await;
            }
            WaitsFor::Permits(queue) => departures::until_granted(context, claim, queue).await,
        }
    };
    tokio::select! {
        () = worth_it => {}
        () = session.until_ended() => {}
    }
}

/// For a claim that has no queue entry. If the key is free, or its holder cannot be read, an
/// attempt is worth it now.
async fn until_holders_change(context: &Context, claim: &Claim) {
    let holder = holder_at(&context.connection, &context.space, &claim.key).await;
    let Ok((Some(holder), read_at)) = holder else { return };
    if holder.mode == Mode::Exclusive {
        let or_put = claim.mode == Mode::Shared;
        return until_changed(context, holder.kv.key, read_at + 1, or_put).await;
    }
    // There may be several: each that leaves is a change.
    let queue = KeyRange::below(&context.space.queue_prefix(&claim.key));
    context.watches.watch(queue, read_at + 1, false).ended().await;
}

/// Returns when a granted claim may be lost.
pub(super) async fn until_lost(context: &Context, claim: &Claim) {
    let Some(state) = context.claims.get(claim).filter(|state| state.granted) else { return };
    let key = KeyRange::one(state.server_key);
    tokio::select! {
        () = context.watches.watch(key, state.seen_at + 1, false).ended() => {}
        () = state.session.until_ended() => {}
    }
}

/// Returns when the key was deleted at revision `from` or later, or may have been; with `or_put`
/// also when it was put.
async fn until_changed(context: &Context, key: Vec<u8>, from: i64, or_put: bool) {
    let range = KeyRange::one(key.clone());
    let mut watch = context.watches.watch(range.clone(), from, or_put);
    // A server whose revision is before `from` has nothing to replay: this watch is prompt.
    if watch.begun().await.is_none_or(|revision| revision < from) {
        return watch.ended().await;
    }
    let mut watch = context.watches.watch(range, 0, or_put);
    watch.begun().await;
    let request = layout::keys_only(layout::get(&key));
    let read = context.connection.call::<_, RangeResponse>(RANGE, request, READ_LIMIT).await;
    let is_unchanged = |found: &RangeResponse| {
        found.kvs.first().is_some_and(|kv| !or_put || kv.mod_revision < from)
    };
    if read.is_ok_and(|found| is_unchanged(&found.body)) {
        watch.ended().await;
    }
}
