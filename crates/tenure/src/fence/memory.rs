//! Fences in memory: for one resource, and for many.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::refused::{Refused, Stale};
use crate::clock::{Clock, Moment};
use crate::token::FencingToken;

/// A fence in memory: remembers the highest token and refuses every lower one.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fence, FencingToken};
///
/// static FENCE: Fence = Fence::new();
///
/// let (old, new) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
/// assert!(FENCE.admit(old).is_ok());
/// assert!(FENCE.admit(new).is_ok());
/// assert!(FENCE.admit(new).is_ok());
/// assert_eq!(FENCE.admit(old).unwrap_err().seen(), new);
/// ```
#[derive(Debug, Default)]
pub struct Fence(AtomicU64);

impl Fence {
    /// A fence that has seen no token.
    pub const fn new() -> Fence {
        Fence(AtomicU64::new(0))
    }

    /// Admits this token, and from now on none below it.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was here before.
    pub fn admit(&self, token: FencingToken) -> Result<(), Stale> {
        let seen = self.0.fetch_max(token.get(), Ordering::AcqRel);
        FencingToken::new(seen).map_or(Ok(()), |seen| Stale::check(token, seen))
    }
}

/// Fences in memory for many resources, by name, with a limit to their number.
///
/// A resource that nobody touched for an hour may be forgotten when the room is needed. When there
/// is none to forget, a new resource is refused: to forget a living one would let a stale holder
/// in.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{Fences, Refused}, FencingToken};
///
/// let fences = Fences::new(10_000);
/// let [old, new] = [1, 2].map(|number| FencingToken::new(number).unwrap());
/// fences.admit("stock/42", new)?;
/// assert!(matches!(fences.admit("stock/42", old), Err(Refused::Stale(_))));
/// fences.admit("stock/43", old)?;
/// # Ok::<(), Refused<tenure::fence::Full>>(())
/// ```
#[derive(Debug)]
pub struct Fences {
    most: usize,
    keep: Duration,
    seen: Mutex<HashMap<String, (FencingToken, Moment)>>,
}

impl Fences {
    /// Fences for at most so many resources.
    pub fn new(most: usize) -> Fences {
        Fences { most, keep: KEEP, seen: Mutex::default() }
    }

    /// How long a resource that nobody touches is remembered at least: an hour, if not said
    /// otherwise. Longer than any pause that is to be survived.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Fences {
        self.keep = keep;
        self
    }

    /// Admits this token for this resource, and from now on none below it.
    ///
    /// # Errors
    ///
    /// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] if there is no room
    /// for another resource.
    pub fn admit(&self, resource: &str, token: FencingToken) -> Result<(), Refused<Full>> {
        let now = Clock::Boot.now();
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((highest, touched)) = seen.get_mut(resource) {
            Stale::check(token, *highest)?;
            (*highest, *touched) = (token, now);
            return Ok(());
        }
        if seen.len() >= self.most {
            seen.retain(|_, (_, touched)| now.since(*touched) < self.keep);
        }
        if seen.len() >= self.most {
            return Err(Refused::Store(Full { most: self.most }));
        }
        seen.insert(resource.to_owned(), (token, now));
        Ok(())
    }
}

/// [`Fences`] have no room for another resource.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fences, FencingToken};
///
/// let fences = Fences::new(0);
/// let error = fences.admit("stock/42", FencingToken::new(1).unwrap()).unwrap_err();
/// assert!(error.to_string().contains("no room for another resource beside 0"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    most: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no room for another resource beside {}", self.most)
    }
}

impl std::error::Error for Full {}

const KEEP: Duration = Duration::from_secs(60 * 60);

#[cfg(test)]
mod tests {
    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn a_living_resource_is_not_forgotten_for_a_new_one() {
        let fences = Fences::new(2);
        fences.admit("a", token(5)).unwrap();
        fences.admit("b", token(5)).unwrap();
        assert!(matches!(fences.admit("c", token(9)), Err(Refused::Store(_))));
        assert!(fences.admit("a", token(4)).unwrap_err().stale().is_some());
        let fences = fences.keep(Duration::ZERO);
        fences.admit("c", token(9)).unwrap();
    }

    #[test]
    fn of_many_threads_none_gets_in_behind_a_higher_one() {
        let (fence, admitted) = (Fence::new(), AtomicU64::new(0));
        let together = &std::sync::Barrier::new(4);
        let come = &|number: u64| {
            // Whoever comes after this look is behind it.
            let before = admitted.load(Ordering::SeqCst);
            if fence.admit(token(number)).is_ok() {
                assert!(number >= before, "{number} got in behind {before}");
                admitted.fetch_max(number, Ordering::SeqCst);
            }
        };
        std::thread::scope(|scope| {
            for start in 1..=4 {
                scope.spawn(move || {
                    together.wait();
                    for number in (start..400_000).step_by(4) {
                        come(number);
                        come(number.saturating_sub(20).max(1));
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), 399_999);
        assert_eq!(fence.admit(token(1)).unwrap_err().seen(), token(399_999));
    }
}
