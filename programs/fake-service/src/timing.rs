//! How long a service pretends to work on a request.

use std::time::Duration;

/// A distribution of request times by three percentiles; all zero means as fast as possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    median: Duration,
    percentile_90: Duration,
    percentile_99: Duration,
    variance_percent: u32,
}

impl Timing {
    /// Makes a distribution in which 90 % of requests take `median`, 9 % `percentile_90` and 1 % `percentile_99`,
    /// each lengthened at random by less than `variance_percent`.
    ///
    /// A zero percentile takes the value of the one below it.
    pub fn new(median: Duration, percentile_90: Duration, percentile_99: Duration, variance_percent: u32) -> Self {
        let percentile_90 = if percentile_90.is_zero() { median } else { percentile_90 };
        let percentile_99 = if percentile_99.is_zero() { percentile_90 } else { percentile_99 };
        Self { median, percentile_90, percentile_99, variance_percent }
    }

    /// Draws the time one request takes.
    pub(crate) fn sample(&self) -> Duration {
        if self.median.is_zero() && self.percentile_90.is_zero() && self.percentile_99.is_zero() {
            return Duration::ZERO;
        }
        self.at(fastrand::u8(..100), fastrand::f64())
    }

    /// The time at a percentile below 100, with `spread` from 0 to 1 of the variance added.
    fn at(&self, percentile: u8, spread: f64) -> Duration {
        let base = match percentile {
            0..90 => self.median,
            90..99 => self.percentile_90,
            99.. => self.percentile_99,
        };
        base + base.mul_f64(f64::from(self.variance_percent) / 100.0 * spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn percentiles_split_at_90_and_99() {
        let timing = Timing::new(ms(1), ms(10), ms(100), 0);
        let at = |percentile| timing.at(percentile, 1.0);
        assert_eq!([at(0), at(89), at(90), at(98), at(99)], [ms(1), ms(1), ms(10), ms(10), ms(100)]);
    }

    #[test]
    fn missing_percentiles_take_the_one_below() {
        assert_eq!(Timing::new(ms(5), ms(0), ms(0), 0).at(99, 0.0), ms(5));
        assert_eq!(Timing::new(ms(5), ms(7), ms(0), 0).at(99, 0.0), ms(7));
    }

    #[test]
    fn variance_only_lengthens_and_stays_in_its_bound() {
        let timing = Timing::new(ms(100), ms(0), ms(0), 20);
        assert_eq!(timing.at(0, 0.0), ms(100));
        assert_eq!(timing.at(0, 1.0), ms(120));
        for _ in 0..1_000 {
            assert!((ms(100)..=ms(120)).contains(&timing.sample()));
        }
    }

    #[test]
    fn nothing_set_takes_no_time() {
        assert_eq!(Timing::default().sample(), Duration::ZERO);
    }
}
