//! The machine's monotonic clock, which all of its processes have in common.

use std::time::{Duration, Instant};

use anyhow::Context;
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A moment of `CLOCK_MONOTONIC`, in nanoseconds since the machine was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Moment(u64);

impl Moment {
    /// Now.
    ///
    /// # Errors
    /// When the kernel has no such clock.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).context("cannot read the monotonic clock")?;
        let nanoseconds = u64::try_from(Duration::from(now).as_nanos()).context("the machine has run for centuries")?;
        Ok(Self(nanoseconds))
    }

    /// A moment of this process that has passed.
    ///
    /// # Errors
    /// As for [`Moment::now`].
    pub(crate) fn of(instant: Instant) -> anyhow::Result<Self> {
        let ago = u64::try_from(instant.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Ok(Self(Self::now()?.0.saturating_sub(ago)))
    }

    /// Microseconds since an earlier moment, rounded up; 0 if that is later.
    pub(crate) fn microseconds_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0).div_ceil(1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_a_moment_of_the_same_clock() {
        let before = Moment::now().unwrap();
        let instant = Instant::now();
        let after = Moment::now().unwrap();
        let found = Moment::of(instant).unwrap();
        assert!(before <= after);
        // The clock is read twice for `found`; what lies between can only make it later.
        assert!(found >= before, "{found:?} is before {before:?}");
        assert_eq!(after.microseconds_since(Moment(after.0 - 1500)), 2);
        assert_eq!(before.microseconds_since(Moment(before.0 + 1500)), 0);
    }
}
