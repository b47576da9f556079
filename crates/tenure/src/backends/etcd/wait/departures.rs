//! Waiting for permits: one watch of the client tells all its waiters of a key who has left.
//!
//! A claim to permits fits when those before it have left enough of them, and that may be any of
//! them: the end of one predecessor is not enough to know. If each waiter watched all claims, each
//! release would be one message for each waiter. So the waiters of one client share one watch, the
//! *feed* of the key; each has the claims before it from its own last read, strikes out those that
//! the feed names, and applies the rule. Only the one that fits then sends a request, which proves
//! it by another read.
//!
//! **A missed departure.** A waiter may come to a feed that began long ago. It subscribes first,
//! and compares then: everything that was deleted after `told_until` comes to it as an event. If
//! its read is older than that, it reads once more. A feed that ends (with its stream, by a
//! compaction, or because it was refused), and a waiter that is too slow for its events, end the
//! wait: the queue is then read again. So nothing is missed, at the cost of a read.
//!
//! A waiter that raises its limit puts its key, and the feed leaves puts out: those behind it see
//! that at their next request, a third of their ttl later at most.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::sync::broadcast;
use tokio::sync::broadcast::Receiver;

use super::super::Context;
use super::super::admin::READ_LIMIT;
use super::super::claims::PermitQueue;
use super::super::layout::messages::{KeyValue, RangeResponse};
use super::super::layout::{self, RANGE, queue};
use super::watches::{FeedCancel, Watches};
use crate::backend::Claim;
use crate::support::sync::Mutex;

/// How many events a waiter may be behind before it reads the queue instead.
const EVENTS: usize = 64;

/// The feeds that some claim waits on, by the prefix of their queue.
#[derive(Debug, Default)]
pub(in super::super) struct Departures {
    feeds: Mutex<HashMap<Vec<u8>, Weak<Feed>>>,
}

/// One watch for all deletions of claims to permits of a key. It ends with its last waiter.
#[derive(Debug)]
pub(super) struct Feed {
    state: Mutex<FeedState>,
    events: broadcast::Sender<FeedEvent>,
    _cancel: FeedCancel,
}

#[derive(Debug, Default)]
struct FeedState {
    /// The revision of the last event, or of the beginning of the watch; 0 until it has begun.
    told_until: i64,
    ended: bool,
}

#[derive(Clone, Debug)]
enum FeedEvent {
    Begun,
    Deleted(Arc<[Vec<u8>]>),
    Ended,
}

/// A waiter's end of a feed.
struct FeedReader {
    feed: Arc<Feed>,
    events: Receiver<FeedEvent>,
}

impl Departures {
    /// Subscribes to what is deleted from now on.
    fn subscribe(&self, watches: &Watches, prefix: &[u8]) -> FeedReader {
        let mut feeds = self.feeds.lock();
        feeds.retain(|_, feed| feed.strong_count() > 0);
        let known = feeds.get(prefix).and_then(Weak::upgrade);
        let feed = known.filter(|feed| !feed.state.lock().ended).unwrap_or_else(|| {
            let feed = watches.feed(queue::permits(prefix));
            feeds.insert(prefix.to_vec(), Arc::downgrade(&feed));
            feed
        });
        FeedReader { events: feed.events.subscribe(), feed }
    }
}

impl Feed {
    pub(super) fn new(cancel: FeedCancel) -> Feed {
        let (events, _) = broadcast::channel(EVENTS);
        Feed { state: Mutex::default(), events, _cancel: cancel }
    }

    /// The server watches from after this revision.
    pub(super) fn begin(&self, revision: i64) {
        self.tell(FeedEvent::Begun, |state| state.told_until = revision);
    }

    pub(super) fn deleted<'a>(&self, keys: impl Iterator<Item = &'a KeyValue>) {
        let mut last = 0;
        let keys = keys.map(|kv| {
            last = last.max(kv.mod_revision);
            kv.key.clone()
        });
        let event = FeedEvent::Deleted(keys.collect());
        self.tell(event, |state| state.told_until = state.told_until.max(last));
    }

    pub(super) fn end(&self) {
        self.tell(FeedEvent::Ended, |state| state.ended = true);
    }

    /// The event is sent before the state is released, so that a subscriber that does not get it
    /// finds it in the state.
    fn tell(&self, event: FeedEvent, change: impl FnOnce(&mut FeedState)) {
        let mut state = self.state.lock();
        change(&mut state);
        let _without_waiters = self.events.send(event);
    }
}

impl FeedReader {
    /// Waits until the server watches. Returns the revision up to which events may have come before
    /// this subscription; `None` if the feed has ended.
    async fn begun(&mut self) -> Option<i64> {
        loop {
            let (told_until, ended) = {
                let state = self.feed.state.lock();
                (state.told_until, state.ended)
            };
            if ended {
                return None;
            }
            if told_until > 0 {
                return Some(told_until);
            }
            self.events.recv().await.ok()?;
        }
    }
}

/// Returns when the permits of the last claim of this queue are there, or may be.
pub(super) async fn until_granted(context: &Context, claim: &Claim, mut queue: PermitQueue) {
    let prefix = context.space.queue_prefix(&claim.key);
    let mut subscription = context.departures.subscribe(&context.watches, &prefix);
    let Some(told_until) = subscription.begun().await else { return };
    if queue.read_at < told_until && !strike_out_absent(context, &prefix, &mut queue).await {
        return;
    }
    while !queue.is_granted() {
        match subscription.events.recv().await {
            Ok(FeedEvent::Deleted(keys)) => queue.strike_out(|key| keys.iter().any(|k| k == key)),
            Ok(FeedEvent::Begun) => {}
            // Something may have been missed.
            Ok(FeedEvent::Ended) | Err(_) => return,
        }
    }
}

/// Reads which of the claims are still there. `false` if there was no response, or if the claim
/// that waits is not there itself.
async fn strike_out_absent(context: &Context, prefix: &[u8], queue: &mut PermitQueue) -> bool {
    let request = layout::keys_only(layout::all_in(queue::permits(prefix), 0));
    let read = context.connection.call::<_, RangeResponse>(RANGE, request, READ_LIMIT).await;
    let Ok(read) = read else { return false };
    let present: std::collections::HashSet<_> =
        read.body.kvs.into_iter().map(|kv| kv.key).collect();
    let own = queue.claims.last().map(|(key, _)| key.clone());
    queue.strike_out(|key| !present.contains(key));
    own.is_some_and(|own| present.contains(&own))
}
