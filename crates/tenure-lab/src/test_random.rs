//! Numbers that depend on a seed alone, for tests.

/// A stream of numbers (xorshift).
pub(crate) struct TestRandom(u64);

impl TestRandom {
    pub(crate) fn new(seed: u64) -> TestRandom {
        TestRandom((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below this one, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}
