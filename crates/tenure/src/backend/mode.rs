//! How a key is held: one owner alone, with other readers, or as a share of a limit.
//!
//! **The rule.** A key has *holders* (grants that are alive together) and one queue, in the order
//! in which its waiters came. Every mode is a weight against a limit. A claim *fits* if the weights
//! of the holders and its own together are at most its limit. Whenever anything changes, the first
//! waiter whose queue entry has not expired is granted while it fits, then the next, and so on: a
//! queue never moves past a waiter that does not fit. A newcomer goes behind the waiters, also one
//! that does not wait.
//!
//! So a waiting writer stops the readers that come after it, the readers of a run are granted
//! together, and a claim to many permits is not passed by claims to few.
//!
//! Servers whose order is that of creation (etcd, ZooKeeper) need no state but the claims: claim i
//! is granted if the weights of the claims 1 to i are at most its limit, and every claim before it
//! fits too. Claims before i only leave, so that a granted claim stays granted.

use std::fmt;
use std::num::NonZeroU32;

use crate::error::{Error, Result};

/// Weight and limit of an exclusive claim, and the limit of every claim to a lock.
const WHOLE: u32 = i32::MAX as u32;

/// How a key is held.
///
/// # Examples
///
/// ```
/// use tenure::backend::Mode;
///
/// assert_eq!(Mode::default(), Mode::Exclusive);
/// assert_eq!(Mode::Shared.to_string(), "shared");
/// assert_eq!(Mode::Shared.weight() + Mode::Exclusive.weight(), Mode::Exclusive.limit() + 1);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one owner alone.
    #[default]
    Exclusive,
    /// Together with other shared owners.
    Shared,
    /// As a part of a semaphore: `take` permits of at most `of` that are out together.
    Permits {
        /// How many permits.
        take: NonZeroU32,
        /// How many permits may be out together. Not stored at the server: each claim is judged by
        /// its own.
        of: NonZeroU32,
    },
}

impl Mode {
    /// A claim to permits of a semaphore.
    ///
    /// # Errors
    ///
    /// `Invalid` if either number is 0 or above 2^30, or if `take` is more than `of`.
    pub fn permits(take: u32, of: u32) -> Result<Mode> {
        let out_of_range = |n: u32| n == 0 || n > 1 << 30;
        if out_of_range(take) || out_of_range(of) {
            return Err(Error::invalid(format!(
                "{take} permits of {of}: both numbers must be from 1 to 2^30"
            )));
        }
        if take > of {
            return Err(Error::invalid(format!(
                "{take} permits of {of} can never be granted; request at most {of}"
            )));
        }
        let (take, of) = (NonZeroU32::new(take), NonZeroU32::new(of));
        Ok(Mode::Permits { take: take.expect("checked"), of: of.expect("checked") })
    }

    /// What the mode counts against the limit.
    pub fn weight(self) -> u32 {
        match self {
            Mode::Exclusive => WHOLE,
            Mode::Shared => 1,
            Mode::Permits { take, .. } => take.get(),
        }
    }

    /// How much the holders of the key may weigh together, this one included.
    pub fn limit(self) -> u32 {
        match self {
            Mode::Exclusive | Mode::Shared => WHOLE,
            Mode::Permits { of, .. } => of.get(),
        }
    }

    /// Whether it holds a lock, and not permits of a semaphore. A key is one or the other.
    pub fn is_lock(self) -> bool {
        !matches!(self, Mode::Permits { .. })
    }

    /// One word: `exclusive`, `shared` or `permits`.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permits { .. } => "permits",
        }
    }
}

/// One word, and for permits their number: `exclusive`, `shared`, `2 of 5 permits`.
impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Permits { take, of } => write!(f, "{take} of {of} permits"),
            Mode::Exclusive | Mode::Shared => f.write_str(self.name()),
        }
    }
}

/// Which modes a server has besides the exclusive one, which all have.
///
/// # Examples
///
/// ```
/// use tenure::backend::{Mode, Modes};
///
/// let modes = Modes { shared: true, ..Modes::default() };
/// assert!(modes.has(Mode::Shared));
/// assert!(!modes.has(Mode::permits(1, 5)?));
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    /// [`Mode::Shared`], and the downgrade to it.
    pub shared: bool,
    /// [`Mode::Permits`].
    pub permits: bool,
}

impl Modes {
    /// Every mode that there is.
    pub const ALL: Modes = Modes { shared: true, permits: true };

    /// Whether this mode is one of them.
    pub fn has(self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.shared,
            Mode::Permits { .. } => self.permits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_permits_than_there_are_can_never_be_granted() {
        assert!(Mode::permits(6, 5).is_err());
        assert!(Mode::permits(0, 5).is_err());
        assert!(Mode::permits(1, 1 << 31).is_err());
        assert_eq!(Mode::permits(5, 5).unwrap().weight(), 5);
    }

    #[test]
    fn an_exclusive_claim_fits_beside_no_other() {
        let whole = u64::from(Mode::Exclusive.limit());
        for mode in [Mode::Exclusive, Mode::Shared] {
            assert!(u64::from(mode.weight()) + u64::from(Mode::Exclusive.weight()) > whole);
        }
        assert!(Mode::Shared.weight() * 1_000_000 <= Mode::Shared.limit());
    }
}
