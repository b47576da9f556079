//! Numbers that depend on the seed alone.

use std::time::Duration;

/// A stream of numbers; each part of a schedule has one of its own.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64, part: u64) -> Dice {
        let mixed = (seed ^ (part << 48)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut dice = Dice(mixed | 1);
        // Neighbouring seeds look alike in the first numbers.
        for _ in 0..4 {
            dice.next();
        }
        dice
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

    /// Yes once in so many times.
    pub(super) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    pub(super) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}
