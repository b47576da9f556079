//! A fence around one value of this process.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use super::refused::Stale;
use super::seen::Seen;
use crate::support::sync::Mutex;
use crate::token::FencingToken;

/// A value of this process behind a fence: only an admitted holder gets to it, one at a time, so
/// that nothing can come between the admission and the write.
///
/// # Examples
///
/// ```
/// use tenure::{fence::Fenced, FencingToken};
///
/// static STOCK: Fenced<u32> = Fenced::new(10);
///
/// let (old, new) = (FencingToken::new(1).unwrap(), FencingToken::new(2).unwrap());
/// let n = *STOCK.admit(new)?; // first, before any read
/// *STOCK.admit(new)? = n - 1; // and again with the write
/// assert_eq!(STOCK.admit(old).unwrap_err().seen(), new);
/// # Ok::<(), tenure::fence::Stale>(())
/// ```
#[derive(Default)]
pub struct Fenced<T> {
    pub(super) state: Mutex<FencedState<T>>,
}

#[derive(Default)]
pub(super) struct FencedState<T> {
    seen: Seen,
    pub(super) value: T,
}

impl<T> Fenced<T> {
    /// A fence around this value that has seen no token.
    pub const fn new(value: T) -> Fenced<T> {
        Fenced { state: Mutex::new(FencedState { seen: Seen::new(), value }) }
    }

    /// Admits this token, and from now on none below it. Blocks while another holder has the guard;
    /// one that panicked with it does not keep the next out.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was here before, of a writer or of a reader.
    pub fn admit(&self, token: FencingToken) -> Result<FencedGuard<'_, T>, Stale> {
        let mut state = self.state.lock();
        state.seen.admit(token)?;
        Ok(FencedGuard(state))
    }

    /// Admits this token of a reader, and from now on no lower one of a writer. Other readers are
    /// admitted whatever their order, one after another.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a writer with a higher token was here before.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::{fence::Fenced, FencingToken};
    ///
    /// let stock = Fenced::new(10);
    /// let [writer, one, other] = [7, 8, 9].map(|number| FencingToken::new(number).unwrap());
    /// assert_eq!(*stock.admit_shared(other)?, 10);
    /// assert_eq!(*stock.admit_shared(one)?, 10); // both hold the lock
    /// assert!(stock.admit(writer).unwrap_err().is_by_reader());
    /// # Ok::<(), tenure::fence::Stale>(())
    /// ```
    pub fn admit_shared(&self, token: FencingToken) -> Result<FencedReadGuard<'_, T>, Stale> {
        let mut state = self.state.lock();
        state.seen.admit_shared(token)?;
        Ok(FencedReadGuard(state))
    }

    /// The value, without its fence.
    pub fn into_inner(self) -> T {
        self.state.into_inner().value
    }
}

impl<T> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced").finish_non_exhaustive()
    }
}

/// Access to the value of a [`Fenced`], for an admitted holder. Like every guard of a mutex it
/// cannot be kept across an `await` in a spawned task: other holders block for it.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{Fenced, FencedGuard}, FencingToken};
///
/// let stock = Fenced::new(vec!["apple"]);
/// let mut guard: FencedGuard<'_, _> = stock.admit(FencingToken::new(7).unwrap())?;
/// guard.push("pear");
/// # drop(guard);
/// # assert_eq!(stock.into_inner(), ["apple", "pear"]);
/// # Ok::<(), tenure::fence::Stale>(())
/// ```
#[must_use = "other holders are kept out only while this lives"]
pub struct FencedGuard<'a, T>(MutexGuard<'a, FencedState<T>>);

impl<T> Deref for FencedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for FencedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for FencedGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

/// The value of a [`Fenced`], for an admitted reader.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{Fenced, FencedReadGuard}, FencingToken};
///
/// let stock = Fenced::new(vec!["apple"]);
/// let guard: FencedReadGuard<'_, _> = stock.admit_shared(FencingToken::new(7).unwrap())?;
/// assert_eq!(guard.len(), 1);
/// # Ok::<(), tenure::fence::Stale>(())
/// ```
#[must_use = "other holders are kept out only while this lives"]
pub struct FencedReadGuard<'a, T>(MutexGuard<'a, FencedState<T>>);

impl<T> Deref for FencedReadGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: fmt::Debug> fmt::Debug for FencedReadGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}
