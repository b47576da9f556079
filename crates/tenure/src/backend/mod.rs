//! The trait of backends: what a lock server has to do, what the engine does in return, and the
//! plain data that crosses it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

mod claim;
mod grant;
mod holder;
mod holder_info;
mod info;
mod lost;
mod mode;
mod owner;

pub use self::claim::Claim;
pub use self::grant::Grant;
#[doc(no_inline)]
pub use self::grant::{Attempt, Busy};
#[doc(no_inline)]
pub use self::holder::{Holder, Holding, Waiter};
pub use self::holder_info::HolderInfo;
pub use self::info::{Fencing, Info, Order, Reach, Wakeup};
#[doc(no_inline)]
pub use self::lost::{Lost, LostReason};
#[doc(no_inline)]
pub use self::mode::Mode;
pub use self::mode::Modes;
pub use self::owner::Owner;
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// A lock server, reduced to what a [`Client`](crate::Client) needs of it. The engine of the client
/// builds everything else on these methods: waiting, leases, renewal, loss, cancelling, release.
///
/// Three methods change the state of a lock, two are wake-up hints, and three are for operators.
/// There are no default methods, so that a layer (a `Backend` that owns a `Backend`) cannot forget
/// one; a new method is a breaking release.
///
/// | method | must | must not | may the engine drop it? |
/// |---|---|---|---|
/// | `try_acquire` | respond at once, by the rule of [`Mode`]; repeated by the same owner, return the same grant or extend its queue entry | wait; grant what does not fit, or past a waiter; repeat or lower a token | yes; it then repeats the request, or releases, with `unconfirmed` set |
/// | `try_acquire` with `claim.token` and mode `Shared`: a downgrade | make the exclusive grant with this token shared, keep its token, hand off to the readers at the head; repeated, return the same grant | create a grant or a queue entry: if this grant is not there, `Lost` | yes; it then repeats the request |
/// | `renew` | extend only the grant of `claim.token` that (key, owner) still holds, in whichever mode; respond to each claim by itself | create anything; let one claim fail for another | yes, harmless |
/// | `release` | remove every record of (key, owner), whether it holds (in whichever mode), waits or was never seen, then hand off; idempotent | touch another owner; fail because nothing is there | yes, then repeated |
/// | `until_free` | subscribe, *then check*, then wait: with a queue entry until it may be granted, without one until the holders have changed | hold anything | freely |
/// | `until_lost` | return when the claim may be lost | be needed for safety | freely |
/// | `list` | show every held key in scope, with its holders and waiters | change anything; be used for decisions | freely |
/// | `evict` | force-release exactly the grant whose range of tokens has this token, wake its holder, then hand off | touch another grant | it may have been carried out |
/// | `doctor` | check what on the server could break a guarantee | change anything | freely |
///
/// Rules that hold in whatever order, and however late, the requests of one claim are carried out:
///
/// 1. A request never shortens a lease or a queue entry.
/// 2. What the server keeps ends no earlier than the holder's own deadline, which counts from
///    before the request; parts of a millisecond are rounded up at the server.
/// 3. A fixed lease (`claim.fixed`) lasts its ttl from the request whose response granted it.
/// 4. A release that failed takes effect when the network heals: within two ttls the key is free,
///    for this client too.
/// 5. An outage longer than the ttl leaves nothing behind that keeps this client from the key.
/// 6. Renewals fail alone: one that cannot be carried out delays no other beyond its own limit.
/// 7. A request that may have been carried out is not repeated inside a backend or layer, unless
///    that remembers it until the release: its unknown outcome is returned as `Unavailable`, so
///    that the engine releases with `unconfirmed` set.
/// 8. A pushed grant is invalid if a later response showed its token, or a higher one, with another
///    owner.
/// 9. A server that is demoted, read-only or out of its cluster is left: its connection is dropped,
///    and the next request goes to the new one.
///
/// Three steps change what the queue may hand out, and each is easily forgotten: a waiter that
/// leaves (a reader behind a writer that gave up fits now), the end of one holder's lease among
/// several (the head of the queue checks at the *earliest* end), and a downgrade.
///
/// Tokens of a key are unique, and of two grants that could not have been alive together the later
/// one has the higher token: a reader is above every writer before it, and a writer above every
/// reader before it. Among readers that hold together the order means nothing.
///
/// The engine sends only modes that [`Info::modes`] has. A key is a lock or a semaphore: a claim of
/// the other kind is `Invalid` for as long as the key has holders or waiters.
///
/// Every claim for which a request was sent ends with a `release`, also a lost one, which the
/// engine repeats until the server responds; the exception is [`Info::busy_leaves_nothing`].
///
/// In return the engine makes the owner id before the first byte is sent, repeats the request of a
/// waiting claim at least every third of its ttl, never repeats it faster than a floor after a
/// hint, counts a lease from before the request that won or renewed it, and calls from one task of
/// its own or the caller's runtime. A backend never compares the client's clock with the server's:
/// durations travel, and the server's time decides.
///
/// # Examples
///
/// A layer that counts the grants:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
/// use tenure::backend::{Backend, Claim, Grant, Info, Scope};
/// use tenure::{Attempt, Client, FencingToken, Finding, Holding, Key, Result, backends::Memory};
///
/// #[derive(Debug)]
/// struct Counted<B>(B, AtomicU64);
///
/// #[async_trait::async_trait]
/// impl<B: Backend> Backend for Counted<B> {
///     fn info(&self) -> Info { self.0.info() }
///     async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
///         let attempt = self.0.try_acquire(claim).await?;
///         if let Attempt::Granted(_) = attempt { self.1.fetch_add(1, Ordering::Relaxed); }
///         Ok(attempt)
///     }
///     async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
///         self.0.renew(claims).await
///     }
///     async fn release(&self, claim: &Claim) -> Result<bool> { self.0.release(claim).await }
///     async fn until_free(&self, claim: &Claim) -> Option<Grant> {
///         self.0.until_free(claim).await
///     }
///     async fn until_lost(&self, claim: &Claim) { self.0.until_lost(claim).await }
///     async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> { self.0.list(scope).await }
///     async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
///         self.0.evict(key, token).await
///     }
///     async fn doctor(&self) -> Result<Vec<Finding>> { self.0.doctor().await }
/// }
///
/// let locks = Client::new(Counted(Memory::new(), AtomicU64::new(0)));
/// locks.lock("a").acquire().await?.release().await?;
/// # Ok(()) }
/// ```
#[async_trait]
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What this server can promise.
    fn info(&self) -> Info;

    /// Acquires the key if it is free, and never waits. With `claim.waits`, a busy response leaves
    /// a queue entry, which expires like a lock: a ttl after the last request.
    ///
    /// # Errors
    ///
    /// Any kind but `Busy` and `Lost`. `Unavailable` is an unknown outcome: the claim may have
    /// been granted.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>>;

    /// Extends many held claims in as few requests as the server allows: one response each, in
    /// order. A response is the lease from the request on.
    ///
    /// # Errors
    ///
    /// For a claim: `Lost` (see [`Error::gone`](crate::Error::gone)) only if the server said so.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>>;

    /// Ends a claim: releases its lock, removes its queue entry, or refuses a request of it that
    /// arrives late. `true` if it was held until now.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like. That nothing of the claim is there is not an error.
    async fn release(&self, claim: &Claim) -> Result<bool>;

    /// A hint: returns when another `try_acquire` is worth it. May fire early, or never. A grant
    /// that the server pushed is returned with it and saves that request: its ttl counts from the
    /// last request of this claim that got a response.
    async fn until_free(&self, claim: &Claim) -> Option<Grant>;

    /// A hint: returns when the claim may be lost. May fire early, or never.
    async fn until_lost(&self, claim: &Claim);

    /// Lists holders and waiters, for operators; never used for decisions.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like.
    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>>;

    /// Force-releases exactly the grant with this token. `true` if it was there.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like; `Unsupported` where the server cannot.
    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool>;

    /// Checks everything on the server that could break a guarantee, for operators.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like, if the server does not respond at all.
    async fn doctor(&self) -> Result<Vec<Finding>>;
}

/// Which keys a listing includes.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Scope, Key};
///
/// let key = Key::new("orders/42")?;
/// assert!(Scope::Prefix("orders/").contains(&key));
/// assert!(!Scope::Key(&Key::new("orders/4")?).contains(&key));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Only this key.
    Key(&'a Key),
    /// Every key that starts with this; the empty prefix means all.
    Prefix(&'a str),
}

impl Scope<'_> {
    /// Whether the listing includes this key.
    pub fn contains(&self, key: &Key) -> bool {
        match self {
            Scope::Key(one) => *one == key,
            Scope::Prefix(prefix) => key.as_str().starts_with(prefix),
        }
    }
}

/// So that layers can be put around [`Config::open`](crate::Config::open), and a backend can be
/// shared with the client that uses it.
#[async_trait]
impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn info(&self) -> Info {
        (**self).info()
    }
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>> {
        (**self).try_acquire(claim).await
    }
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>> {
        (**self).renew(claims).await
    }
    async fn release(&self, claim: &Claim) -> Result<bool> {
        (**self).release(claim).await
    }
    async fn until_free(&self, claim: &Claim) -> Option<Grant> {
        (**self).until_free(claim).await
    }
    async fn until_lost(&self, claim: &Claim) {
        (**self).until_lost(claim).await;
    }
    async fn list(&self, scope: Scope<'_>) -> Result<Vec<Holding>> {
        (**self).list(scope).await
    }
    async fn evict(&self, key: &Key, token: FencingToken) -> Result<bool> {
        (**self).evict(key, token).await
    }
    async fn doctor(&self) -> Result<Vec<Finding>> {
        (**self).doctor().await
    }
}
