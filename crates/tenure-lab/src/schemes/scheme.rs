//! What all hand-written schemes have in common: the trait [`Scheme`], and [`HandWritten`], which
//! makes a `Backend` of tenure out of a scheme.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use tenure::backend::{Backend, Claim, Fencing, Grant, HolderInfo, Info, Order, Scope, Wakeup};
use tenure::{Attempt, Busy, Error, ErrorKind, FencingToken, Finding, Holder, Holding, Severity};
use tenure::{Key, LostReason, Result};

use super::redis_connection::RedisConnection;
use super::{delete, key_state};

/// The state of a lock's key on one server. Ordered by how much time is known to be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeyState {
    Free,
    /// Held, and the key never expires by itself.
    Unlimited,
    Expires(Duration),
}

/// A lock on Redis as programs write it by hand.
#[async_trait]
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    /// Name of the lock under test.
    fn name(&self) -> &'static str;

    /// What is wrong with it.
    fn flaw(&self) -> &'static str;

    /// The servers, each with a key of the lock's name.
    fn nodes(&self) -> &[RedisConnection];

    /// Sets the key if it is free: the token, or any number where the scheme has none.
    async fn try_acquire(&self, claim: &Claim) -> Result<Option<u64>>;

    /// Removes the key: whether there was one. The simplest schemes do not compare the owner.
    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.delete(&claim.key).await
    }

    /// Extends the lease: whether the key was still there. Most schemes do not renew.
    async fn renew(&self, _claim: &Claim) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "this scheme does not renew"))
    }

    /// Returns when a new attempt is worthwhile. Most schemes cannot know, and poll.
    async fn until_free(&self, _claim: &Claim) {
        std::future::pending().await
    }

    /// The state of the key on a majority of the servers.
    async fn state(&self, key: &Key) -> Result<KeyState> {
        let mut held = Vec::new();
        for node in self.nodes() {
            let state = key_state(node, key).await?;
            if state != KeyState::Free {
                held.push(state);
            }
        }
        held.sort();
        if held.len() < self.majority() {
            return Ok(KeyState::Free);
        }
        Ok(held[held.len() - self.majority()])
    }

    /// Deletes the key, as an operator would: whether there was one.
    async fn delete(&self, key: &Key) -> Result<bool> {
        let delete = |node| delete(node, key);
        let deleted = try_join_all(self.nodes().iter().map(delete)).await?;
        Ok(deleted.contains(&true))
    }

    /// The smallest number of servers that is a majority.
    fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }
}

/// A scheme as a backend.
#[derive(Debug)]
pub(crate) struct HandWritten<S>(pub(crate) S);

#[async_trait]
impl<S: Scheme> Backend for HandWritten<S> {
    fn info(&self) -> Info {
        let mut info = Info::new(self.0.name());
        info.fencing = Fencing::BestEffort;
        info.order = Order::Any;
        info.wakeup = Wakeup::Poll;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let token = match self.0.try_acquire(claim).await? {
            Some(number) => FencingToken::new(number),
            None => return Ok(Attempt::Busy(Busy::new(claim.key.clone()))),
        };
        let zero = || Error::new(ErrorKind::Internal, "the scheme gave 0 as a token");
        Ok(Attempt::Granted(Grant::new(token.ok_or_else(zero)?, claim.ttl)))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut renewed = Vec::new();
        for claim in claims {
            renewed.push(match self.0.renew(claim).await {
                Ok(true) => Ok(claim.ttl),
                Ok(false) => Err(Error::gone(LostReason::Expired)),
                Err(error) => Err(error),
            });
        }
        renewed
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.0.release(claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.0.until_free(claim).await;
        None
    }

    async fn until_lost(&self, _claim: &Claim) {
        std::future::pending().await
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let Scope::Key(key) = scope else {
            let message = "these locks can be listed only by their whole key";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let mut holder = Holder::new(&HolderInfo::default());
        holder.ttl_left = match self.0.state(key).await? {
            KeyState::Free => return Ok(Vec::new()),
            KeyState::Unlimited => None,
            KeyState::Expires(left) => Some(left),
        };
        Ok(vec![Holding::new(key.clone(), holder)])
    }

    async fn evict(&self, key: &Key, _token: FencingToken) -> Result<bool> {
        self.0.delete(key).await
    }

    async fn doctor(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::new(Severity::Warning, self.0.name(), self.0.flaw())])
    }
}
