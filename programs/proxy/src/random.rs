//! Randomness for spreading load; never for secrets.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};

/// A xorshift generator, one a worker (Marsaglia, "Xorshift RNGs", 2003: the triple 13, 7, 17).
pub(crate) struct Random(Cell<u64>);

impl Random {
    /// Seeded by the system.
    pub(crate) fn new() -> Self {
        Self(Cell::new(RandomState::new().hash_one(0_u8) | 1))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.get();
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        self.0.set(state);
        state
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        // The upper half of a product is even enough where bounds are small beside 2^32.
        let random = self.next() >> 32;
        usize::try_from((random * bound as u64) >> 32).unwrap_or(0)
    }

    /// Two different numbers below `bound`, which must be 2 or more.
    pub(crate) fn two_of(&self, bound: usize) -> (usize, usize) {
        let one = self.below(bound);
        let other = self.below(bound - 1);
        (one, if other >= one { other + 1 } else { other })
    }
}
