//! What the changes took, and the report made of it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::change::Change;
use crate::histogram::{Distribution, Summary, milliseconds};
use crate::machine::Machine;
use crate::probe::{ProbeOptions, Totals};
use crate::report::{Bar, Versions};
use crate::table;

/// What is promised: for one lone change, the 99th percentile from the API's answer to changed traffic, in milliseconds.
pub(super) const P99_BAR_MS: f64 = 50.0;

/// Name of the row that takes all changes together.
const ALL: &str = "all";

/// Shown under `--help`: what is measured, and the report.
pub(super) const JSON_HELP: &str = "\
What is measured:
  Three real Envoys: a client sidecar `web` in front of a service `api` with two instances. Probes
  go through it on several keep-alive connections, each at a moment fixed beforehand. A change's
  latency runs from the moment its API call was answered to the send time of the first request
  after which no request shows the old behaviour. Old behaviour counts however late it shows.
  Where an instance is added, the other one goes on answering, so there it is the send time of the
  first request that the added one answers. The resolution is the time between two probes. The
  next change is made at random 200 to 300 ms after the last one was over.

Report (--json, --report, -o json; times in milliseconds):
  scenario   \"latency-of-change\"
  changes[]  revision (null if the answer named none); kind; latency_ms (from the API's answer; 0
             if traffic changed before it); from_call_ms (from just before the call); answer_ms
             (from call to answer); failed (requests that failed in between); receipt (only of a
             change slower than the bar: what the server says of the proxies, in words)
  summary    by kind and for \"all\": count, p50, p90, p99, max of latency_ms; from_call_ms with
             the same; failed
  bar        name, limit, measured, met
  unseen[]   kinds of changes that never showed in traffic; the run ends there and exits with 1
  failures[] the first few failed requests, in words
  probes     sent, late, failed, connections, spacing_ms, round_trip_ms
  machine    cpu, model, cores, memory (bytes), kernel, date
  versions   starling, build, envoy";

/// Failed requests that are quoted; more of the same tell nothing new.
const FAILURES_QUOTED: usize = 5;

/// One change, measured.
pub(super) struct Measured {
    pub(super) change: Change,
    pub(super) revision: Option<u64>,
    /// From the API's answer to changed traffic.
    pub(super) from_answer: Duration,
    /// From the call to changed traffic.
    pub(super) from_call: Duration,
    /// From the call to the answer.
    pub(super) answer: Duration,
    /// Requests that failed while it was watched, in words.
    pub(super) failures: Vec<String>,
    /// Of a change that took longer than the bar: what the server says of the proxies, in words.
    pub(super) receipt: Option<String>,
}

/// All changes of a run.
pub(super) struct Measurements {
    options: ProbeOptions,
    measured: Vec<Measured>,
    unseen: Vec<&'static str>,
    failures: Vec<String>,
}

/// The report; [`JSON_HELP`] tells its fields.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    scenario: &'static str,
    pub(super) bar: Bar,
    summary: BTreeMap<&'static str, KindSummary>,
    pub(super) unseen: Vec<&'static str>,
    failures: Vec<String>,
    probes: Probes,
    machine: Machine,
    versions: Versions,
    changes: Vec<ChangeRow>,
}

#[derive(Debug, Serialize)]
struct KindSummary {
    #[serde(flatten)]
    latency_ms: Summary,
    from_call_ms: Summary,
    failed: usize,
}

#[derive(Debug, Serialize)]
struct ChangeRow {
    revision: Option<u64>,
    kind: &'static str,
    latency_ms: f64,
    from_call_ms: f64,
    answer_ms: f64,
    failed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<String>,
}

#[derive(Debug, Serialize)]
struct Probes {
    sent: u64,
    late: u64,
    failed: u64,
    connections: usize,
    spacing_ms: f64,
    round_trip_ms: Option<Summary>,
}

impl Measurements {
    pub(super) fn new(options: ProbeOptions) -> Self {
        Self { options, measured: Vec::new(), unseen: Vec::new(), failures: Vec::new() }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.quote(measured.change, &measured.failures);
        self.measured.push(measured);
    }

    pub(super) fn never_seen(&mut self, change: Change, failures: &[String]) {
        self.quote(change, failures);
        self.unseen.push(change.name());
    }

    fn quote(&mut self, change: Change, failures: &[String]) {
        let room = FAILURES_QUOTED.saturating_sub(self.failures.len());
        self.failures.extend(failures.iter().take(room).map(|why| format!("{}: {why}", change.name())));
    }

    /// Sums up.
    pub(super) fn report(self, totals: &Totals, versions: Versions) -> Report {
        let mut by_kind: BTreeMap<&'static str, Vec<&Measured>> = BTreeMap::new();
        for measured in &self.measured {
            by_kind.entry(measured.change.name()).or_default().push(measured);
            by_kind.entry(ALL).or_default().push(measured);
        }
        let summary: BTreeMap<_, _> =
            by_kind.iter().filter_map(|(kind, measured)| Some((*kind, summarise(measured)?))).collect();
        let p99 = summary.get(ALL).map(|all| all.latency_ms.p99).filter(|_| self.unseen.is_empty());
        Report {
            scenario: "latency-of-change",
            bar: Bar::new("p99 from the API's answer to changed traffic, ms", P99_BAR_MS, p99),
            summary,
            unseen: self.unseen,
            failures: self.failures,
            probes: Probes {
                sent: totals.sent,
                late: totals.late,
                failed: totals.failed,
                connections: self.options.lanes,
                spacing_ms: milliseconds(self.options.spacing),
                round_trip_ms: totals.round_trips.summary(),
            },
            machine: Machine::read(),
            versions,
            changes: self.measured.iter().map(Measured::row).collect(),
        }
    }
}

impl Report {
    /// The kinds in the order in which they were first made, and then all together.
    fn kinds(&self) -> impl Iterator<Item = &'static str> {
        let mut kinds: Vec<&'static str> = Vec::new();
        for change in &self.changes {
            if !kinds.contains(&change.kind) {
                kinds.push(change.kind);
            }
        }
        kinds.into_iter().chain([ALL])
    }
}

impl Measured {
    fn row(&self) -> ChangeRow {
        ChangeRow {
            revision: self.revision,
            kind: self.change.name(),
            latency_ms: milliseconds(self.from_answer),
            from_call_ms: milliseconds(self.from_call),
            answer_ms: milliseconds(self.answer),
            failed: self.failures.len(),
            receipt: self.receipt.clone(),
        }
    }
}

fn summarise(measured: &[&Measured]) -> Option<KindSummary> {
    let of = |duration: fn(&Measured) -> Duration| {
        measured.iter().map(|measured| duration(measured)).collect::<Distribution>().summary()
    };
    Some(KindSummary {
        latency_ms: of(|measured| measured.from_answer)?,
        from_call_ms: of(|measured| measured.from_call)?,
        failed: measured.iter().map(|measured| measured.failures.len()).sum(),
    })
}

/// The report for people.
pub(super) fn table(report: &Report) -> String {
    let header = ["change", "count", "p50", "p90", "p99", "max", "from call p50", "p99", "failed"];
    let row = |kind: &str, summary: &KindSummary| {
        let (latency, call) = (&summary.latency_ms, &summary.from_call_ms);
        let figures = [latency.p50, latency.p90, latency.p99, latency.max, call.p50, call.p99];
        let mut row = vec![kind.to_owned(), latency.count.to_string()];
        row.extend(figures.map(table::milliseconds));
        row.push(summary.failed.to_string());
        row
    };
    let rows = report.kinds().filter_map(|kind| Some(row(kind, report.summary.get(kind)?)));
    let mut text = String::from("Milliseconds from the API's answer to changed traffic, one lone change at a time\n\n");
    text.push_str(&table::render(&header, rows));
    let Bar { limit, measured, met, .. } = &report.bar;
    let found = measured.map_or_else(|| "not measured".to_owned(), |p99| format!("{} ms", table::milliseconds(p99)));
    text.push_str(&format!("\n\np99 {found}, bar {limit} ms: {}\n", table::verdict(*met)));
    for ChangeRow { kind, latency_ms, receipt, .. } in &report.changes {
        if let Some(receipt) = receipt {
            text.push_str(&format!("{kind} took {} ms: {receipt}\n", table::milliseconds(*latency_ms)));
        }
    }
    for kind in &report.unseen {
        text.push_str(&format!("{kind}: never showed in traffic; the run ended there\n"));
    }
    let Probes { sent, late, failed, connections, spacing_ms, round_trip_ms } = &report.probes;
    text.push_str(&format!(
        "probes: {sent} on {connections} connections every {spacing_ms} ms, {late} late, {failed} failed"
    ));
    if let Some(Summary { p50, p99, .. }) = round_trip_ms {
        text.push_str(&format!(", round trip p50 {} p99 {}", table::milliseconds(*p50), table::milliseconds(*p99)));
    }
    for why in &report.failures {
        text.push_str(&format!("\n  {why}"));
    }
    text.push_str(&format!("\n{}\n{}", report.versions.line(), report.machine.line()));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::Distribution;

    fn options() -> ProbeOptions {
        let target = std::net::SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 1));
        ProbeOptions { target, lanes: 8, spacing: Duration::from_millis(1) }
    }

    fn totals() -> Totals {
        Totals { sent: 9, late: 1, failed: 2, round_trips: Distribution::default() }
    }

    fn versions() -> Versions {
        Versions { starling: "0.1.0".to_owned(), build: "release".to_owned(), envoy: Some("1.40.0".to_owned()) }
    }

    fn measured(change: Change, latency: u64) -> Measured {
        let from_answer = Duration::from_millis(latency);
        let answer = Duration::from_millis(2);
        let failures = vec!["answered 503".to_owned()];
        Measured {
            change,
            revision: Some(7),
            from_answer,
            from_call: from_answer + answer,
            answer,
            failures,
            receipt: None,
        }
    }

    #[test]
    fn kinds_are_summed_up_apart_and_together() {
        let mut measurements = Measurements::new(options());
        (1..=10).for_each(|ms| measurements.add(measured(Change::Deny, ms)));
        (21..=30).for_each(|ms| measurements.add(measured(Change::Allow, ms)));
        let json = serde_json::to_value(measurements.report(&totals(), versions())).unwrap();
        assert_eq!(json["summary"]["deny"]["max"], 10.0);
        assert_eq!(json["summary"]["all"]["count"], 20);
        assert_eq!(json["summary"]["all"]["failed"], 20);
        assert_eq!(json["bar"]["met"], true);
        assert_eq!(json["changes"][0]["kind"], "deny");
        assert_eq!(json["changes"][0]["latency_ms"], 1.0);
        assert_eq!(json["changes"][0]["from_call_ms"], 3.0);
        assert_eq!(json["changes"][0]["revision"], 7);
        assert_eq!(json["failures"].as_array().unwrap().len(), FAILURES_QUOTED);
        assert_eq!(json["versions"]["envoy"], "1.40.0");
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn a_slow_change_misses_the_bar_and_the_table_says_so() {
        let mut measurements = Measurements::new(options());
        measurements.add(measured(Change::Deregistration, 60));
        let report = measurements.report(&totals(), versions());
        assert!(!report.bar.met);
        let text = table(&report);
        assert!(text.contains("bar 50 ms: MISSED"), "{text}");
        assert!(text.contains("deregistration"), "{text}");
        assert!(text.contains("9 on 8 connections every 1 ms, 1 late, 2 failed"), "{text}");
    }

    #[test]
    fn a_change_that_was_never_seen_spoils_the_bar_however_fast_the_others_were() {
        let mut measurements = Measurements::new(options());
        measurements.add(measured(Change::Deny, 1));
        measurements.never_seen(Change::Allow, &[]);
        let report = measurements.report(&totals(), versions());
        assert!(!report.bar.met);
        assert!(table(&report).contains("allow: never showed in traffic"), "{}", table(&report));
    }
}
