//! Endpoints that fail are left out for a while.
//!
//! As Envoy's outlier detection by consecutive 5xx: so many failures in a row take an endpoint out for the base time, times
//! the number of times that it has been out; every interval in which it does not fail again takes one off that number.
//! Time is passed in, in milliseconds of any clock that does not go back.

use std::time::Duration;

use starling_model::{PassiveHealthCheck, Percent};

/// Envoy's defaults.
const INTERVAL: Duration = Duration::from_secs(10);
const MAX_FAILURES: u32 = 5;
const BASE_TIME: Duration = Duration::from_secs(30);
const MAX_EJECTED_HUNDREDTHS: u16 = 1_000;

/// However often it failed, an endpoint is tried again after this.
const TIME_MAX: Duration = Duration::from_secs(300);

/// One endpoint's record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Record {
    failures: u32,
    times: u32,
    until: Option<u64>,
}

/// What is beside an endpoint when it fails.
#[derive(Debug, Clone, Copy)]
pub struct Others {
    /// Endpoints in all.
    pub total: usize,
    /// Of these left out now.
    pub ejected: usize,
}

impl Record {
    /// Whether it is left out at `now`.
    #[must_use]
    pub fn is_out(&self, now: u64) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A call went well.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// A call failed at `now`; whether that leaves the endpoint out from now on. `random` decides where only some of those
    /// that fail so are left out.
    pub fn failed(&mut self, check: &PassiveHealthCheck, others: Others, now: u64, random: u64) -> bool {
        if self.is_out(now) {
            return false;
        }
        self.failures += 1;
        if self.failures < check.max_failures.unwrap_or(MAX_FAILURES) {
            return false;
        }
        self.failures = 0;
        let most = check.max_ejected.map_or(MAX_EJECTED_HUNDREDTHS, Percent::hundredths);
        let allowed = (others.total * usize::from(most) / 10_000).max(1);
        let enforced = check.enforcing.is_none_or(|share| crate::route::hits(share, random));
        if others.ejected >= allowed || !enforced {
            return false;
        }
        let well = self.until.map_or(0, |until| now.saturating_sub(until) / millis(check.interval.unwrap_or(INTERVAL)));
        self.times = self.times.saturating_sub(u32::try_from(well).unwrap_or(u32::MAX)) + 1;
        let base = check.base_ejection_time.unwrap_or(BASE_TIME);
        let most = TIME_MAX.max(base);
        self.until = Some(now + millis(base.saturating_mul(self.times).min(most)));
        true
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
