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
}
