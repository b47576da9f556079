//! How a claim hears that it is its turn, or that it is gone. All of this is only about time: who
//! misses a message asks again before its place ends.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::post::{Ear, Letter, Waiting};
use super::settings::Layout;
use super::{Redis, lease};
use crate::backend::{Claim, Grant, Owner, Scope};

impl Redis {
    /// Returns when the claim should ask again, or with the grant that the server pushed.
    pub(super) async fn wait_for_turn(&self, claim: &Claim) -> Option<Grant> {
        let owner = claim.owner;
        if self.post.waiting(owner).is_none() {
            self.wait_until_free(claim).await;
            return None;
        }
        if self.polls.load(Ordering::Relaxed) {
            tokio::time::sleep(jitter(owner)).await;
            return None;
        }
        loop {
            let (waiting, bell) = self.post.waiting(owner)?;
            let mut rung = pin!(bell.notified());
            // Listen first, then look: what comes in between must not be missed.
            rung.as_mut().enable();
            match self.post.letter(owner, waiting.place) {
                Some(Letter::Granted { token, .. }) if self.is_whole(claim) => {
                    // It waits no longer: whoever watches it opens a mailbox anew.
                    self.post.close(owner);
                    return Some(Grant::new(token, lease(claim.ttl)));
                }
                Some(Letter::Granted { .. }) => return None,
                Some(Letter::Look { wait, .. }) => {
                    tokio::time::sleep(wait).await;
                    return None;
                }
                None => {}
            }
            if !self.is_heard(claim, &waiting) {
                self.hear(claim).await;
                return None;
            }
            if !waiting.behind_stranger {
                rung.await;
            } else {
                tokio::select! {
                    () = rung => {}
                    () = self.wait_for_stranger(claim) => return None,
                }
            }
        }
    }

    /// Whether a pushed grant is all that was wanted. What the replicas have is known only after
    /// asking; and the lease of a place is too short for one that nobody renews. The same owner's
    /// request answers the same grant, with the whole ttl.
    fn is_whole(&self, claim: &Claim) -> bool {
        self.settings.replicas == 0 && !claim.fixed
    }

    /// Returns when the claim may be gone.
    pub(super) async fn wait_for_loss(&self, claim: &Claim) {
        if self.polls.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let watcher = self.post.watch(claim.owner);
        let mut rung = pin!(watcher.bell.notified());
        rung.as_mut().enable();
        if self.post.was_evicted(claim.owner) {
            return;
        }
        self.hear(claim).await;
        rung.await;
    }

    fn is_heard(&self, claim: &Claim, waiting: &Waiting) -> bool {
        let inbox = self.inbox(claim.key.as_str(), claim.owner);
        let wire = waiting.heard_by.as_ref().and_then(std::sync::Weak::upgrade);
        wire.is_some_and(|wire| wire.hears(&inbox))
    }

    /// Makes the claim's messages come to us. What came before is missed: look once more.
    async fn hear(&self, claim: &Claim) {
        let inbox = self.inbox(claim.key.as_str(), claim.owner);
        let Ok(wire) = self.servers.wire(claim.key.as_str()).await else {
            return tokio::time::sleep(jitter(claim.owner)).await;
        };
        if wire.hears(&inbox) {
            return;
        }
        match wire.subscribe(&inbox, self.sharded.load(Ordering::Relaxed)).await {
            Ok(subscription) => subscription.keep(),
            Err(error) => {
                if error.code() == Some("NOPERM") {
                    self.polls.store(true, Ordering::Relaxed);
                }
                if let super::Servers::Cluster(cluster) = &self.servers {
                    cluster.doubt();
                }
                tokio::time::sleep(jitter(claim.owner)).await;
            }
        }
    }

    /// Returns when the lock of a holder that does not know our queue may be free. Such a holder
    /// tells everybody, or nobody; only the first waiter listens, so that it does not wake them
    /// all.
    async fn wait_for_stranger(&self, claim: &Claim) {
        if self.settings.layout == Layout::Plain {
            return tokio::time::sleep(jitter(claim.owner)).await;
        }
        if let Some((mut messages, seen)) = self.post.ear(claim.owner) {
            // It ends only with the mailbox.
            let _news = messages.wait_for(|count| *count != seen).await.map(|_| ());
            return;
        }
        match self.listen(claim).await {
            // Look once more: it may have become free in between.
            Some(ear) => self.post.set_ear(claim.owner, Some(ear)),
            None => tokio::time::sleep(jitter(claim.owner)).await,
        }
    }

    async fn listen(&self, claim: &Claim) -> Option<Ear> {
        let channel = self.free_channel(claim.key.as_str());
        if channel.is_empty() || self.polls.load(Ordering::Relaxed) {
            return None;
        }
        let messages = self.post.listen(&channel);
        let wire = self.servers.wire(claim.key.as_str()).await.ok()?;
        let sharded = self.sharded.load(Ordering::Relaxed);
        let subscription = wire.subscribe(&channel, sharded).await.ok()?;
        let seen = *messages.borrow();
        Some(Ear { subscription, messages, seen })
    }

    /// For a watcher that takes no place: returns when the lock is free and nobody is next.
    async fn wait_until_free(&self, claim: &Claim) {
        let Some(mut ear) = self.listen(claim).await else {
            return tokio::time::sleep(jitter(claim.owner)).await;
        };
        let held = self.holdings(Scope::Key(&claim.key)).await.ok().and_then(|mut all| all.pop());
        let Some(holding) = held else { return };
        let end = holding.holder.ttl_left.unwrap_or(Duration::from_secs(1));
        let seen = ear.seen;
        let news = ear.messages.wait_for(|count| *count != seen);
        // At the end of the lease nobody sends a message.
        let _either = tokio::time::timeout(end + Duration::from_millis(1), news).await.is_ok();
    }
}

/// A pause of 50 to 150 ms that differs from claim to claim and from time to time.
fn jitter(owner: Owner) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    Duration::from_millis(50 + RandomState::new().hash_one(owner) % 100)
}
