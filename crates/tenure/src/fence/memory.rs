//! Fences in memory: around one value, and for many resources by name.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;
use std::time::Duration;

use super::refused::{Refused, Stale};
use crate::support::clock::{Clock, Moment};
use crate::support::sync::{Condvar, Mutex};
use crate::token::FencingToken;

const DEFAULT_KEEP: Duration = Duration::from_secs(60 * 60);

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
    state: Mutex<FencedState<T>>,
}

#[derive(Default)]
struct FencedState<T> {
    seen: Option<FencingToken>,
    value: T,
}

impl<T> Fenced<T> {
    /// A fence around this value that has seen no token.
    pub const fn new(value: T) -> Fenced<T> {
        Fenced { state: Mutex::new(FencedState { seen: None, value }) }
    }

    /// Admits this token, and from now on none below it. Blocks while another holder has the guard;
    /// one that panicked with it does not keep the next out.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was here before.
    pub fn admit(&self, token: FencingToken) -> Result<FencedGuard<'_, T>, Stale> {
        let mut state = self.state.lock();
        if let Some(seen) = state.seen {
            Stale::check(token, seen)?;
        }
        state.seen = Some(token);
        Ok(FencedGuard(state))
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

/// Fences in memory for many resources, by name, with a limit to their number.
///
/// An admission is a [`Turn`]: as long as it lives, no other holder is admitted to that resource.
/// Read or write while you have it.
///
/// A resource without an admission for an hour may be forgotten when the room is needed. When there
/// is none to forget, a new resource is refused: to forget one in use would admit a stale holder.
/// **All are forgotten when the process ends**, and each process has its own.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{Fences, Refused}, FencingToken};
///
/// let fences = Fences::new(10_000);
/// let [old, new] = [1, 2].map(|number| FencingToken::new(number).unwrap());
/// let turn = fences.admit("stock/42", new)?;
/// // Read or write the stock here.
/// drop(turn);
/// assert!(matches!(fences.admit("stock/42", old), Err(Refused::Stale(_))));
/// drop(fences.admit("stock/43", old)?);
/// # Ok::<(), Refused<tenure::fence::Full>>(())
/// ```
#[derive(Debug)]
pub struct Fences {
    limit: usize,
    keep: Duration,
    entries: Mutex<HashMap<String, FenceEntry>>,
    /// Notified when a turn ends.
    turn_ended: Condvar,
}

#[derive(Debug)]
struct FenceEntry {
    seen: FencingToken,
    last_admission: Moment,
    /// Whether a turn is under way.
    in_turn: bool,
}

impl Fences {
    /// Fences for at most so many resources.
    pub fn new(limit: usize) -> Fences {
        let turn_ended = Condvar::default();
        Fences { limit, keep: DEFAULT_KEEP, entries: Mutex::default(), turn_ended }
    }

    /// How long a resource is remembered at least after its last admission; an hour by default.
    /// Make it longer than any pause of a holder that has to be survived.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Fences {
        self.keep = keep;
        self
    }

    /// Admits this token for this resource, and from now on none below it. Blocks while another
    /// holder has its turn there.
    ///
    /// # Errors
    ///
    /// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] if there is no room
    /// for another resource.
    pub fn admit(&self, resource: &str, token: FencingToken) -> Result<Turn<'_>, Refused<Full>> {
        let mut entries = self.entries.lock();
        // A lower token than the one whose turn it is will be refused, and need not wait.
        while entries.get(resource).is_some_and(|entry| entry.in_turn && entry.seen <= token) {
            entries = self.turn_ended.wait(entries);
        }
        let now = Clock::Boot.now();
        let admitted = FenceEntry { seen: token, last_admission: now, in_turn: true };
        if let Some(entry) = entries.get_mut(resource) {
            Stale::check(token, entry.seen)?;
            *entry = admitted;
        } else {
            self.make_room(&mut entries, now)?;
            entries.insert(resource.to_owned(), admitted);
        }
        Ok(Turn { fences: self, resource: resource.to_owned(), not_send: PhantomData })
    }

    fn make_room(
        &self,
        entries: &mut HashMap<String, FenceEntry>,
        now: Moment,
    ) -> Result<(), Full> {
        if entries.len() >= self.limit {
            let is_kept =
                |entry: &FenceEntry| entry.in_turn || now.since(entry.last_admission) < self.keep;
            entries.retain(|_, entry| is_kept(entry));
        }
        if entries.len() < self.limit { Ok(()) } else { Err(Full { limit: self.limit }) }
    }
}

/// A turn at a resource of [`Fences`]: no other holder is admitted to it while this lives. It stays
/// on its thread, as the guard of a mutex does, so that no task can keep it across an `await` for
/// which other holders block.
///
/// # Examples
///
/// ```
/// use tenure::{fence::{Fences, Turn}, FencingToken};
///
/// let fences = Fences::new(10);
/// let turn: Turn<'_> = fences.admit("stock/42", FencingToken::new(7).unwrap())?;
/// assert_eq!(turn.resource(), "stock/42");
/// # Ok::<(), tenure::fence::Refused<tenure::fence::Full>>(())
/// ```
#[derive(Debug)]
#[must_use = "other holders are kept out only while this lives"]
pub struct Turn<'a> {
    fences: &'a Fences,
    resource: String,
    not_send: PhantomData<MutexGuard<'a, ()>>,
}

impl Turn<'_> {
    /// The name of the resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.fences.entries.lock().get_mut(&self.resource) {
            entry.in_turn = false;
            entry.last_admission = Clock::Boot.now();
        }
        self.fences.turn_ended.notify_all();
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
    limit: usize,
}

impl fmt::Display for Full {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no room for another resource beside {}", self.limit)
    }
}

impl std::error::Error for Full {}

impl From<Full> for Refused<Full> {
    fn from(full: Full) -> Refused<Full> {
        Refused::Store(full)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn a_resource_in_use_is_not_forgotten_for_a_new_one() {
        let fences = Fences::new(2);
        drop(fences.admit("a", token(5)).unwrap());
        drop(fences.admit("b", token(5)).unwrap());
        assert!(matches!(fences.admit("c", token(9)), Err(Refused::Store(_))));
        assert!(fences.admit("a", token(4)).unwrap_err().stale().is_some());
        let fences = fences.keep(Duration::ZERO);
        // A resource with a turn under way is kept, however old it is.
        let turn = fences.admit("a", token(5)).unwrap();
        drop(fences.admit("c", token(9)).unwrap());
        drop(turn);
        assert!(fences.admit("a", token(4)).unwrap_err().stale().is_some());
    }

    /// Of two holders that come at once, the value of the one with the higher token is left: the
    /// other writes before it, or not at all.
    fn race(write: impl Fn(u64, &dyn Fn()) + Sync, left: impl Fn() -> u64) {
        for number in (1..2000).step_by(2) {
            let together = Barrier::new(2);
            thread::scope(|scope| {
                for token in [number, number + 1] {
                    let (together, write) = (&together, &write);
                    scope.spawn(move || {
                        together.wait();
                        // Between the admission and the write, where the other could come in.
                        write(token, &thread::yield_now);
                    });
                }
            });
            assert_eq!(left(), number + 1);
        }
    }

    #[test]
    fn an_older_value_is_never_written_over_a_newer_one() {
        let fenced = Fenced::new(0);
        let write = |number: u64, pause: &dyn Fn()| {
            if let Ok(mut value) = fenced.admit(token(number)) {
                pause();
                *value = number;
            }
        };
        race(write, || fenced.state.lock().value);
        let fences = Fences::new(1);
        let value = Mutex::new(0);
        let write = |number: u64, pause: &dyn Fn()| {
            if let Ok(_turn) = fences.admit("stock", token(number)) {
                pause();
                *value.lock() = number;
            }
        };
        race(write, || *value.lock());
    }
}
