//! Collects the events of all processes, and lets the runner wait for them.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::history::{Event, EventKind};
use crate::sync::{Condvar, Mutex};

/// The events of a run so far.
#[derive(Debug)]
pub(super) struct Recorder {
    clock: Clock,
    events: Mutex<Vec<Event>>,
    added: Condvar,
}

impl Recorder {
    pub(super) fn new(clock: Clock) -> Arc<Recorder> {
        Arc::new(Recorder { clock, events: Mutex::default(), added: Condvar::default() })
    }

    /// Now, on the run's clock.
    pub(super) fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Records what the lab itself did or saw, at the current time.
    pub(super) fn record(&self, lane: &str, kind: EventKind) {
        self.add(Event { at: self.now(), lane: lane.to_owned(), kind });
    }

    pub(super) fn add(&self, event: Event) {
        self.events.lock().push(event);
        self.added.notify_all();
    }

    /// Records the events that a process writes, on a thread that ends with the output.
    pub(super) fn follow(
        self: &Arc<Recorder>,
        output: BufReader<impl Read + Send + 'static>,
    ) -> JoinHandle<()> {
        let recorder = self.clone();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Ok(event) = serde_json::from_str(&line) {
                    recorder.add(event);
                }
            }
        })
    }

    /// Waits until `select` picks an event at this position or after it; returns what it picked.
    pub(super) fn wait_for<T>(
        &self,
        from: usize,
        limit: Duration,
        select: impl Fn(&Event) -> Option<T>,
    ) -> Option<T> {
        let end = Instant::now() + limit;
        let mut events = self.events.lock();
        let mut next = from;
        loop {
            if let Some(found) = events.iter().skip(next).find_map(&select) {
                return Some(found);
            }
            next = events.len().max(from);
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            events = self.added.wait_timeout(events, left);
        }
    }

    /// What `select` picks from the last event from which it picks something.
    pub(super) fn find_last<T>(&self, select: impl Fn(&Event) -> Option<T>) -> Option<T> {
        self.events.lock().iter().rev().find_map(select)
    }

    /// Number of events that match.
    pub(super) fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        self.events.lock().iter().filter(|event| matches(event)).count()
    }

    /// The position after the last event, to wait from.
    pub(super) fn position(&self) -> usize {
        self.events.lock().len()
    }

    pub(super) fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock())
    }
}
