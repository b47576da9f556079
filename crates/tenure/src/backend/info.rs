//! What a server can promise, as a backend declares it.

use std::time::Duration;

use super::{Mode, Modes};
use crate::error::{Error, ErrorKind, Result};

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
    /// One word for the cargo feature, the module and the page in `docs/backends`.
    pub name: &'static str,
    /// Whether tokens can ever go back.
    pub fencing: Fencing,
    /// Who is next when a lock becomes free.
    pub order: Order,
    /// How waiters learn that it is their turn.
    pub wakeup: Wakeup,
    /// How far the lock reaches. Locks that reach only within this process run on the caller's
    /// runtime and its clock, so that tests with paused time work.
    pub reach: Reach,
    /// The shortest lease that the server keeps.
    pub min_ttl: Duration,
    /// The longest lease that the server keeps.
    pub max_ttl: Duration,
    /// After how many ttls, at the latest, the server frees the lock of a holder that no longer
    /// renews it. The holder itself never relies on more than one.
    pub max_expiry_ttls: u32,
    /// Whether a busy response to a claim that does not wait leaves nothing of it behind, neither
    /// at the server nor in the backend. The client then saves the release that ends every other
    /// claim.
    pub busy_leaves_nothing: bool,
    /// Which modes it has besides the exclusive one. The engine refuses the others before any
    /// request is sent.
    pub modes: Modes,
}

impl Info {
    /// Strict tokens, first come first served, pushed wake-ups, many machines, any lease up to a
    /// day, exclusive locks only.
    pub fn new(name: &'static str) -> Info {
        Info {
            name,
            fencing: Fencing::Strict,
            order: Order::Fifo,
            wakeup: Wakeup::Push,
            reach: Reach::Network,
            min_ttl: Duration::from_millis(1),
            max_ttl: Duration::from_secs(24 * 60 * 60),
            max_expiry_ttls: 1,
            busy_leaves_nothing: false,
            modes: Modes::default(),
        }
    }

    /// Whether the server has such a mode.
    ///
    /// # Errors
    ///
    /// `Unsupported` if not.
    pub(crate) fn check_mode(&self, mode: Mode) -> Result<()> {
        if self.modes.has(mode) {
            return Ok(());
        }
        let what = if mode.is_lock() { "shared locks" } else { "semaphores" };
        let message = format!("{} has no {what}; docs/modes.md says which servers have", self.name);
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Whether the server keeps such a lease.
    ///
    /// # Errors
    ///
    /// `Invalid` if not, with the bounds.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let (min, max) = (self.min_ttl, self.max_ttl);
        if ttl >= min && ttl <= max {
            return Ok(());
        }
        let message = format!(
            "a ttl of {ttl:?} is out of range; {} keeps leases from {min:?} to {max:?}",
            self.name
        );
        Err(Error::invalid(message))
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
    /// The client whose request comes first after the release.
    Any,
    /// The waiter that has waited longest, among those whose queue entry has not expired.
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
    /// Waiters poll.
    Poll,
    /// The server wakes them; a slow poll covers a lost message.
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
