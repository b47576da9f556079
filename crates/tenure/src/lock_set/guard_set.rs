//! The held locks of a set.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all, select_all};

use crate::backend::Lost;
use crate::engine::ClientRef;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::key::Key;
use crate::lease::Lease;
use crate::token::FencingToken;

/// Guards in the order of their keys. Dropped, they release their locks in reverse order.
#[derive(Debug)]
pub(super) struct Held(Vec<Guard>);

impl Held {
    pub(super) fn with_capacity(capacity: usize) -> Held {
        Held(Vec::with_capacity(capacity))
    }

    /// Takes the guard of the next key.
    pub(super) fn push(&mut self, guard: Guard) {
        self.0.push(guard);
    }

    /// The least time left, or a loss.
    pub(super) fn check(&self) -> Result<Duration, Lost> {
        let mut least = Duration::MAX;
        for guard in &self.0 {
            least = least.min(guard.check()?);
        }
        Ok(least)
    }

    /// The first loss. Never ready if nothing is held.
    pub(super) fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let all: Vec<BoxFuture<'static, Lost>> =
            self.0.iter().map(|guard| Box::pin(guard.lost()) as BoxFuture<'static, Lost>).collect();
        async move {
            // Without futures it would panic.
            if all.is_empty() { std::future::pending().await } else { select_all(all).await.0 }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        while let Some(last) = self.0.pop() {
            drop(last);
        }
    }
}

/// The held locks of a [`LockSet`](crate::LockSet). Each is renewed in the background; **the loss
/// of one is the loss of the set**, and names its key. The other locks stay held until this value
/// is released or dropped, which ends all of them, in reverse order.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// let locks = tenure::connect("memory:").await?;
/// let both = locks.lock_all(["accounts/7", "accounts/3"]).acquire().await?;
/// locks.lock("accounts/7").evict(both.token("accounts/7")?).await?;
/// let lost = both.lost().await;
/// assert_eq!(lost.key().as_str(), "accounts/7");
/// assert!(both.check().is_err());
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the locks are released as soon as this value is dropped"]
pub struct GuardSet {
    held: Held,
    // Behind the guards: the releases have to be under way when the last handle is dropped.
    client_ref: Arc<ClientRef>,
}

impl GuardSet {
    pub(super) fn new(held: Held, client_ref: Arc<ClientRef>) -> GuardSet {
        GuardSet { held, client_ref }
    }

    pub(crate) fn client_ref(&self) -> &Arc<ClientRef> {
        &self.client_ref
    }

    /// A view of each lock, in the order of the keys.
    pub fn leases(&self) -> impl Iterator<Item = &Lease> {
        self.held.0.iter().map(Guard::lease)
    }

    /// The token of the lock with this key, to show to the resource that it protects.
    ///
    /// # Errors
    ///
    /// `Invalid` if the key is not in the set, if it is a semaphore (permits fence nothing), or if
    /// locks with two prefixes have it.
    pub fn token<K: TryInto<Key, Error: Into<Error>>>(&self, key: K) -> Result<FencingToken> {
        let key = key.try_into().map_err(Into::into)?;
        let mut found = self.leases().filter(|lease| *lease.key() == key);
        let why = match (found.next(), found.next()) {
            (Some(lease), None) if lease.mode().is_lock() => return Ok(lease.token()),
            (Some(_), None) => "is a semaphore, and permits have no fencing token",
            (Some(_), Some(_)) => "is in the set with two prefixes; find it among `leases`",
            (None, _) => "is not in the set",
        };
        Err(Error::invalid(format!("`{key}` {why}")))
    }

    /// The least time left of all locks, by the client's own clock and without a request.
    ///
    /// # Errors
    ///
    /// [`Lost`] if one of them is no longer held.
    #[doc(alias("is_held", "is_valid", "remaining"))]
    pub fn check(&self) -> Result<Duration, Lost> {
        self.held.check()
    }

    /// Returns when one of the locks is no longer held: which one, and why.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        self.held.lost()
    }

    /// Ready when [`Client::shutdown`](crate::Client::shutdown) has begun. See [`Lease::closing`].
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe.** Dropping the future has no effect.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let closing = self.leases().next().map(Lease::closing);
        async move {
            match closing {
                Some(closing) => closing.await,
                None => std::future::pending().await,
            }
        }
    }

    /// Runs the work for as long as all locks are held; the work is dropped at its next await when
    /// one of them is lost. See [`Lease::while_held`].
    ///
    /// # Errors
    ///
    /// [`Lost`], also if the work had just finished: its last step may have come too late.
    ///
    /// # Cancel safety
    ///
    /// **Cancel safe** as far as the work is: dropping the future drops the work.
    pub async fn while_held<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        std::future::poll_fn(|context| {
            if let Err(lost) = self.check() {
                return Poll::Ready(Err(lost));
            }
            if let Poll::Ready(lost) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(lost));
            }
            let output = std::task::ready!(work.as_mut().poll(context));
            Poll::Ready(self.check().map(|_| output))
        })
        .await
    }

    /// Releases all locks, in reverse order and without waiting for one before the next, and
    /// returns when the server has responded to each.
    ///
    /// # Errors
    ///
    /// `Lost` if one of them was lost before: then the work may have overlapped with another
    /// holder's. All of them are released nevertheless. Otherwise as for [`Guard::release`].
    ///
    /// # Cancel safety
    ///
    /// **Not undone.** Dropping the future leaves the releases to the background.
    #[doc(alias = "unlock")]
    pub async fn release(mut self) -> Result<()> {
        let guards = std::mem::take(&mut self.held.0);
        let releases = guards.into_iter().rev().map(Guard::release);
        let failed = join_all(releases).await.into_iter().filter_map(Result::err);
        let is_lost = |error: &Error| error.kind() == ErrorKind::Lost;
        let worst = |one, next| if is_lost(&one) || !is_lost(&next) { one } else { next };
        failed.reduce(worst).map_or(Ok(()), Err)
    }
}
