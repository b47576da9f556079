//! Fences in memory: around one value, and for many resources by name.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::refused::{Refused, Stale};
use crate::clock::{Clock, Moment};
use crate::token::FencingToken;

/// A value of this process behind a fence: only whoever is admitted comes to it, and as long as
/// that one has it in its hands, nobody else does. So nothing can come between the admission and
/// the write.
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
    inside: Mutex<Inside<T>>,
}

#[derive(Default)]
struct Inside<T> {
    seen: Option<FencingToken>,
    value: T,
}

impl<T> Fenced<T> {
    /// A fence around this value that has seen no token.
    pub const fn new(value: T) -> Fenced<T> {
        Fenced { inside: Mutex::new(Inside { seen: None, value }) }
    }

    /// Admits this token, and from now on none below it. Blocks while another has the value in its
    /// hands; one that panicked with it is no reason to refuse the next.
    ///
    /// # Errors
    ///
    /// [`Stale`] if a higher token was here before.
    pub fn admit(&self, token: FencingToken) -> Result<FencedGuard<'_, T>, Stale> {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = inside.seen {
            Stale::check(token, seen)?;
        }
        inside.seen = Some(token);
        Ok(FencedGuard(inside))
    }

    /// The value, without its fence.
    pub fn into_inner(self) -> T {
        self.inside.into_inner().unwrap_or_else(PoisonError::into_inner).value
    }
}

impl<T> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced").finish_non_exhaustive()
    }
}

/// The value of a [`Fenced`], in the hands of one who was admitted. It cannot be kept across an
/// `await` in a task that is spawned, as with every guard of a mutex: others block for it.
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
#[must_use = "others are kept out only while this lives"]
pub struct FencedGuard<'a, T>(MutexGuard<'a, Inside<T>>);

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
/// An admission is a [`Turn`]: as long as it lives, nobody else is admitted to that resource. Read
/// or write while you have it.
///
/// A resource that nobody touched for an hour may be forgotten when the room is needed. When there
/// is none to forget, a new resource is refused: to forget a living one would let a stale holder
/// in. **All are forgotten when the process ends**, and each process has its own.
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
    most: usize,
    keep: Duration,
    table: Mutex<HashMap<String, Row>>,
    /// Some turn is over.
    over: Condvar,
}

#[derive(Debug)]
struct Row {
    seen: FencingToken,
    touched: Moment,
    /// Somebody has the turn.
    taken: bool,
}

impl Fences {
    /// Fences for at most so many resources.
    pub fn new(most: usize) -> Fences {
        Fences { most, keep: KEEP, table: Mutex::default(), over: Condvar::new() }
    }

    /// How long a resource that nobody touches is remembered at least: an hour, if not said
    /// otherwise. Longer than any pause that is to be survived.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Fences {
        self.keep = keep;
        self
    }

    /// Admits this token for this resource, and from now on none below it. Blocks while another has
    /// its turn there.
    ///
    /// # Errors
    ///
    /// [`Refused::Stale`] if a higher token was here before, [`Refused::Store`] if there is no room
    /// for another resource.
    pub fn admit(&self, resource: &str, token: FencingToken) -> Result<Turn<'_>, Refused<Full>> {
        let mut table = self.table();
        while table.get(resource).is_some_and(|row| row.taken && row.seen <= token) {
            table = self.over.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        let now = Clock::Boot.now();
        if let Some(row) = table.get_mut(resource) {
            Stale::check(token, row.seen)?;
            *row = Row { seen: token, touched: now, taken: true };
        } else {
            self.make_room(&mut table, now)?;
            table.insert(resource.to_owned(), Row { seen: token, touched: now, taken: true });
        }
        Ok(Turn { fences: self, resource: resource.to_owned(), stays_here: PhantomData })
    }

    fn make_room(&self, table: &mut HashMap<String, Row>, now: Moment) -> Result<(), Full> {
        if table.len() >= self.most {
            table.retain(|_, row| row.taken || now.since(row.touched) < self.keep);
        }
        if table.len() < self.most { Ok(()) } else { Err(Full { most: self.most }) }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<String, Row>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A turn at a resource of [`Fences`]: nobody else is admitted to it while this lives. It stays on
/// its thread, as the guard of a mutex does, so that no task can keep it across an `await` for
/// which others block.
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
#[must_use = "others are kept out only while this lives"]
pub struct Turn<'a> {
    fences: &'a Fences,
    resource: String,
    stays_here: PhantomData<MutexGuard<'a, ()>>,
}

impl Turn<'_> {
    /// Of which resource.
    pub fn resource(&self) -> &str {
        &self.resource
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(row) = self.fences.table().get_mut(&self.resource) {
            (row.taken, row.touched) = (false, Clock::Boot.now());
        }
        self.fences.over.notify_all();
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

impl From<Full> for Refused<Full> {
    fn from(full: Full) -> Refused<Full> {
        Refused::Store(full)
    }
}

const KEEP: Duration = Duration::from_secs(60 * 60);

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    fn token(number: u64) -> FencingToken {
        FencingToken::new(number).unwrap()
    }

    #[test]
    fn a_living_resource_is_not_forgotten_for_a_new_one() {
        let fences = Fences::new(2);
        drop(fences.admit("a", token(5)).unwrap());
        drop(fences.admit("b", token(5)).unwrap());
        assert!(matches!(fences.admit("c", token(9)), Err(Refused::Store(_))));
        assert!(fences.admit("a", token(4)).unwrap_err().stale().is_some());
        let fences = fences.keep(Duration::ZERO);
        // One that somebody has his turn at is kept, however old it is.
        let turn = fences.admit("a", token(5)).unwrap();
        drop(fences.admit("c", token(9)).unwrap());
        drop(turn);
        assert!(fences.admit("a", token(4)).unwrap_err().stale().is_some());
    }

    /// Of two that come at once, the value of the one with the higher token is left: the lower one
    /// writes before it, or not at all.
    fn race(write: impl Fn(u64, &dyn Fn()) + Sync, left: impl Fn() -> u64) {
        for number in (1..2000).step_by(2) {
            let together = Barrier::new(2);
            thread::scope(|scope| {
                for token in [number, number + 1] {
                    let (together, write) = (&together, &write);
                    scope.spawn(move || {
                        together.wait();
                        // Between the admission and the write: the place for the other to slip in.
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
        race(write, || fenced.inside.lock().unwrap().value);
        let (fences, value) = (Fences::new(1), Mutex::new(0));
        let write = |number: u64, pause: &dyn Fn()| {
            if let Ok(_turn) = fences.admit("stock", token(number)) {
                pause();
                *value.lock().unwrap() = number;
            }
        };
        race(write, || *value.lock().unwrap());
    }
}
