//! Who waits in this client, and for what the server may call.
//!
//! A place is made before its ask is sent, so that a grant that is pushed before the ask's answer
//! has been read is not missed.
//!
//! A push says nothing of when its lease ends: the waiter counts it from its last request that was
//! answered. So a push must be of a later grant than anything that response showed. Pushes and
//! responses come over different connections, and either may be late: a push whose grant has run
//! out, or was evicted, may arrive before or after the busy response that shows the next holder.
//! Tokens tell them apart, since a row's token only grows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, mpsc};

use crate::claim::Owner;
use crate::token::FencingToken;

/// The bells of one client, all rung over one channel.
#[derive(Default)]
pub(super) struct Bells {
    places: Mutex<HashMap<Owner, Place>>,
    /// Called with the owner of a lock that somebody evicted.
    losses: Mutex<HashMap<Owner, Arc<Notify>>>,
    /// Told of evictions, where a lock hangs on a connection that has to let it go.
    evictions: OnceLock<mpsc::UnboundedSender<Owner>>,
}

/// A claim that waits.
#[derive(Default)]
struct Place {
    /// A pushed grant; always above `floor`.
    pushed: Option<FencingToken>,
    /// The highest token that a busy response showed: the grants up to it are over, or another's.
    floor: Option<FencingToken>,
    rung: bool,
    bell: Arc<Notify>,
}

/// What a waiter hears.
pub(super) enum Call {
    /// Nobody rings for this claim: it has no place.
    None,
    /// Look now.
    Look,
    /// It is yours.
    Granted(FencingToken),
}

impl Bells {
    /// Makes a place, before its ask is sent.
    pub(super) fn expect(&self, owner: Owner) {
        self.places().entry(owner).or_default();
    }

    /// A busy response showed this token: a push of it, or of an earlier one, is void, whenever it
    /// arrives.
    pub(super) fn shown(&self, owner: Owner, token: FencingToken) {
        if let Some(place) = self.places().get_mut(&owner) {
            place.floor = place.floor.max(Some(token));
            place.pushed = place.pushed.filter(|pushed| Some(*pushed) > place.floor);
        }
    }

    /// The claim waits no longer.
    pub(super) fn forget(&self, owner: Owner) {
        self.places().remove(&owner);
    }

    /// Waits until the claim's bell is rung.
    pub(super) async fn wait(&self, owner: Owner) -> Call {
        loop {
            let bell = match self.places().get_mut(&owner) {
                None => return Call::None,
                Some(place) => {
                    if let Some(token) = place.pushed.take() {
                        return Call::Granted(token);
                    }
                    if std::mem::take(&mut place.rung) {
                        return Call::Look;
                    }
                    place.bell.clone()
                }
            };
            // A ring before this leaves a permit, so it is not missed.
            bell.notified().await;
        }
    }

    /// Evictions from now on, for one listener.
    pub(super) fn evictions(&self) -> mpsc::UnboundedReceiver<Owner> {
        let (sender, receiver) = mpsc::unbounded_channel();
        // A second listener would hear nothing; there is none.
        let _only_one = self.evictions.set(sender);
        receiver
    }

    /// Returns when somebody says that this claim was evicted, or at once if `is_held` denies it.
    pub(super) async fn until_lost(&self, owner: Owner, is_held: impl Fn() -> bool) {
        let bell = self.losses().entry(owner).or_default().clone();
        let _leave = Leave(self, owner);
        if is_held() {
            bell.notified().await;
        }
    }

    /// The claim is no longer held.
    pub(super) fn lose(&self, owner: Owner) {
        if let Some(bell) = self.losses().get(&owner) {
            bell.notify_one();
        }
    }

    /// A grant that the waiter has not seen yet may have been evicted: it has to ask again.
    fn recheck(&self, owner: Owner) {
        if let Some(place) = self.places().get_mut(&owner) {
            (place.pushed, place.rung) = (None, true);
            place.bell.notify_one();
        }
    }

    /// The server pushed a message: `grant OWNER TOKEN`, `look OWNER` or `lost OWNER`.
    pub(super) fn hear(&self, message: &str) {
        let mut words = message.split(' ');
        let (verb, owner) = (words.next(), words.next().and_then(|word| word.parse().ok()));
        let (Some(verb), Some(owner)) = (verb, owner) else { return };
        match verb {
            "lost" => {
                self.recheck(owner);
                match self.evictions.get() {
                    // A listener that is gone has nothing to let go.
                    Some(listener) => drop(listener.send(owner)),
                    None => self.lose(owner),
                }
            }
            _ => {
                let token: Option<FencingToken> = words.next().and_then(|word| word.parse().ok());
                if let Some(place) = self.places().get_mut(&owner)
                    && (token.is_none() || token > place.floor)
                {
                    place.pushed = place.pushed.max(token);
                    place.rung = true;
                    place.bell.notify_one();
                }
            }
        }
    }

    /// The channel is gone: whatever was pushed may be missed, so that everybody has to look.
    pub(super) fn deaf(&self) {
        for place in self.places().values_mut() {
            place.rung = true;
            place.bell.notify_one();
        }
    }

    fn places(&self) -> MutexGuard<'_, HashMap<Owner, Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn losses(&self) -> MutexGuard<'_, HashMap<Owner, Arc<Notify>>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a bell down when nobody listens for it any more.
struct Leave<'a>(&'a Bells, Owner);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.losses().remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_grant_that_comes_before_the_wait_is_not_missed() {
        let (bells, owner) = (Bells::default(), Owner::random());
        bells.expect(owner);
        bells.hear(&format!("grant {owner} 7"));
        let Call::Granted(token) = bells.wait(owner).await else { panic!("no grant") };
        assert_eq!(token.get(), 7);
    }

    #[tokio::test]
    async fn a_late_grant_for_a_finished_claim_is_ignored() {
        let (bells, owner) = (Bells::default(), Owner::random());
        bells.expect(owner);
        bells.forget(owner);
        bells.hear(&format!("grant {owner} 7"));
        assert!(matches!(bells.wait(owner).await, Call::None));
        for nonsense in ["", "grant", "grant x 7", "lost", "\u{1f980} 1 2 3"] {
            bells.hear(nonsense);
        }
    }

    #[tokio::test]
    async fn a_push_that_is_not_above_a_busy_response_is_void() {
        let (bells, owner) = (Bells::default(), Owner::random());
        let token = |number| FencingToken::new(number).unwrap();
        bells.expect(owner);
        bells.hear(&format!("grant {owner} 6"));
        bells.shown(owner, token(8));
        // What is left of it is a reason to look.
        assert!(matches!(bells.wait(owner).await, Call::Look));
        for stale in [6, 8] {
            bells.hear(&format!("grant {owner} {stale}"));
            assert!(bells.wait(owner).now_or_never().is_none(), "{stale}");
        }
        bells.shown(owner, token(7));
        bells.hear(&format!("grant {owner} 9"));
        bells.shown(owner, token(8));
        let Call::Granted(granted) = bells.wait(owner).await else { panic!("no grant") };
        assert_eq!(granted, token(9));
    }

    #[tokio::test]
    async fn a_lost_channel_makes_everybody_look() {
        let (bells, owner) = (Bells::default(), Owner::random());
        bells.expect(owner);
        bells.deaf();
        assert!(matches!(bells.wait(owner).await, Call::Look));
    }
}
