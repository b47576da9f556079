//! Where pushed messages go: to the claim that they name, or to the claims that are subscribed to
//! their channel.
//!
//! # One wake-up
//!
//! 1. `acquire` registers the claim **before** its request is sent. From then on its messages are
//!    kept (see [`Wakeups`]).
//! 2. The response says *busy* and names the sequence of the claim's queue entry, which `acquire`
//!    records here. A connection may already have received the message that the lock was handed to
//!    this entry, before the task that awaits the response runs.
//! 3. `wait` reads the message. A grant that does not name the sequence that the response named is
//!    dropped: it is for an earlier entry of the same claim, and came late. That entry lapsed, and
//!    its grant with it.
//! 4. An eviction of the token that an unread message grants removes that message: the grant is
//!    over before it was read.
//! 5. When messages may have been missed, the claims are woken whose messages do not arrive any
//!    more, and each rechecks at the server.
//!
//! Messages only save time. A claim that misses one sends its request again before its queue entry
//! ends, and gets the same grant.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::{Connection, PushEvent, PushHandler, Subscription};
use super::layout::client_of;
use crate::backend::Owner;
use crate::support::held_watches::{HeldWatch, HeldWatches};
use crate::support::sync::Mutex;
use crate::support::wakeups::{Registration, Signal, Wakeups};

/// Routes pushed messages to the claims of one backend.
#[derive(Default)]
pub(super) struct PushRouter {
    waiting: Wakeups<Owner>,
    held: Arc<HeldWatches<Owner>>,
    /// By the channel of a lock that a foreign client holds.
    foreign: Wakeups<String>,
    waiters: Mutex<HashMap<Owner, WaiterState>>,
}

/// A claim that waits, or that has sent its first request and will.
struct WaiterState {
    messages: Arc<Registration<Owner>>,
    entry: QueueEntry,
    foreign: Option<Arc<ForeignSubscription>>,
}

/// What the last busy response said about a claim's queue entry.
#[derive(Clone, Default)]
pub(super) struct QueueEntry {
    /// Grows from entry to entry of a lock; 0 before the first response.
    pub(super) sequence: u64,
    /// The channel on which the claim is notified.
    pub(super) channel: String,
    /// The connection on which messages arrive, if the channel was subscribed to before the request
    /// was sent. Weak, since a connection that was replaced must not live on only because claims
    /// wait.
    pub(super) notified_on: Option<Weak<Connection>>,
    /// It is the first one, and the holder is a foreign client that does not know the queue.
    pub(super) behind_foreign_client: bool,
}

impl QueueEntry {
    /// Whether messages to the claim arrive, and have since before its last request.
    pub(super) fn is_notified(&self) -> bool {
        let connection = self.notified_on.as_ref().and_then(Weak::upgrade);
        connection.is_some_and(|connection| connection.is_subscribed(&self.channel))
    }
}

/// A claim that waits, as its last response left it.
pub(super) struct WaitingClaim {
    pub(super) entry: QueueEntry,
    messages: Arc<Registration<Owner>>,
}

impl WaitingClaim {
    /// The next message, if there is one.
    pub(super) fn try_next(&self) -> Option<Signal> {
        let is_current = |signal: &Signal| !self.is_late(*signal);
        std::iter::from_fn(|| self.messages.try_next()).find(is_current)
    }

    /// Waits for the next message.
    ///
    /// # Cancel safety
    ///
    /// Safe: a message that was not returned is returned by the next call.
    pub(super) async fn next(&self) -> Signal {
        loop {
            let signal = self.messages.next().await;
            if !self.is_late(signal) {
                return signal;
            }
        }
    }

    /// Whether it is a grant to an earlier entry of the claim, which is over.
    fn is_late(&self, signal: Signal) -> bool {
        matches!(signal, Signal::Granted { sequence, .. } if sequence != self.entry.sequence)
    }
}

/// A subscription to the channel of a lock that a foreign client holds.
pub(super) struct ForeignSubscription {
    pub(super) subscription: Subscription,
    pub(super) messages: Registration<String>,
}

impl ForeignSubscription {
    /// The lock is about to be requested, which will show what earlier messages were about.
    pub(super) fn forget_messages(&self) {
        while self.messages.try_next().is_some() {}
    }
}

impl PushRouter {
    /// The function that connections call. It does not keep the router alive, since the router
    /// keeps connections alive by its subscriptions.
    pub(super) fn handler(self: &Arc<Self>) -> PushHandler {
        let router = Arc::downgrade(self);
        Arc::new(move |event| {
            let Some(router) = router.upgrade() else { return };
            match event {
                PushEvent::Message { channel, text } => router.route(channel, text),
                PushEvent::Missed => router.missed(),
            }
        })
    }

    /// Registers a claim that is about to send a request and will wait if the lock is busy. `true`
    /// if it has a queue entry already, which the request will refresh.
    pub(super) fn register(&self, owner: Owner) -> bool {
        let mut waiters = self.waiters.lock();
        let waiter = waiters.entry(owner).or_insert_with(|| WaiterState {
            messages: Arc::new(self.waiting.register(owner)),
            entry: QueueEntry::default(),
            foreign: None,
        });
        if let Some(foreign) = &waiter.foreign {
            foreign.forget_messages();
        }
        waiter.entry.sequence > 0
    }

    /// Records what a busy response said about the claim's queue entry.
    pub(super) fn queued(&self, owner: Owner, entry: QueueEntry) {
        if let Some(waiter) = self.waiters.lock().get_mut(&owner) {
            waiter.entry = entry;
        }
    }

    /// The claim waits no longer.
    pub(super) fn unregister(&self, owner: Owner) {
        let waiter = self.waiters.lock().remove(&owner);
        // Not under the lock: this may end a subscription.
        drop(waiter);
    }

    /// A claim that waits: its queue entry and its messages.
    pub(super) fn waiting(&self, owner: Owner) -> Option<WaitingClaim> {
        let waiters = self.waiters.lock();
        let waiter = waiters.get(&owner)?;
        Some(WaitingClaim { entry: waiter.entry.clone(), messages: waiter.messages.clone() })
    }

    /// Keeps the subscription of a claim that waits behind a foreign client.
    pub(super) fn set_foreign(&self, owner: Owner, foreign: ForeignSubscription) {
        if let Some(waiter) = self.waiters.lock().get_mut(&owner) {
            waiter.foreign = Some(Arc::new(foreign));
        }
    }

    /// The subscription of a claim that waits behind a foreign client, if messages arrive.
    pub(super) fn foreign(&self, owner: Owner) -> Option<Arc<ForeignSubscription>> {
        let foreign = self.waiters.lock().get(&owner)?.foreign.clone()?;
        foreign.subscription.is_alive().then_some(foreign)
    }

    /// The messages on the channel of a lock that a foreign client holds.
    pub(super) fn foreign_messages(&self, channel: &str) -> Registration<String> {
        self.foreign.register(channel.to_owned())
    }

    /// Ends with the next message to a held claim: each of them may mean that it is lost.
    pub(super) fn watch_held(&self, owner: Owner) -> HeldWatch<Owner> {
        self.held.watch(owner)
    }

    /// Whether a message said that the claim was evicted.
    pub(super) fn was_evicted(&self, owner: Owner) -> bool {
        self.held.was_evicted(owner) || self.waiting.was_evicted(&owner)
    }

    /// Messages may have been missed.
    fn missed(&self) {
        self.held.notify_all();
        self.foreign.recheck_all();
        for (owner, waiter) in &mut *self.waiters.lock() {
            let entry = &mut waiter.entry;
            if entry.notified_on.is_some() && !entry.is_notified() {
                // Once: a connection that breaks and is then replaced reports this twice. A claim
                // that is not notified subscribes and rechecks in any case.
                entry.notified_on = None;
                self.waiting.deliver(owner, Signal::RECHECK);
            }
        }
    }

    fn route(&self, channel: &str, text: &str) {
        let Some(client) = client_of(channel) else {
            return self.foreign.deliver(&channel.to_owned(), Signal::RECHECK);
        };
        if let Some((owner, signal)) = parse(client, text) {
            self.waiting.deliver(&owner, signal);
            self.held.notify(owner, matches!(signal, Signal::Evicted { .. }));
        }
    }
}

impl fmt::Debug for PushRouter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushRouter")
            .field("waiting", &self.waiting)
            .field("held", &self.held)
            .finish_non_exhaustive()
    }
}

/// Reads `<claim number> <kind> <sequence> <token> <ms>`; see `notify` in `lua/common.lua`.
fn parse(client: &str, text: &str) -> Option<(Owner, Signal)> {
    let mut parts = text.split(' ');
    let owner = format!("{client}:{}", parts.next()?).parse().ok()?;
    let kind = parts.next()?;
    let sequence = parts.next()?.parse().ok()?;
    let token = parts.next()?;
    let ms = parts.next()?;
    let signal = match kind {
        "e" => Signal::Evicted { token: Some(token.parse().ok()?) },
        "g" => Signal::Granted { sequence, token: token.parse().ok()? },
        "l" => Signal::Recheck { after: Duration::from_millis(ms.parse().ok()?) },
        _ => return None,
    };
    Some((owner, signal))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::FencingToken;

    /// A claim, its channel, and the number that messages to it begin with.
    fn claim() -> (Owner, String, String) {
        let owner = Owner::random();
        let text = owner.to_string();
        let (client, number) = text.split_once(':').unwrap();
        (owner, format!("tenure:c:{client}"), number.to_owned())
    }

    fn granted(sequence: u64, token: u64) -> Signal {
        Signal::Granted { sequence, token: FencingToken::new(token).unwrap() }
    }

    fn next(router: &PushRouter, owner: Owner) -> Option<Signal> {
        router.waiting(owner).unwrap().try_next()
    }

    /// The response named this sequence.
    fn queue(router: &PushRouter, owner: Owner, sequence: u64) {
        router.register(owner);
        router.queued(owner, QueueEntry { sequence, ..QueueEntry::default() });
    }

    #[test]
    fn a_message_to_an_earlier_queue_entry_is_not_believed() {
        let router = PushRouter::default();
        let (owner, channel, number) = claim();
        router.route(&channel, &format!("{number} g 41 7 900"));
        assert!(router.waiting(owner).is_none(), "no claim waits");
        queue(&router, owner, 42);
        router.route(&channel, &format!("{number} g 41 7 900"));
        assert_eq!(next(&router, owner), None);
        router.route(&channel, &format!("{number} g 42 8 900"));
        assert_eq!(next(&router, owner), Some(granted(42, 8)));
        assert_eq!(next(&router, owner), None, "a message is read once");
        router.unregister(owner);
        assert_eq!(router.waiters.lock().len(), 0);
    }

    #[test]
    fn a_message_before_the_response_is_kept() {
        let router = PushRouter::default();
        let (owner, channel, number) = claim();
        router.register(owner);
        router.route(&channel, &format!("{number} g 42 8 900"));
        router.queued(owner, QueueEntry { sequence: 42, ..QueueEntry::default() });
        assert_eq!(next(&router, owner), Some(granted(42, 8)));
        router.route(&channel, &format!("{number} l 42 0 5"));
        let after = Duration::from_millis(5);
        assert_eq!(next(&router, owner), Some(Signal::Recheck { after }));
    }

    #[test]
    fn a_pushed_grant_that_was_evicted_is_not_believed() {
        let router = PushRouter::default();
        let (owner, channel, number) = claim();
        queue(&router, owner, 42);
        router.route(&channel, &format!("{number} g 42 8 900"));
        router.route(&channel, &format!("{number} e 0 7 0"));
        assert_eq!(next(&router, owner), Some(granted(42, 8)));
        router.route(&channel, &format!("{number} g 42 8 900"));
        router.route(&channel, &format!("{number} e 0 8 0"));
        assert!(!matches!(next(&router, owner), Some(Signal::Granted { .. })));
        assert!(router.was_evicted(owner));
    }

    #[test]
    fn missed_messages_wake_once_the_claims_whose_messages_do_not_arrive() {
        let router = PushRouter::default();
        let (owner, ..) = claim();
        router.register(owner);
        router.missed();
        assert_eq!(next(&router, owner), None, "it checks after its response");
        // The connection is gone.
        let notified_on = Some(Weak::new());
        router.queued(owner, QueueEntry { sequence: 1, notified_on, ..QueueEntry::default() });
        router.missed();
        assert_eq!(next(&router, owner), Some(Signal::RECHECK));
        router.missed();
        assert_eq!(next(&router, owner), None, "it rechecks once");
    }
}
