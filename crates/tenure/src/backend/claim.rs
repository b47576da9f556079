//! A claim: one lock request, as a client passes it to a backend.

use std::time::Duration;

use super::{HolderInfo, Mode, Owner};
use crate::key::Key;
use crate::token::FencingToken;

/// A lock request: everything that the server needs to process it.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tenure::backend::{Claim, Owner};
/// use tenure::Key;
///
/// let claim = Claim::new(Key::new("orders/42")?, Owner::random(), Duration::from_secs(30));
/// assert!(!claim.waits);
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Claim {
    /// Key of the lock, with the prefix of the client.
    pub key: Key,
    /// Owner id of the claim. A repeated request carries the same id, which makes it idempotent.
    pub owner: Owner,
    /// How the key is to be held.
    pub mode: Mode,
    /// How long the server keeps the lock, or the queue entry, without another request.
    pub ttl: Duration,
    /// Whether a busy response leaves a queue entry.
    pub waits: bool,
    /// Whether a request of this claim got no response: then the release must also refuse a request
    /// that arrives after it.
    pub unconfirmed: bool,
    /// Whether the lease is never renewed: then the grant has to last the whole ttl, also where the
    /// server lets many claims share one lease.
    pub fixed: bool,
    /// Token of the grant that a renewal extends, or that a downgrade makes shared. Another grant
    /// of the same owner is refused as lost: an eviction may be followed by a late request of the
    /// evicted claim, which is granted again.
    pub token: Option<FencingToken>,
    /// Who the holder is, for operators and other clients.
    pub holder_info: HolderInfo,
}

impl Claim {
    /// An exclusive claim that does not wait.
    pub fn new(key: Key, owner: Owner, ttl: Duration) -> Claim {
        Claim {
            key,
            owner,
            mode: Mode::Exclusive,
            ttl,
            waits: false,
            unconfirmed: false,
            fixed: false,
            token: None,
            holder_info: HolderInfo::default(),
        }
    }
}
