//! From a scheme as blogs describe it to tenure's `Backend`: what is the same for all of them.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::try_join_all;
use tenure::backend::{Backend, Claim, Fencing, Grant, Info, Note, Order, Scope, Wakeup};
use tenure::{Attempt, Busy, Error, ErrorKind, FencingToken, Finding, Grade, Holder, Holding};
use tenure::{Key, LostReason, Result};

use super::wire::Wire;
use super::{clear, left};

/// A way to lock with Redis, as programs do it by hand.
#[async_trait]
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    /// One word for it.
    fn name(&self) -> &'static str;

    /// What is wrong with it.
    fn flaw(&self) -> &'static str;

    /// The servers that it asks, each with a key of the lock's name.
    fn nodes(&self) -> &[Wire];

    /// Takes the key if it is free: the token, or any number where the scheme has none.
    async fn take(&self, claim: &Claim) -> Result<Option<u64>>;

    /// Gives it back; whether there was something to give back. The simplest ones delete the key,
    /// whoever has it.
    async fn give(&self, claim: &Claim) -> Result<bool> {
        self.clear(&claim.key).await
    }

    /// Extends it; whether it was still there. Most have no such thing.
    async fn extend(&self, _claim: &Claim) -> Result<bool> {
        Err(Error::new(ErrorKind::Unsupported, "this scheme does not renew"))
    }

    /// Returns when it is worth asking again; most do not know.
    async fn wait(&self, _claim: &Claim) {
        std::future::pending().await
    }

    /// For how long a majority still has the key; no time for a key that never ends by itself.
    async fn look(&self, key: &Key) -> Result<Option<Option<Duration>>> {
        let mut held = Vec::new();
        for node in self.nodes() {
            held.extend(left(node, key).await?);
        }
        held.sort();
        Ok((held.len() >= self.majority()).then(|| held[held.len() - self.majority()]))
    }

    /// Deletes the key, as an operator would.
    async fn clear(&self, key: &Key) -> Result<bool> {
        let delete = |node| clear(node, key);
        let cleared = try_join_all(self.nodes().iter().map(delete)).await?;
        Ok(cleared.contains(&true))
    }

    /// How many servers are more than half of them.
    fn majority(&self) -> usize {
        self.nodes().len() / 2 + 1
    }
}

/// A scheme as a backend.
#[derive(Debug)]
pub(crate) struct Classical<S>(pub(crate) S);

#[async_trait]
impl<S: Scheme> Backend for Classical<S> {
    fn info(&self) -> Info {
        let mut info = Info::new(self.0.name());
        info.fencing = Fencing::BestEffort;
        info.order = Order::Any;
        info.wakeup = Wakeup::Poll;
        info
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        let token = match self.0.take(claim).await? {
            Some(number) => FencingToken::new(number),
            None => return Ok(Attempt::Busy(Busy::new(claim.key.clone()))),
        };
        let odd = || Error::new(ErrorKind::Internal, "a token below one");
        Ok(Attempt::Granted(Grant::new(token.ok_or_else(odd)?, claim.ttl)))
    }

    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        let mut answers = Vec::new();
        for claim in claims {
            answers.push(match self.0.extend(claim).await {
                Ok(true) => Ok(claim.ttl),
                Ok(false) => Err(Error::gone(LostReason::Expired)),
                Err(error) => Err(error),
            });
        }
        answers
    }

    async fn release(&self, claim: &Claim) -> Result<bool> {
        self.0.give(claim).await
    }

    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        self.0.wait(claim).await;
        None
    }

    async fn until_lost(&self, _claim: &Claim) {
        std::future::pending().await
    }

    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        let Scope::Key(key) = scope else {
            let message = "these locks can be found only by their whole name";
            return Err(Error::new(ErrorKind::Unsupported, message));
        };
        let held = self.0.look(key).await?;
        let holding = |ttl_left| {
            let mut holder = Holder::new(&Note::default());
            holder.ttl_left = ttl_left;
            Holding::new(key.clone(), holder)
        };
        Ok(held.into_iter().map(holding).collect())
    }

    async fn evict(&self, key: &Key, _token: FencingToken) -> Result<bool> {
        self.0.clear(key).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(vec![Finding::new(Grade::Warning, self.0.name(), self.0.flaw())])
    }
}
