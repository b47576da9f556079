//! Wake-ups: the way of a server's push message to the task that waits for it.
//!
//! A client tells a server how it can be reached, sends a request and waits for a message. The
//! message takes another way than the response to the request: it may come before the response is
//! read, after the waiter lost interest, for an earlier request, or not at all if the connection
//! breaks. [`Wakeups`] is where these races are decided, once for all backends:
//!
//! - **Early message.** A waiter registers *before* its request is sent. From then on its messages
//!   are kept until [`Registration::next`] reads them. What came before is ignored.
//! - **Late message.** A grant carries a sequence number, which grows with every grant that the
//!   server can push to this waiter: the fencing token, or the number of the queue entry. A
//!   response that shows a number proves that grants up to it are over or another owner's;
//!   [`Registration::ignore_up_to`] drops them, whether they have come already or come later.
//! - **Evicted before it was read.** An eviction drops the unread grant that it ended. The waiter
//!   reads the eviction instead, and requests the lock again.
//! - **Lost message.** When a connection breaks, messages may be missing. After
//!   [`Wakeups::recheck_all`] every waiter requests again.
//! - **Dropped waiter.** `next` holds nothing while it waits: a signal is taken out only by the
//!   poll that returns it. Dropping a [`Registration`] drops its messages.
//!
//! A signal is a hint, and every waiter polls in any case: a mistake here costs time, except for a
//! grant, since one that is over must not be returned.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::sync::Mutex;
use crate::token::FencingToken;

/// What a server tells a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The waiter has the lock. The sequence number is at least 1.
    Granted { sequence: u64, token: FencingToken },
    /// The grant with this token was evicted; `None` if the server does not say which.
    Evicted { token: Option<FencingToken> },
    /// The state may have changed: it is worth another request after this pause.
    Recheck { after: Duration },
}

impl Signal {
    /// A recheck without a pause.
    pub(crate) const RECHECK: Signal = Signal::Recheck { after: Duration::ZERO };
}

/// The waiters of one backend, by what messages name: `K` is the owner of a claim, or a channel.
/// Clones share the waiters.
#[derive(Clone)]
pub(crate) struct Wakeups<K>(Arc<Mutex<Registered<K>>>);

struct Registered<K> {
    /// By key and number: a key may be registered more than once.
    inboxes: BTreeMap<(K, u64), Inbox>,
    /// How many registrations there ever were.
    count: u64,
}

/// The messages to one registration that were not read yet: the newest of each kind.
#[derive(Default)]
struct Inbox {
    /// Sequence number and token.
    grant: Option<(u64, FencingToken)>,
    /// The token of the evicted grant, if the server says which.
    eviction: Option<Option<FencingToken>>,
    /// After which pause.
    recheck: Option<Duration>,
    /// Grants up to this sequence number are ignored.
    floor: u64,
    /// Whether there ever was an eviction, read or not.
    evicted: bool,
    notify: Arc<Notify>,
}

impl<K: Ord + Clone> Wakeups<K> {
    /// Keeps the messages to `key` from now on. Call it before the request whose outcome the
    /// messages are about is sent.
    pub(crate) fn register(&self, key: K) -> Registration<K> {
        let mut registered = self.0.lock();
        registered.count += 1;
        let at = (key, registered.count);
        let inbox = registered.inboxes.entry(at.clone()).or_default();
        Registration { wakeups: self.clone(), notify: inbox.notify.clone(), at }
    }

    /// Hands a signal to every registration of `key`, and wakes only those.
    pub(crate) fn deliver(&self, key: &K, signal: Signal) {
        self.0.lock().inboxes.range_mut(of(key)).for_each(|(_, inbox)| inbox.put(signal));
    }

    /// Wakes every registration: messages may have been lost.
    pub(crate) fn recheck_all(&self) {
        self.0.lock().inboxes.values_mut().for_each(|inbox| inbox.put(Signal::RECHECK));
    }

    /// Whether a present registration of `key` was told of an eviction, read or not.
    pub(crate) fn was_evicted(&self, key: &K) -> bool {
        self.0.lock().inboxes.range(of(key)).any(|(_, inbox)| inbox.evicted)
    }
}

fn of<K: Clone>(key: &K) -> std::ops::RangeInclusive<(K, u64)> {
    (key.clone(), 0)..=(key.clone(), u64::MAX)
}

impl Inbox {
    fn put(&mut self, signal: Signal) {
        match signal {
            Signal::Granted { sequence, token } => {
                // Messages may overtake each other: only a later grant replaces an unread one.
                if sequence <= self.floor.max(self.unread_grant().unwrap_or(0)) {
                    return;
                }
                self.grant = Some((sequence, token));
            }
            Signal::Evicted { token } => {
                self.evicted = true;
                self.eviction = Some(token);
                // The eviction of an earlier grant may come late: it does not end this one.
                self.grant.take_if(|(_, granted)| token.is_none_or(|evicted| *granted == evicted));
            }
            Signal::Recheck { after } => {
                let sooner = self.recheck.map_or(after, |other| after.min(other));
                self.recheck = Some(sooner);
            }
        }
        self.notify.notify_one();
    }

    /// The next signal, the most useful first. A waiter that has the lock need not recheck.
    fn take(&mut self) -> Option<Signal> {
        if let Some((sequence, token)) = self.grant.take() {
            self.recheck = None;
            return Some(Signal::Granted { sequence, token });
        }
        if let Some(token) = self.eviction.take() {
            return Some(Signal::Evicted { token });
        }
        self.recheck.take().map(|after| Signal::Recheck { after })
    }

    fn unread_grant(&self) -> Option<u64> {
        self.grant.map(|(sequence, _)| sequence)
    }
}

/// Keeps the messages to one waiter until it is dropped.
pub(crate) struct Registration<K: Ord + Clone> {
    wakeups: Wakeups<K>,
    at: (K, u64),
    notify: Arc<Notify>,
}

impl<K: Ord + Clone> Registration<K> {
    /// Waits for the next signal and takes it out.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** A signal that was not returned is returned by the next call.
    pub(crate) async fn next(&self) -> Signal {
        loop {
            if let Some(signal) = self.try_next() {
                return signal;
            }
            // A signal between the two leaves a permit, so that it is not missed.
            self.notify.notified().await;
        }
    }

    /// The next signal, if it has come already.
    pub(crate) fn try_next(&self) -> Option<Signal> {
        self.wakeups.0.lock().inboxes.get_mut(&self.at)?.take()
    }

    /// A response showed that grants up to this sequence number are over or another owner's: they
    /// are ignored, whenever they come. One that was not read yet becomes a recheck.
    pub(crate) fn ignore_up_to(&self, sequence: u64) {
        if let Some(inbox) = self.wakeups.0.lock().inboxes.get_mut(&self.at) {
            inbox.floor = inbox.floor.max(sequence);
            if inbox.unread_grant().is_some_and(|unread| unread <= inbox.floor) {
                inbox.grant = None;
                inbox.put(Signal::RECHECK);
            }
        }
    }
}

impl<K: Ord + Clone> Drop for Registration<K> {
    fn drop(&mut self) {
        self.wakeups.0.lock().inboxes.remove(&self.at);
    }
}

impl<K> Default for Wakeups<K> {
    fn default() -> Wakeups<K> {
        Wakeups(Arc::new(Mutex::new(Registered { inboxes: BTreeMap::new(), count: 0 })))
    }
}

impl<K> fmt::Debug for Wakeups<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wakeups({} registered)", self.0.lock().inboxes.len())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const OWNER: u32 = 1;
    const OTHER: u32 = 2;
    const EVICTED: Signal = Signal::Evicted { token: None };

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    /// A grant whose token is its sequence number, as in a backend that counts by tokens.
    fn granted(number: u64) -> Signal {
        Signal::Granted { sequence: number, token: token(number) }
    }

    fn registered() -> (Wakeups<u32>, Registration<u32>) {
        let wakeups = Wakeups::default();
        let registration = wakeups.register(OWNER);
        (wakeups, registration)
    }

    fn now(registration: &Registration<u32>) -> Option<Signal> {
        registration.next().now_or_never()
    }

    #[test]
    fn a_message_before_next_is_kept_and_read_once() {
        let (wakeups, registration) = registered();
        for signal in [granted(7), Signal::RECHECK, EVICTED] {
            wakeups.deliver(&OWNER, signal);
            assert_eq!(now(&registration), Some(signal));
            assert_eq!(now(&registration), None);
        }
    }

    #[test]
    fn a_message_before_the_registration_is_ignored() {
        let wakeups = Wakeups::default();
        wakeups.deliver(&OWNER, granted(7));
        wakeups.deliver(&OWNER, EVICTED);
        wakeups.recheck_all();
        let earlier = wakeups.register(OWNER);
        assert_eq!(now(&earlier), None);
        assert!(!wakeups.was_evicted(&OWNER));
        wakeups.deliver(&OWNER, granted(8));
        drop(earlier);
        assert_eq!(now(&wakeups.register(OWNER)), None);
    }

    #[test]
    fn a_message_between_the_read_and_the_wait_of_next_is_not_missed() {
        let (wakeups, registration) = registered();
        // The two steps of `next`, with the message between them.
        assert_eq!(registration.try_next(), None);
        wakeups.deliver(&OWNER, granted(7));
        assert_eq!(registration.notify.notified().now_or_never(), Some(()));
        assert_eq!(now(&registration), Some(granted(7)));
    }

    #[test]
    fn a_message_wakes_only_the_waiters_of_its_owner() {
        let wakeups = Wakeups::default();
        let (registration, other) = (wakeups.register(OWNER), wakeups.register(OTHER));
        let (mut waiting, mut others) = (Box::pin(registration.next()), Box::pin(other.next()));
        assert!((&mut waiting).now_or_never().is_none());
        assert!((&mut others).now_or_never().is_none());
        wakeups.deliver(&OWNER, granted(7));
        assert_eq!(waiting.now_or_never(), Some(granted(7)));
        assert_eq!(others.now_or_never(), None);
    }

    #[test]
    fn two_registrations_of_one_owner_both_get_the_message() {
        let wakeups = Wakeups::default();
        let (first, second) = (wakeups.register(OWNER), wakeups.register(OWNER));
        wakeups.deliver(&OWNER, granted(7));
        assert_eq!(now(&first), Some(granted(7)));
        drop(first);
        assert_eq!(now(&second), Some(granted(7)));
        wakeups.deliver(&OWNER, granted(8));
        assert_eq!(now(&second), Some(granted(8)));
    }

    #[test]
    fn a_waiter_that_is_dropped_leaves_nothing_and_the_others_go_on() {
        let wakeups = Wakeups::default();
        let (dropped, other) = (wakeups.register(OWNER), wakeups.register(OTHER));
        assert_eq!(now(&dropped), None);
        drop(dropped);
        wakeups.deliver(&OWNER, granted(7));
        wakeups.recheck_all();
        assert_eq!(format!("{wakeups:?}"), "Wakeups(1 registered)");
        assert_eq!(now(&other), Some(Signal::RECHECK));
    }

    #[test]
    fn next_that_is_dropped_and_called_again_loses_nothing() {
        let (wakeups, registration) = registered();
        // Dropped before the message comes, and after it came but before it was polled again.
        assert_eq!(now(&registration), None);
        let mut dropped = Box::pin(registration.next());
        assert!((&mut dropped).now_or_never().is_none());
        wakeups.deliver(&OWNER, granted(7));
        drop(dropped);
        assert_eq!(now(&registration), Some(granted(7)));
        assert_eq!(now(&registration), None);
    }

    #[test]
    fn recheck_all_wakes_who_waits_and_is_kept_for_who_does_not_wait_yet() {
        let wakeups = Wakeups::default();
        let (waiter, later) = (wakeups.register(OWNER), wakeups.register(OTHER));
        let mut waiting = Box::pin(waiter.next());
        assert!((&mut waiting).now_or_never().is_none());
        wakeups.recheck_all();
        assert_eq!(waiting.now_or_never(), Some(Signal::RECHECK));
        assert_eq!(now(&later), Some(Signal::RECHECK));
        assert_eq!(now(&later), None);
    }

    #[test]
    fn a_recheck_or_an_earlier_grant_does_not_replace_an_unread_grant() {
        let (wakeups, registration) = registered();
        wakeups.deliver(&OWNER, granted(7));
        wakeups.deliver(&OWNER, granted(6));
        wakeups.recheck_all();
        assert_eq!(now(&registration), Some(granted(7)));
        assert_eq!(now(&registration), None, "who has the lock need not recheck");
    }

    #[test]
    fn the_sooner_of_two_rechecks_counts() {
        let (wakeups, registration) = registered();
        let after = |ms| Signal::Recheck { after: Duration::from_millis(ms) };
        for ms in [5, 2, 9] {
            wakeups.deliver(&OWNER, after(ms));
        }
        assert_eq!(now(&registration), Some(after(2)));
        assert_eq!(now(&registration), None);
    }

    #[test]
    fn an_eviction_ends_an_unread_grant() {
        let (wakeups, registration) = registered();
        for eviction in [EVICTED, Signal::Evicted { token: Some(token(8)) }] {
            wakeups.deliver(&OWNER, granted(8));
            wakeups.deliver(&OWNER, eviction);
            assert_eq!(now(&registration), Some(eviction));
            assert_eq!(now(&registration), None);
            assert!(wakeups.was_evicted(&OWNER), "also after it was read");
        }
        drop(registration);
        assert!(!wakeups.was_evicted(&OWNER));
    }

    #[test]
    fn the_eviction_of_an_earlier_grant_does_not_end_a_later_one() {
        let (wakeups, registration) = registered();
        let eviction = Signal::Evicted { token: Some(token(7)) };
        wakeups.deliver(&OWNER, granted(8));
        wakeups.deliver(&OWNER, eviction);
        assert_eq!(now(&registration), Some(granted(8)));
        assert_eq!(now(&registration), Some(eviction));
    }

    #[test]
    fn a_grant_that_is_not_above_the_floor_is_ignored() {
        let (wakeups, registration) = registered();
        registration.ignore_up_to(8);
        registration.ignore_up_to(7);
        for stale in [6, 8] {
            wakeups.deliver(&OWNER, granted(stale));
            assert_eq!(now(&registration), None, "{stale}");
        }
        wakeups.deliver(&OWNER, granted(9));
        registration.ignore_up_to(8);
        assert_eq!(now(&registration), Some(granted(9)));
    }

    #[test]
    fn an_unread_grant_below_a_new_floor_is_only_a_reason_to_recheck() {
        let (wakeups, registration) = registered();
        wakeups.deliver(&OWNER, granted(6));
        registration.ignore_up_to(8);
        assert_eq!(now(&registration), Some(Signal::RECHECK));
        assert_eq!(now(&registration), None);
    }
}
