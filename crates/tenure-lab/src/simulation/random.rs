//! Random numbers that depend on the seed alone.

use std::time::Duration;

/// A stream of numbers. Each part of a schedule has its own, so that the parts do not depend on
/// each other's order.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64, part: u64) -> Random {
        let mixed = (seed ^ (part << 48)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut random = Random(mixed | 1);
        // The first numbers of neighbouring seeds are alike.
        for _ in 0..4 {
            random.next();
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below this one, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in this many times.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A duration below this many milliseconds.
    pub(super) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}
