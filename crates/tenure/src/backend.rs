//! The seam: what a lock server has to do, and what the core does in return.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::claim::{Attempt, Holding};
pub use crate::claim::{Claim, Grant, Mode, Note, Owner};
use crate::error::Result;
use crate::finding::Finding;
use crate::key::Key;
use crate::token::FencingToken;

/// A lock server, as short as it can be said. [`Client`](crate::Client) makes everything else of
/// it.
///
/// Three verbs decide, two are hints, three are for people. There are no default methods, so that a
/// layer (a `Backend` that owns a `Backend`) cannot forget one; a new verb is a breaking release.
///
/// | verb | must | must not | may the core drop it? |
/// |---|---|---|---|
/// | `try_acquire` | answer at once; asked again by the same owner, answer the same grant or refresh its place in the queue | wait; grant to two owners; repeat or lower a token | yes; it then asks again, or releases, with `doubtful` set |
/// | `renew` | extend only the grant of `claim.token` that (key, owner) still holds; answer each claim by itself | create anything; let one claim fail for another | yes, harmless |
/// | `release` | leave no trace of (key, owner): held, queued or unknown | touch another owner; fail because it is gone | yes, then repeated |
/// | `until_free` | subscribe, *then look*, then wait | hold anything | freely |
/// | `until_lost` | return when the claim may be gone | be needed for safety | freely |
///
/// Rules that hold in whatever order, and however late, the requests of one claim are carried out:
///
/// 1. A request never shortens a lease or a queue entry.
/// 2. What the server keeps ends no earlier than the holder's own deadline, which counts from
///    before the request; parts of a millisecond are rounded up at the server.
/// 3. A fixed lease (`claim.fixed`) lasts its ttl from the request that was answered with it.
/// 4. A release that failed is made good when the network heals: within two ttls the key is free,
///    for this client too.
/// 5. An outage longer than the ttl leaves nothing behind that keeps this client from the key.
/// 6. Renewals do not share their fate: one that cannot be carried out delays no other beyond its
///    own limit.
/// 7. A request that may have been carried out is not repeated inside a backend or layer, unless
///    that remembers it until the release: its unknown outcome is answered as `Unavailable`, so
///    that the core releases with `doubtful` set.
/// 8. A pushed grant is void if a later response showed its token, or a higher one, with another.
/// 9. A server that is demoted, read-only or out of its cluster is left: its connection is dropped,
///    and the next request follows to the new one.
///
/// Every claim that was asked for ends with a `release`, also a lost one, which the core repeats
/// until it is answered; the exception is [`Info::busy_leaves_nothing`].
///
/// In return the core makes the owner before the first byte is sent, asks again at least every
/// third of the ttl while it waits, never asks faster than a floor after a hint, counts a lease
/// from before the request that won or renewed it, and calls from one task of its own or the
/// caller's runtime. A backend never reads the client's clock: durations travel, the server's time
/// decides.
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
///     async fn examine(&self) -> Result<Vec<Finding>> { self.0.examine().await }
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

    /// Takes the key if it is free, and never waits. With `claim.waits`, a busy answer leaves a
    /// place in the queue, which lives like a lock: it ends a ttl after the last ask.
    ///
    /// # Errors
    ///
    /// Any kind but `Busy` and `Lost`. `Unavailable` is doubt: the claim may have been granted.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt<Grant>>;

    /// Extends many held claims in as few trips as the server allows: one answer each, in order. An
    /// answer is the lease from the request on.
    ///
    /// # Errors
    ///
    /// For a claim: `Lost` (see [`Error::gone`](crate::Error::gone)) only if the server said so.
    async fn renew(&self, claims: &[Claim]) -> Vec<Result<Duration>>;

    /// Gives back, withdraws or undoes. `true` if the claim was held until now.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like. That the claim is gone is not an error.
    async fn release(&self, claim: &Claim) -> Result<bool>;

    /// A hint: returns when it is worth asking again. May fire early, or never. With a grant that
    /// the server pushed it saves the ask: its ttl counts from the last *answered* ask of this
    /// claim.
    async fn until_free(&self, claim: &Claim) -> Option<Grant>;

    /// A hint: returns when the claim may be gone. May fire early, or never.
    async fn until_lost(&self, claim: &Claim);

    /// Who holds what, for people; never used for decisions.
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

    /// Looks at everything on the server that could break a promise, for people.
    ///
    /// # Errors
    ///
    /// `Unavailable` and the like, if not even that can be asked.
    async fn examine(&self) -> Result<Vec<Finding>>;
}

/// Which keys a listing is about.
///
/// # Examples
///
/// ```
/// use tenure::{backend::Scope, Key};
///
/// let key = Key::new("orders/42")?;
/// assert!(Scope::Prefix("orders/").holds(&key));
/// assert!(!Scope::Key(&Key::new("orders/4")?).holds(&key));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope<'a> {
    /// Just this one.
    Key(&'a Key),
    /// Every key that starts so; the empty prefix means all.
    Prefix(&'a str),
}

impl Scope<'_> {
    /// Whether the listing is about this key.
    pub fn holds(&self, key: &Key) -> bool {
        match self {
            Scope::Key(one) => *one == key,
            Scope::Prefix(prefix) => key.as_str().starts_with(prefix),
        }
    }
}

/// What a server can promise.
///
/// # Examples
///
/// ```
/// use tenure::backend::{Fencing, Info, Order};
///
/// let mut info = Info::new("mine");
/// info.fencing = Fencing::BestEffort;
/// assert_eq!(info.order, Order::Fifo);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// One word: the URL scheme, the cargo feature, the page in `docs/backends`.
    pub name: &'static str,
    /// Whether tokens can ever go back.
    pub fencing: Fencing,
    /// Who is next when a lock becomes free.
    pub order: Order,
    /// How waiters learn that it is their turn.
    pub wakeup: Wakeup,
    /// How far the lock reaches. What reaches only within this process lives on the caller's
    /// runtime and its clock, so that tests with paused time work.
    pub reach: Reach,
    /// The shortest lease that the server keeps.
    pub min_ttl: Duration,
    /// The longest lease that the server keeps.
    pub max_ttl: Duration,
    /// After how many ttls, at the latest, the server frees the lock of a holder that it no longer
    /// hears from. The holder itself never counts on more than one.
    pub freed_after: u32,
    /// Whether a busy response to a claim that does not wait leaves nothing of it behind, neither
    /// at the server nor in the backend. The client then spares the release that ends every other
    /// claim.
    pub busy_leaves_nothing: bool,
}

impl Info {
    /// Strict tokens, first come first served, pushed wake-ups, many machines, any lease up to a
    /// day.
    pub fn new(name: &'static str) -> Info {
        Info {
            name,
            fencing: Fencing::Strict,
            order: Order::Fifo,
            wakeup: Wakeup::Push,
            reach: Reach::Network,
            min_ttl: Duration::from_millis(1),
            max_ttl: Duration::from_secs(24 * 60 * 60),
            freed_after: 1,
            busy_leaves_nothing: false,
        }
    }
}

/// Whether tokens can ever go back.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> tenure::Result<()> {
/// use tenure::backend::Fencing;
///
/// assert_eq!(tenure::connect("memory:").await?.info().fencing, Fencing::Strict);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fencing {
    /// They can, in cases that the backend's page names.
    BestEffort,
    /// They cannot, as long as the server keeps its own promise.
    Strict,
}

/// Who is next when a lock becomes free.
///
/// # Examples
///
/// ```
/// use tenure::backend::{Info, Order};
///
/// assert_eq!(Info::new("mine").order, Order::Fifo);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Order {
    /// Whoever asks first.
    Any,
    /// Who has waited longest, among the living.
    Fifo,
}

/// How waiters learn that it is their turn.
///
/// # Examples
///
/// ```
/// use tenure::backend::{Info, Wakeup};
///
/// assert_eq!(Info::new("mine").wakeup, Wakeup::Push);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wakeup {
    /// They look from time to time.
    Poll,
    /// The server tells them; a slow poll covers a lost message.
    Push,
}

/// How far a lock reaches.
///
/// # Examples
///
/// ```
/// use tenure::backend::{Info, Reach};
///
/// assert_eq!(Info::new("mine").reach, Reach::Network);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reach {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// Every machine that reaches the server.
    Network,
}

/// Layers stack over [`Config::open`](crate::Config::open), and a backend that a client uses can be
/// looked at from outside.
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
    async fn examine(&self) -> Result<Vec<Finding>> {
        (**self).examine().await
    }
}
