//! The counts as Prometheus is shown them: `starling_proxy_*`.
//!
//! A direction is shown once a connection of it was accepted or tried; series for what goes wrong once it has gone wrong.

use starling_telemetry::{Measure, MeasureFamily, Measurement};

use super::{Cell, Counts, LATENCY_BOUNDS_US, Ledger, MALFORMED, OTHER, SideKey};
use crate::access_log::Sinks;
use crate::failure::Failure;

/// One side with the cells of all workers.
struct Side {
    labels: Vec<(&'static str, String)>,
    workers: Vec<std::sync::Arc<Counts>>,
}

impl Ledger {
    /// Everything that was counted, by family.
    pub(crate) fn families(&self, sinks: &Sinks) -> Vec<MeasureFamily> {
        let sides: Vec<_> = self.read().into_iter().map(Side::new).filter(Side::was_used).collect();
        let mut families = vec![
            family(&sides, "proxy_requests", "Requests by the class of their response", |side| {
                side.by("class", &CLASSES, |counts, place| counts.responses.get(place).unwrap_or(&counts.broken))
            }),
            family(&sides, "proxy_request_duration_seconds", "Time of requests from head to last byte", |side| {
                vec![side.measurement(None, side.latency())]
            }),
        ];
        let counter = |(name, help, cell): (&'static str, &'static str, fn(&Counts) -> &Cell)| {
            family(&sides, name, help, |side| vec![side.measurement(None, Measure::Counter(side.sum(cell)))])
        };
        families.extend(COUNTERS.map(counter));
        families.push(family(&sides, "proxy_connections", "Connections of clients that stand", |side| {
            let open = side.sum(|counts| &counts.open);
            #[expect(clippy::cast_precision_loss, reason = "nobody has 2^53 connections")]
            let open = open as f64;
            vec![side.measurement(None, Measure::Gauge(open))]
        }));
        families.push(family(&sides, "proxy_tls_handshake_failures", "TLS handshakes that failed, by peer", |side| {
            side.by("peer", &["client", "server"], |counts, place| match place {
                0 => &counts.handshakes_failed,
                _ => &counts.upstream_handshakes_failed,
            })
        }));
        families.push(family(&sides, "proxy_failures", "Requests and connections that reached no server", |side| {
            present(side.by("reason", &Failure::REASONS, |counts, place| &counts.failures[place]))
        }));
        let statuses: Vec<_> = MALFORMED.iter().map(u16::to_string).chain([OTHER.to_owned()]).collect();
        families.push(family(&sides, "proxy_malformed", "Requests refused for their form, by status", |side| {
            present(side.by("status", &statuses, |counts, place| &counts.malformed[place]))
        }));
        families.push(family(&sides, "proxy_denials", "Calls denied, by the intention that denied", Side::denials));
        families.push(self.captured_connections());
        families.push(lost(sinks));
        families.push(lost_spans(sinks));
        families
    }
}

fn lost_spans(sinks: &Sinks) -> MeasureFamily {
    let series =
        |(collector, lost)| Measurement { labels: vec![("collector", collector)], measure: Measure::Counter(lost) };
    let series = sinks.collectors.lost().into_iter().map(series).collect();
    MeasureFamily { name: "proxy_lost_spans", help: "Spans that no collector took", series }
}

fn lost(sinks: &Sinks) -> MeasureFamily {
    let series = |(target, lost)| Measurement { labels: vec![("target", target)], measure: Measure::Counter(lost) };
    let series = sinks.lost().into_iter().map(series).collect();
    MeasureFamily { name: "proxy_access_log_lost_lines", help: "Lines that the access log had no room for", series }
}

/// Classes of responses, and requests without one.
const CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "broken"];

type Counter = (&'static str, &'static str, fn(&Counts) -> &Cell);

/// Counters with the labels of their side alone.
const COUNTERS: [Counter; 7] = [
    ("proxy_received_bytes", "Bytes of bodies received from clients", |counts| &counts.received_bytes),
    ("proxy_sent_bytes", "Bytes of bodies sent to clients", |counts| &counts.sent_bytes),
    ("proxy_connections_opened", "Connections accepted", |counts| &counts.opened),
    ("proxy_connections_overflowed", "Connections refused for their number", |counts| &counts.overflowed),
    ("proxy_upstream_connect_failures", "Servers that could not be connected to", |counts| &counts.connects_failed),
    ("proxy_upstream_retries", "Attempts at requests after the first", |counts| &counts.retries),
    ("proxy_upstream_ejections", "Endpoints not called for a while, as they failed", |counts| &counts.ejections),
];

fn family<F: Fn(&Side) -> Vec<Measurement>>(
    sides: &[Side],
    name: &'static str,
    help: &'static str,
    measure: F,
) -> MeasureFamily {
    MeasureFamily { name, help, series: sides.iter().flat_map(measure).collect() }
}

/// Without what never happened.
fn present(mut series: Vec<Measurement>) -> Vec<Measurement> {
    series.retain(|series| series.measure != Measure::Counter(0));
    series
}

impl Side {
    fn new((key, workers): (SideKey, Vec<std::sync::Arc<Counts>>)) -> Self {
        let direction = if key.upstream.is_some() { "outbound" } else { "inbound" };
        let upstream = key.upstream.map(|upstream| upstream.to_string()).unwrap_or_default();
        let labels =
            vec![("service", key.service.to_string()), ("upstream", upstream), ("direction", direction.to_owned())];
        Self { labels, workers }
    }

    fn sum<F: Fn(&Counts) -> &Cell>(&self, cell: F) -> u64 {
        self.workers.iter().fold(0, |sum, counts| sum.wrapping_add(cell(counts).get()))
    }

    fn was_used(&self) -> bool {
        self.sum(|counts| &counts.opened) + self.sum(|counts| &counts.overflowed) > 0
            || self.sum(|counts| &counts.connects_failed) > 0
    }

    fn measurement(&self, label: Option<(&'static str, String)>, measure: Measure) -> Measurement {
        Measurement { labels: self.labels.iter().cloned().chain(label).collect(), measure }
    }

    /// A series for each value of a label.
    fn by<V: AsRef<str>, F: Fn(&Counts, usize) -> &Cell>(
        &self,
        label: &'static str,
        values: &[V],
        cell: F,
    ) -> Vec<Measurement> {
        let series = |(place, value): (usize, &V)| {
            let count = self.sum(|counts| cell(counts, place));
            self.measurement(Some((label, value.as_ref().to_owned())), Measure::Counter(count))
        };
        values.iter().enumerate().map(series).collect()
    }

    fn latency(&self) -> Measure {
        let bounds = LATENCY_BOUNDS_US.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        let count = |place: usize| self.sum(|counts| &counts.latency[place]);
        let buckets = bounds.enumerate().map(|(place, bound)| (bound, count(place))).collect();
        Measure::Histogram { sum: seconds(self.sum(|counts| &counts.latency_us)), buckets }
    }

    fn denials(&self) -> Vec<Measurement> {
        let mut by_rule = std::collections::BTreeMap::<String, u64>::new();
        for counts in &self.workers {
            let denied = counts.denied.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            for (rule, cell) in &*denied {
                *by_rule.entry(rule.clone()).or_default() += cell.get();
            }
        }
        let series = |(rule, count)| self.measurement(Some(("rule", rule)), Measure::Counter(count));
        by_rule.into_iter().map(series).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "microseconds beyond 2^53 are three centuries")]
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
