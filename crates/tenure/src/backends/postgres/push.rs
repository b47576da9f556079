//! Pushed messages of the server, and their delivery to the claims of this client.
//!
//! The server sends a message with `NOTIFY` on the client's channel: `grant OWNER TOKEN`,
//! `look OWNER` or `lost OWNER`.
//!
//! A claim is registered before its request is sent: a grant can be pushed, and arrive, before the
//! response to the request has been read. `support::wakeups` keeps it until then.
//!
//! A pushed grant does not say when its lease ends: the waiter counts the lease from its last
//! request that had a response. So a pushed grant must be later than anything that this response
//! showed. Pushes and responses come over different connections and either can be late: the push of
//! a grant that has expired, or was evicted, may arrive before or after the busy response that
//! shows the next holder. Tokens order them, because the token of a row only grows: a pushed token
//! counts only if it is above every token that a busy response showed to this claim.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use tokio::sync::mpsc;

use crate::backend::Owner;
use crate::support::sync::Mutex;
use crate::support::wakeups::{Registration, Signal, Wakeups};
use crate::token::FencingToken;

/// An eviction; the message does not name the grant.
const EVICTED: Signal = Signal::Evicted { token: None };

/// Delivers the messages of one channel to the claims of a client.
#[derive(Default)]
pub(super) struct PushRouter {
    wakeups: Wakeups<Owner>,
    /// The claims that wait, from before their first request until they hold the lock or end.
    waiters: Mutex<HashMap<Owner, Arc<Registration<Owner>>>>,
    /// Woken when a lock was evicted, or its connection ended.
    losses: Wakeups<Owner>,
    /// Receives evictions, where a lock ends with a connection that has to release it.
    evictions: OnceLock<mpsc::UnboundedSender<Owner>>,
}

/// A message of the server.
enum PushMessage {
    /// The claim is first in the queue; with a token, it holds the lock.
    Wake { owner: Owner, token: Option<FencingToken> },
    /// The lock of this claim was evicted.
    Evicted { owner: Owner },
}

impl PushMessage {
    fn parse(text: &str) -> Option<PushMessage> {
        let mut words = text.split(' ');
        let kind = words.next()?;
        let owner = words.next()?.parse().ok()?;
        if kind == "lost" {
            return Some(PushMessage::Evicted { owner });
        }
        let token = words.next().and_then(|word| word.parse().ok());
        Some(PushMessage::Wake { owner, token })
    }
}

impl PushRouter {
    /// Registers a claim, before its request is sent. A claim that is registered already keeps its
    /// messages.
    pub(super) fn register(&self, owner: Owner) {
        let mut waiters = self.waiters.lock();
        waiters.entry(owner).or_insert_with(|| Arc::new(self.wakeups.register(owner)));
    }

    /// The claim waits no longer.
    pub(super) fn unregister(&self, owner: Owner) {
        self.waiters.lock().remove(&owner);
    }

    /// A busy response showed this token: a push of it, or of a lower one, is stale, whenever it
    /// arrives.
    pub(super) fn ignore_up_to(&self, owner: Owner, token: FencingToken) {
        if let Some(registration) = self.waiters.lock().get(&owner) {
            registration.ignore_up_to(token.get());
        }
    }

    /// Waits for a message to the claim; `None` at once if the claim is not registered.
    pub(super) async fn wait(&self, owner: Owner) -> Option<Signal> {
        let registration = self.waiters.lock().get(&owner).cloned()?;
        Some(registration.next().await)
    }

    /// Returns a channel that receives evictions from now on. There can be only one.
    pub(super) fn evictions(&self) -> mpsc::UnboundedReceiver<Owner> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // A second receiver would get nothing; each client makes one.
        let _ignored = self.evictions.set(sender);
        receiver
    }

    /// Returns when the lock of this claim was lost, or at once if `is_held` is false.
    pub(super) async fn until_lost(&self, owner: Owner, is_held: impl Fn() -> bool) {
        let registration = self.losses.register(owner);
        // After the registration: a loss between the two would be missed otherwise.
        if is_held() {
            registration.next().await;
        }
    }

    /// The claim no longer holds its lock.
    pub(super) fn notify_lost(&self, owner: Owner) {
        self.losses.deliver(&owner, EVICTED);
    }

    /// Delivers a message of the server; ignores what it cannot read.
    pub(super) fn deliver(&self, text: &str) {
        match PushMessage::parse(text) {
            None => {}
            Some(PushMessage::Wake { owner, token: None }) => {
                self.wakeups.deliver(&owner, Signal::RECHECK);
            }
            Some(PushMessage::Wake { owner, token: Some(token) }) => {
                self.wakeups.deliver(&owner, Signal::Granted { sequence: token.get(), token });
            }
            Some(PushMessage::Evicted { owner }) => {
                // It may be the eviction of a grant that the waiter has not read yet.
                self.wakeups.deliver(&owner, EVICTED);
                match self.evictions.get() {
                    // If the receiver was dropped, there is no connection that has to release.
                    Some(receiver) => drop(receiver.send(owner)),
                    None => self.notify_lost(owner),
                }
            }
        }
    }

    /// A connection has ended or a new one listens: messages may have been missed, so that every
    /// waiter has to send another request.
    pub(super) fn recheck_all(&self) {
        self.wakeups.recheck_all();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn registered() -> (PushRouter, Owner) {
        let router = PushRouter::default();
        let owner = Owner::random();
        router.register(owner);
        (router, owner)
    }

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    fn granted(number: u64) -> Option<Signal> {
        Some(Signal::Granted { sequence: number, token: token(number) })
    }

    #[tokio::test]
    async fn a_grant_that_arrives_before_the_wait_is_not_missed() {
        let (router, owner) = registered();
        router.deliver(&format!("grant {owner} 7"));
        router.register(owner);
        assert_eq!(router.wait(owner).await, granted(7));
    }

    #[tokio::test]
    async fn a_late_grant_for_an_unregistered_claim_is_ignored() {
        let (router, owner) = registered();
        router.unregister(owner);
        router.deliver(&format!("grant {owner} 7"));
        assert_eq!(router.wait(owner).await, None);
        for nonsense in ["", "grant", "grant x 7", "lost", "\u{1f980} 1 2 3"] {
            router.deliver(nonsense);
        }
    }

    #[tokio::test]
    async fn a_pushed_grant_that_is_not_above_a_busy_response_is_stale() {
        let (router, owner) = registered();
        router.deliver(&format!("grant {owner} 6"));
        router.ignore_up_to(owner, token(8));
        // The grant is stale, but still a reason to send another request.
        assert_eq!(router.wait(owner).await, Some(Signal::RECHECK));
        for stale in [6, 8] {
            router.deliver(&format!("grant {owner} {stale}"));
            assert!(router.wait(owner).now_or_never().is_none(), "{stale}");
        }
        router.ignore_up_to(owner, token(7));
        router.deliver(&format!("grant {owner} 9"));
        router.ignore_up_to(owner, token(8));
        assert_eq!(router.wait(owner).await, granted(9));
    }

    #[tokio::test]
    async fn a_lost_connection_makes_every_waiter_recheck() {
        let (router, owner) = registered();
        router.recheck_all();
        assert_eq!(router.wait(owner).await, Some(Signal::RECHECK));
    }

    #[tokio::test]
    async fn an_eviction_ends_a_pushed_grant_and_wakes_the_holder() {
        let (router, owner) = registered();
        let mut lost = Box::pin(router.until_lost(owner, || true));
        assert!((&mut lost).now_or_never().is_none());
        router.deliver(&format!("grant {owner} 7"));
        router.deliver(&format!("lost {owner}"));
        assert_eq!(router.wait(owner).await, Some(EVICTED));
        lost.await;
    }
}
