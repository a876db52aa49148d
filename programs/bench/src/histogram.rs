//! Distributions of durations: microsecond HDR histograms, and the few figures quoted of them.

use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde::Serialize;

/// Longest duration that is told apart, in microseconds; longer ones count as this.
const MICROSECONDS_MAX: u64 = 3_600_000_000;

/// Significant decimal digits kept of a value.
const DIGITS: u8 = 3;

/// How long something took, many times.
#[derive(Debug, Clone)]
pub(crate) struct Distribution {
    microseconds: Histogram<u64>,
    /// Kept beside the histogram, whose buckets round up: the longest is quoted as it was.
    max: Duration,
}

/// The figures quoted of a distribution, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// How many durations there were.
    pub(crate) count: u64,
    /// Half of them took at most this.
    pub(crate) p50: f64,
    /// Nine of ten took at most this.
    pub(crate) p90: f64,
    /// 99 of 100 took at most this.
    pub(crate) p99: f64,
    /// The longest.
    pub(crate) max: f64,
}

impl Distribution {
    /// Adds one duration.
    pub(crate) fn record(&mut self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(MICROSECONDS_MAX);
        self.max = self.max.max(duration);
        self.microseconds.saturating_record(microseconds.min(MICROSECONDS_MAX));
    }

    /// Adds what another has.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.max = self.max.max(other.max);
        self.microseconds.add(&other.microseconds).expect("invariant: all have the same bounds");
    }

    /// How many durations there are.
    pub(crate) fn count(&self) -> u64 {
        self.microseconds.len()
    }

    /// What a share of all took at most, in milliseconds; `None` of nothing.
    pub(crate) fn at(&self, quantile: f64) -> Option<f64> {
        let max = self.max.min(Duration::from_micros(MICROSECONDS_MAX));
        let rounded_up = Duration::from_micros(self.microseconds.value_at_quantile(quantile));
        (self.count() > 0).then(|| milliseconds(rounded_up.min(max)))
    }

    /// The mean in milliseconds; `None` of nothing.
    pub(crate) fn mean(&self) -> Option<f64> {
        (self.count() > 0).then(|| (self.microseconds.mean()).round() / 1e3)
    }

    /// Everything recorded: microseconds, and how many took up to that.
    pub(crate) fn recorded(&self) -> Vec<(u64, u64)> {
        self.microseconds.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }

    /// What [`Distribution::recorded`] gave, with the longest, which its buckets do not tell exactly.
    pub(crate) fn of_recorded(recorded: impl IntoIterator<Item = (u64, u64)>, max: Duration) -> Self {
        let mut distribution = Self { max, ..Self::default() };
        for (microseconds, count) in recorded {
            distribution.microseconds.saturating_record_n(microseconds.min(MICROSECONDS_MAX), count);
        }
        distribution
    }

    /// As tools for HDR histograms read it: V2, deflated, in base64. Its unit is the microsecond.
    ///
    /// # Errors
    /// When it cannot be written out, which would take a histogram larger than memory.
    pub(crate) fn to_log(&self) -> anyhow::Result<String> {
        let mut bytes = Vec::new();
        let written = V2DeflateSerializer::new().serialize(&self.microseconds, &mut bytes);
        written.context("cannot write an HDR histogram")?;
        Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
    }

    /// The histogram itself, in microseconds.
    pub(crate) fn histogram(&self) -> &Histogram<u64> {
        &self.microseconds
    }

    /// The figures, or `None` of nothing.
    pub(crate) fn summary(&self) -> Option<Summary> {
        Some(Summary {
            count: self.count(),
            p50: self.at(0.50)?,
            p90: self.at(0.90)?,
            p99: self.at(0.99)?,
            max: self.at(1.0)?,
        })
    }
}

impl Default for Distribution {
    fn default() -> Self {
        let microseconds = Histogram::new_with_bounds(1, MICROSECONDS_MAX, DIGITS);
        Self {
            microseconds: microseconds.expect("invariant: the bounds are constants that hdrhistogram accepts"),
            max: Duration::ZERO,
        }
    }
}

impl From<&Histogram<u64>> for Distribution {
    /// Of a histogram of microseconds, whatever its bounds are.
    fn from(microseconds: &Histogram<u64>) -> Self {
        let mut distribution = Self::default();
        for step in microseconds.iter_recorded() {
            let value = step.value_iterated_to().min(MICROSECONDS_MAX);
            distribution.microseconds.saturating_record_n(value, step.count_at_value());
        }
        if !microseconds.is_empty() {
            distribution.max = Duration::from_micros(microseconds.max());
        }
        distribution
    }
}

impl FromIterator<Duration> for Distribution {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut distribution = Self::default();
        durations.into_iter().for_each(|duration| distribution.record(duration));
        distribution
    }
}

/// A duration in milliseconds with three decimals, the unit of every report.
pub(crate) fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_the_nearest_rank() {
        let distribution: Distribution = (1..=100).map(Duration::from_millis).collect();
        let summary = distribution.summary().unwrap();
        let near = |found: f64, expected: f64| (found - expected).abs() <= expected / 1000.0;
        assert_eq!(summary.count, 100);
        assert!(near(summary.p50, 50.0), "{summary:?}");
        assert!(near(summary.p90, 90.0), "{summary:?}");
        assert!(near(summary.p99, 99.0), "{summary:?}");
        assert!((summary.max - 100.0).abs() < f64::EPSILON, "{summary:?}");
    }

    #[test]
    fn nothing_has_no_figures_and_extremes_are_kept() {
        assert_eq!(Distribution::default().summary(), None);
        let distribution: Distribution = [Duration::ZERO, Duration::MAX].into_iter().collect();
        let summary = distribution.summary().unwrap();
        assert_eq!(summary.p50, 0.0);
        assert!(summary.max >= 3_600_000.0, "{summary:?}");
    }

    #[test]
    fn what_is_merged_is_what_was_recorded_together() {
        let all: Vec<_> = (1..=1000).map(Duration::from_millis).collect();
        let (even, odd): (Vec<_>, Vec<_>) = all.iter().partition(|it| it.as_millis() % 2 == 0);
        let mut merged: Distribution = even.into_iter().collect();
        merged.merge(&odd.into_iter().collect());
        let together: Distribution = all.into_iter().collect();
        assert_eq!(merged.summary(), together.summary());
        assert_eq!((merged.recorded(), merged.mean()), (together.recorded(), together.mean()));
        assert_eq!(merged.recorded().iter().map(|(_, count)| count).sum::<u64>(), 1000);
    }

    #[test]
    fn what_was_recorded_is_the_same_again_and_as_a_log() {
        let all: Distribution = (1..=1000).map(|step| Duration::from_micros(step * 37)).collect();
        let again = Distribution::of_recorded(all.recorded(), all.max);
        assert_eq!((again.recorded(), again.summary()), (all.recorded(), all.summary()));
        let bytes = base64::engine::general_purpose::STANDARD.decode(all.to_log().unwrap()).unwrap();
        let read: Histogram<u64> =
            hdrhistogram::serialization::Deserializer::new().deserialize(&mut bytes.as_slice()).unwrap();
        assert_eq!(read, all.microseconds);
        // How such logs begin, whoever writes them: the cookie of V2, deflated.
        assert!(all.to_log().unwrap().starts_with("HISTF"), "{}", all.to_log().unwrap());
    }

    #[test]
    fn milliseconds_have_three_decimals() {
        assert_eq!(milliseconds(Duration::from_nanos(1_234_567)), 1.235);
    }
}
