//! Families of metrics that somebody else keeps, measured whenever the metrics are read.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// What one series holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Measure {
    /// It only rises.
    Counter(u64),
    /// It rises and falls.
    Gauge(f64),
    /// How often values up to each bound came.
    Histogram {
        /// The sum of all values.
        sum: f64,
        /// Upper bound and count of each bucket, not cumulative; the last bound is infinity.
        buckets: Vec<(f64, u64)>,
    },
}

/// One series.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// What it holds.
    pub measure: Measure,
}

/// Series under one name, all of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasureFamily {
    /// The name, without `starling_` and without the ending of a counter.
    pub name: &'static str,
    /// What it says.
    pub help: &'static str,
    /// Its series; without any, the family is left out.
    pub series: Vec<Measurement>,
}

/// Families that are a question.
pub(crate) struct Measured<F>(pub(crate) F);

impl<F: Fn() -> Vec<MeasureFamily> + Send + Sync + 'static> Collector for Measured<F> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for family in (self.0)() {
            let Some(first) = family.series.first() else { continue };
            let name = format!("starling_{}", family.name);
            let mut metric = encoder.encode_descriptor(&name, family.help, None, first.measure.kind())?;
            for series in &family.series {
                series.measure.encode(metric.encode_family(&series.labels.as_slice())?)?;
            }
        }
        Ok(())
    }
}

impl<F> fmt::Debug for Measured<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Measured")
    }
}

impl Measure {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(_) => MetricType::Counter,
            Self::Gauge(_) => MetricType::Gauge,
            Self::Histogram { .. } => MetricType::Histogram,
        }
    }

    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(count) => encoder.encode_counter::<NoLabelSet, u64, u64>(count, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram { sum, buckets } => {
                let count = buckets.iter().map(|(_, count)| count).sum();
                encoder.encode_histogram::<NoLabelSet>(*sum, count, buckets, None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Registry;

    fn family(name: &'static str, measure: Measure) -> MeasureFamily {
        let series = vec![Measurement { labels: vec![("service", "web".to_owned())], measure }];
        MeasureFamily { name, help: "Some", series }
    }

    #[test]
    fn families_are_shown_as_they_are_when_they_are_read() {
        let registry = Registry::default();
        registry.register_measured(|| {
            vec![
                family("calls", Measure::Counter(7)),
                family("open", Measure::Gauge(2.0)),
                family("seconds", Measure::Histogram { sum: 1.5, buckets: vec![(0.1, 3), (f64::INFINITY, 1)] }),
                MeasureFamily { name: "none", help: "Nothing", series: Vec::new() },
            ]
        });
        let text = registry.encode();
        for line in [
            "# TYPE starling_calls counter",
            "starling_calls_total{service=\"web\"} 7",
            "starling_open{service=\"web\"} 2.0",
            "starling_seconds_sum{service=\"web\"} 1.5",
            "starling_seconds_count{service=\"web\"} 4",
            "starling_seconds_bucket{le=\"0.1\",service=\"web\"} 3",
            "starling_seconds_bucket{le=\"+Inf\",service=\"web\"} 4",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("none"), "{text}");
    }
}
