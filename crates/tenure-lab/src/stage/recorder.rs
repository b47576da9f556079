//! Collects what all processes say, and lets the conductor wait for it.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::clock::Clock;
use crate::history::{Event, What};

/// The events of a run so far.
#[derive(Debug)]
pub(crate) struct Recorder {
    clock: Clock,
    events: Mutex<Vec<Event>>,
    more: Condvar,
}

impl Recorder {
    pub(crate) fn new(clock: Clock) -> Arc<Recorder> {
        Arc::new(Recorder { clock, events: Mutex::default(), more: Condvar::new() })
    }

    /// The time, as in the history.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Writes down what the lab itself did or saw.
    pub(crate) fn note(&self, lane: &str, what: What) {
        self.add(Event { at: self.now(), lane: lane.to_owned(), what });
    }

    pub(crate) fn add(&self, event: Event) {
        self.events().push(event);
        self.more.notify_all();
    }

    /// Follows the output of a process to its end, on a thread of its own.
    pub(crate) fn follow(
        self: &Arc<Recorder>,
        output: BufReader<impl Read + Send + 'static>,
    ) -> std::thread::JoinHandle<()> {
        let recorder = self.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line) {
                    recorder.add(event);
                }
            }
        })
    }

    /// Waits until an event from this place on fits; gives what was made of it.
    pub(crate) fn wait<T>(
        &self,
        from: usize,
        limit: Duration,
        fits: impl Fn(&Event) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + limit;
        let (mut events, mut next) = (self.events(), from);
        loop {
            if let Some(found) = events.iter().skip(next).find_map(&fits) {
                return Some(found);
            }
            next = events.len().max(from);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let waited = self.more.wait_timeout(events, left);
            events = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// What was made of the last event that fits.
    pub(crate) fn last<T>(&self, fits: impl Fn(&Event) -> Option<T>) -> Option<T> {
        self.events().iter().rev().find_map(fits)
    }

    /// How many fit.
    pub(crate) fn count(&self, fits: impl Fn(&Event) -> bool) -> usize {
        self.events().iter().filter(|event| fits(event)).count()
    }

    /// How many there are: a place to wait from.
    pub(crate) fn place(&self) -> usize {
        self.events().len()
    }

    pub(crate) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events())
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
