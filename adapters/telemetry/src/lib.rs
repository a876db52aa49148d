//! What the process says about itself: log lines and metrics.
//!
//! [`start_log`] sets up `tracing` once per process. [`Registry`] collects metrics; every component registers its own
//! when it is built, keeps the handles, and pays one atomic addition per event.

mod audit;
mod measured;
mod tail;

use std::fmt;
use std::io::IsTerminal;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::family::Family;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Metric;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

pub use audit::{AuditEnd, AuditEntry, AuditError, AuditLog, verify_audit};
use measured::Measured;
pub use measured::{Measure, MeasureFamily, Measurement};
pub use tail::{FOLLOWERS_MAX, follow};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The filter does not parse, or a log was started before.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter is not in `tracing`'s form.
    #[error("log filter {filter:?} is not understood; use a level (error, warn, info, debug, trace) or TARGET=LEVEL,…")]
    Filter {
        /// The filter as given.
        filter: String,
        /// What the parser said, if it said anything.
        #[source]
        source: Option<tracing_subscriber::filter::ParseError>,
    },
    /// Something else in the process logs already.
    #[error("a log is already running in this process")]
    Running,
}

/// Starts the log on standard error.
///
/// # Errors
/// [`LogError`].
pub fn start_log(filter: &str, format: LogFormat) -> Result<(), LogError> {
    let filter = parse(filter)?;
    let registry = tracing_subscriber::registry().with(filter).with(tail::Followed);
    // A closed standard error is no reason to panic, which the report of such a failure on standard error would be.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let lines = if std::io::stderr().is_terminal() { lines } else { lines.with_ansi(false) };
    let started = match format {
        LogFormat::Text => registry.with(lines.with_target(false)).try_init(),
        LogFormat::Json => registry.with(lines.json()).try_init(),
    };
    started.map_err(|_| LogError::Running)
}

/// Whether logs can be filtered so.
///
/// # Errors
/// [`LogError::Filter`] if not.
pub fn judge_filter(filter: &str) -> Result<(), LogError> {
    parse(filter).map(drop)
}

/// A filter, of which every part is a level or sets one. A word that is neither would be taken for a target to be shown
/// in full, and hide all else.
fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let refused = |source| LogError::Filter { filter: filter.to_owned(), source };
    let parsed = EnvFilter::try_new(filter).map_err(|error| refused(Some(error)))?;
    let is_clear = |part: &str| part.contains(['=', '[']) || LevelFilter::from_str(part).is_ok();
    let mut parts = filter.split(',').filter(|part| !part.is_empty());
    if parts.all(is_clear) { Ok(parsed) } else { Err(refused(None)) }
}

/// The metrics of a process. Clones share the same metrics.
#[derive(Debug, Clone, Default)]
pub struct Registry(Arc<Mutex<prometheus_client::registry::Registry>>);

impl Registry {
    /// Adds a metric under `starling_NAME`; the name must be given once only.
    pub fn register<M: Metric + Clone>(&self, name: &str, help: &str, metric: M) -> M {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register(format!("starling_{name}"), help, metric.clone());
        metric
    }

    /// Adds a gauge under `starling_NAME` whose value is looked up whenever the metrics are read.
    pub fn register_asked(&self, name: &str, help: &str, ask: impl Fn() -> f64 + Send + Sync + 'static) {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register(format!("starling_{name}"), help, Asked(ask));
    }

    /// Adds a gauge under `starling_NAME` with a series for each value of `label`; which there are, and their values, is
    /// looked up whenever the metrics are read. The caller sees to it that they are not too many.
    pub fn register_asked_each(
        &self,
        name: &str,
        help: &str,
        label: &'static str,
        ask: impl Fn() -> Vec<(String, f64)> + Send + Sync + 'static,
    ) {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register(format!("starling_{name}"), help, AskedEach { label, ask });
    }

    /// Adds whole families of metrics, each under `starling_NAME`, that are measured whenever the metrics are read. The
    /// caller sees to it that series are not too many, and that no name is given by anybody else.
    pub fn register_measured(&self, measure: impl Fn() -> Vec<MeasureFamily> + Send + Sync + 'static) {
        let mut registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register_collector(Box::new(Measured(measure)));
    }

    /// Every metric in the OpenMetrics text form that Prometheus reads.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        let registry = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

/// A gauge that is a question.
struct Asked<F>(F);

impl<F: Fn() -> f64> EncodeMetric for Asked<F> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&(self.0)())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

impl<F> fmt::Debug for Asked<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Asked")
    }
}

/// Gauges that are a question.
struct AskedEach<F> {
    label: &'static str,
    ask: F,
}

impl<F: Fn() -> Vec<(String, f64)>> EncodeMetric for AskedEach<F> {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        for (of, value) in (self.ask)() {
            encoder.encode_family(&[(self.label, of)])?.encode_gauge(&value)?;
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

impl<F> fmt::Debug for AskedEach<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskedEach").field("label", &self.label).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_levels() {
        for filter in ["info", "WARN", "off", "starling_agent=debug,warn", "error,hyper=off", "[span]=trace"] {
            assert!(parse(filter).is_ok(), "{filter}");
        }
        for filter in ["bogus", "info,bogus", "starling=bogus", "verbose"] {
            assert!(matches!(parse(filter), Err(LogError::Filter { .. })), "{filter}");
        }
    }

    #[test]
    fn registered_metrics_appear_in_the_text() {
        let registry = Registry::default();
        let commits = registry.register("commits", "Transactions committed", Counter::<u64>::default());
        commits.inc();
        assert!(registry.encode().contains("starling_commits_total 1"), "{}", registry.encode());
    }

    #[test]
    fn a_gauge_that_is_asked_answers_at_the_time_of_reading() {
        let (registry, value) = (Registry::default(), Arc::new(Mutex::new(1.5)));
        let asked = Arc::clone(&value);
        registry.register_asked("age_seconds", "An age", move || *asked.lock().unwrap());
        assert!(registry.encode().contains("starling_age_seconds 1.5\n"), "{}", registry.encode());
        *value.lock().unwrap() = 2.0;
        assert!(registry.encode().contains("starling_age_seconds 2.0\n"), "{}", registry.encode());
    }

    #[test]
    fn a_bad_filter_is_refused_with_its_text() {
        let refused = start_log("a=b=c", LogFormat::Text).expect_err("not a filter");
        assert!(refused.to_string().contains("a=b=c"));
    }
}
