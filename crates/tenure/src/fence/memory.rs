//! Fences in memory for many resources, by name.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::MutexGuard;
use std::time::Duration;

use super::refused::{Refused, Stale};
use super::seen::Seen;
use crate::support::clock::{Clock, Moment};
use crate::support::sync::{Condvar, Mutex};
use crate::token::FencingToken;

const DEFAULT_KEEP: Duration = Duration::from_secs(60 * 60);

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
    seen: Seen,
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

    /// Admits this token of a writer for this resource, and from now on none below it. Blocks while
    /// another holder has its turn there.
    ///
    /// # Errors
    ///
    /// [`Refused::Stale`] if a higher token was here before, of a writer or of a reader;
    /// [`Refused::Store`] if there is no room for another resource.
    pub fn admit(&self, resource: &str, token: FencingToken) -> Result<Turn<'_>, Refused<Full>> {
        self.enter(resource, |seen| seen.admit(token))
    }

    /// Admits this token of a reader for this resource, and from now on no lower one of a writer.
    /// Blocks while another holder has its turn there; readers come in any order.
    ///
    /// # Errors
    ///
    /// [`Refused::Stale`] if a writer with a higher token was here before, [`Refused::Store`] if
    /// there is no room for another resource.
    ///
    /// # Examples
    ///
    /// ```
    /// use tenure::{fence::{Fences, Full, Refused}, FencingToken};
    ///
    /// let fences = Fences::new(10_000);
    /// let [writer, one, other] = [7, 8, 9].map(|number| FencingToken::new(number).unwrap());
    /// drop(fences.admit_shared("stock/42", other)?);
    /// drop(fences.admit_shared("stock/42", one)?); // both hold the lock
    /// assert!(fences.admit("stock/42", writer).is_err());
    /// # Ok::<(), Refused<Full>>(())
    /// ```
    pub fn admit_shared(
        &self,
        resource: &str,
        token: FencingToken,
    ) -> Result<Turn<'_>, Refused<Full>> {
        self.enter(resource, |seen| seen.admit_shared(token))
    }

    fn enter(
        &self,
        resource: &str,
        admit: impl Fn(&mut Seen) -> Result<(), Stale>,
    ) -> Result<Turn<'_>, Refused<Full>> {
        let mut entries = self.entries.lock();
        // A token that is refused already need not wait for the turn that is under way.
        let waits =
            |entry: &FenceEntry| entry.in_turn && admit(&mut Seen::clone(&entry.seen)).is_ok();
        while entries.get(resource).is_some_and(waits) {
            entries = self.turn_ended.wait(entries);
        }
        let now = Clock::Boot.now();
        let mut seen = entries.get(resource).map_or(Seen::new(), |entry| entry.seen);
        admit(&mut seen)?;
        let admitted = FenceEntry { seen, last_admission: now, in_turn: true };
        if let Some(entry) = entries.get_mut(resource) {
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

    use super::super::fenced::Fenced;
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
