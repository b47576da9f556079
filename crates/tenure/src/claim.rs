//! The plain data that crosses the seam between core and backend, and the answers made of it.

mod answer;
mod holder;
mod lost;
mod note;
mod owner;

use std::time::Duration;

pub use self::answer::{Attempt, Busy, Grant};
pub use self::holder::{Holder, Holding, Waiter};
pub use self::lost::{Lost, LostReason};
pub use self::note::Note;
pub use self::owner::Owner;
use crate::key::Key;
use crate::token::FencingToken;

/// A wish to hold a key: everything that a server has to know about it.
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
    /// What is claimed.
    pub key: Key,
    /// By whom. A repeated request carries the same owner, so that asking twice is asking once.
    pub owner: Owner,
    /// How it is to be held.
    pub mode: Mode,
    /// For how long the server should keep it without hearing from us.
    pub ttl: Duration,
    /// Whether a busy answer should leave us a place in the queue.
    pub waits: bool,
    /// Whether a request of this claim went unanswered: then a release must also refuse a request
    /// that arrives after it.
    pub doubtful: bool,
    /// Whether the lease is never renewed: then the grant has to last the whole ttl, also where the
    /// server lets many claims share one lease.
    pub fixed: bool,
    /// The grant that a renewal is about. A renewal of another grant of the same owner, as after an
    /// eviction that a late request of the evicted claim undid, is refused as lost.
    pub token: Option<FencingToken>,
    /// What people may know of the holder.
    pub note: Note,
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
            doubtful: false,
            fixed: false,
            token: None,
            note: Note::default(),
        }
    }
}

/// How a key is held. Other modes may come; a backend refuses what it does not know.
///
/// # Examples
///
/// ```
/// use tenure::backend::Mode;
///
/// assert_eq!(Mode::default(), Mode::Exclusive);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one owner at a time.
    #[default]
    Exclusive,
}
