//! Pauses between retries: exponential backoff, and jitter so that clients do not retry in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The pauses between retries of one request: the first is short, each one is twice the one before,
/// up to a longest.
#[derive(Clone, Debug)]
pub(crate) struct Backoff {
    first: Duration,
    longest: Duration,
    current: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, current: first }
    }

    /// The pause before the next retry. Doubles the one after it.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.current;
        self.current = self.current.saturating_mul(2).min(self.longest);
        pause
    }

    /// A retry succeeded: the next pause is the first one again.
    pub(crate) fn reset(&mut self) {
        self.current = self.first;
    }
}

/// A random duration from `from` up to, but not including, `to`.
pub(crate) fn jitter(from: Duration, to: Duration) -> Duration {
    let span = u64::try_from(to.saturating_sub(from).as_nanos()).unwrap_or(u64::MAX);
    // The standard library's only source of randomness: each state hashes with other keys.
    let random = RandomState::new().hash_one(());
    from + Duration::from_nanos(random.checked_rem(span).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_double_up_to_the_longest_and_start_again() {
        let mut backoff = Backoff::new(20 * MS, 100 * MS);
        let pauses: Vec<_> = (0..5).map(|_| backoff.next()).collect();
        assert_eq!(pauses, [20 * MS, 40 * MS, 80 * MS, 100 * MS, 100 * MS]);
        backoff.reset();
        assert_eq!(backoff.next(), 20 * MS);
    }

    #[test]
    fn jitter_stays_in_its_range_and_differs() {
        let some: Vec<_> = (0..100).map(|_| jitter(50 * MS, 150 * MS)).collect();
        assert!(some.iter().all(|span| (50 * MS..150 * MS).contains(span)), "{some:?}");
        assert!(some.iter().any(|span| *span != some[0]), "{some:?}");
        assert_eq!(jitter(MS, MS), MS);
        assert_eq!(jitter(2 * MS, MS), 2 * MS);
    }
}
