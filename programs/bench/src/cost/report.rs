//! The report of what a mesh costs: schema `starling-bench-cost/1`, described in docs/reference/bench-report.md.
//!
//! What is read back and compared later is here in full: every round by itself, and the latencies of all rounds merged.
//! Durations are in milliseconds unless a name says otherwise.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::report::Versions;

/// Names the shape of the report; the number goes up when something is taken away or means something else.
pub(crate) const SCHEMA: &str = "starling-bench-cost/1";

/// Everything that a run found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CostReport {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// The command line, as it was given.
    pub(crate) command: Vec<String>,
    pub(crate) machine: Machine,
    pub(crate) versions: Versions,
    pub(crate) settings: Settings,
    /// In the order of the scenarios, their points, and the variants of each.
    pub(crate) cells: Vec<Cell>,
    /// What differs between two measurements of the same, by point.
    pub(crate) floors: Vec<Floor>,
    /// What was to be measured and is not here, or may not be believed, and why; empty of a whole run.
    pub(crate) missing: Vec<String>,
}

/// What all cells have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// How often each variant of a point is measured.
    pub(crate) rounds: u32,
    /// How long each measurement counts; 0 of those that go by requests.
    pub(crate) seconds: f64,
    /// Sent before each measurement, and not counted.
    pub(crate) warm_up_seconds: f64,
    /// What the generator speaks: `http1`.
    pub(crate) protocol: String,
    pub(crate) payload_bytes: u32,
    /// Whether sidecars speak mutual TLS with each other.
    pub(crate) mtls: bool,
    pub(crate) access_log: bool,
    pub(crate) tracing: bool,
    /// Intentions with permissions by path on the service, beside the one that lets the requests in.
    pub(crate) policies: u32,
    /// Worker threads of each proxy; absent of a target, of which nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<u32>,
    /// Threads of the generator.
    pub(crate) generator_threads: u32,
    /// Decides the order of the variants and the resampling.
    pub(crate) seed: u64,
}

impl Settings {
    /// How often and how long was measured, for people: how long is not said of what goes by requests.
    pub(crate) fn rounds_line(&self) -> String {
        let Self { rounds, seconds, .. } = self;
        if *seconds > 0.0 { format!("{rounds} rounds of {seconds} s") } else { format!("{rounds} rounds") }
    }
}

/// Which question a cell answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CostScenario {
    Latency,
    Cpu,
    Throughput,
    Memory,
    Ingress,
    Churn,
}

/// Whose the proxies are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProxyKind {
    /// There are none.
    None,
    Native,
    Envoy,
    /// Those of a mesh that was pointed at.
    Target,
}

/// Through which proxies requests go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// None.
    Baseline,
    /// The same, measured once more in each round: its difference to the baseline is the noise floor.
    BaselineAgain,
    /// The caller's.
    Client,
    /// The service's.
    Server,
    /// The caller's, then the service's.
    Both,
    /// An ingress gateway, then the service's.
    Gateway,
}

/// Which proxies are held to the limits of a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Limited {
    /// The ingress gateway alone.
    Gateway,
    /// Every proxy on the way, each by itself.
    All,
}

/// What is asked of the mesh.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Point {
    pub(crate) connections: u32,
    /// Requests a second; absent of a closed loop, in which each connection sends when it has its answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<f64>,
    /// Services in the catalog beside the measured one; absent where that is not what is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) services: Option<u32>,
    /// Whether proxies know of the services that they are told to call alone, or, permissive, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) scoped: Option<bool>,
    /// Requests of a measurement; absent where it goes by time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<u64>,
    /// Cores that each limited proxy may use; absent of no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_limit: Option<f64>,
    /// Memory that each limited proxy may use, in 2^20 bytes; absent of no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_limit_mib: Option<u32>,
    /// Absent where nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limited: Option<Limited>,
    /// Changes of the mesh's configuration while it is measured; absent where that is not what is varied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) changes_per_second: Option<f64>,
}

/// One variant at one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cell {
    pub(crate) scenario: CostScenario,
    pub(crate) proxy: ProxyKind,
    pub(crate) mode: Mode,
    pub(crate) point: Point,
    /// As many as were measured, in their order.
    pub(crate) rounds: Vec<Round>,
    /// Latencies of all sound rounds together: microseconds, and how many requests took up to that.
    pub(crate) histogram_us: Vec<(u64, u64)>,
    /// The same as an HDR histogram, V2, deflated, base64; absent of no latencies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hdr: Option<String>,
    /// Of the merged latencies; absent of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ms: Option<Quantiles>,
    /// What it is more than the baseline of the same point; absent of the baseline, and where nothing can be compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) added: Option<Added>,
    /// Why no figure of this cell may be believed, if none may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) void: Option<String>,
    /// What went wrong on the way, by round.
    pub(crate) problems: Vec<String>,
}

impl Cell {
    /// The rounds that count.
    pub(crate) fn sound(&self) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(|round| round.void.is_none())
    }

    /// What a share of the merged latencies took at most, in milliseconds; `None` of none.
    pub(crate) fn quantile(&self, quantile: f64) -> Option<f64> {
        let found = super::statistics::quantile(&self.histogram_us, quantile)?;
        // A bucket's upper end may be above the longest of all.
        Some(self.latency_ms.map_or(found, |latency| found.min(latency.max)))
    }

    /// The worst second of all rounds that count, of a cell of `churn`.
    pub(crate) fn worst_second(&self) -> Option<WorstSecond> {
        WorstSecond::of(self.sound().filter_map(|round| Some(round.churn.as_ref()?.worst_second)))
    }
}

impl WorstSecond {
    /// The one with the most errors, and of those with as many the one with the highest 99th percentile.
    pub(super) fn of(seconds: impl Iterator<Item = Self>) -> Option<Self> {
        let p99 = |second: &Self| second.p99.unwrap_or(0.0);
        seconds.max_by(|one, other| one.errors.cmp(&other.errors).then(p99(one).total_cmp(&p99(other))))
    }
}

/// One measurement of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Round {
    /// From 0.
    pub(crate) number: u32,
    /// Which of the round's measurements it was, from 0.
    pub(crate) place: u32,
    /// Of requests that succeeded; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ms: Option<Quantiles>,
    pub(crate) requests: u64,
    /// Successful answers a second.
    pub(crate) rate: f64,
    pub(crate) errors: u64,
    /// Answers by status.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) status: BTreeMap<String, u64>,
    /// Errors by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) failures: BTreeMap<String, u64>,
    /// How late the generator was with 99 of 100 requests; absent of a closed loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) slip_p99_ms: Option<f64>,
    /// What the proxies on the way used; absent where there are none, or they are somebody else's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) proxies: Option<ProxyUsage>,
    /// Seconds in which the kernel did not let limited proxies run, all of them added up; absent where nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) throttled_seconds: Option<f64>,
    /// Of changes that were made meanwhile; absent of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) churn: Option<Churn>,
    /// What the whole machine used: proxies, application, generator and whatever else ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) machine: Option<MachineUsage>,
    /// Why this round does not count, if it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) void: Option<String>,
}

/// Changes of the mesh's configuration during a round, and the worst second of its traffic.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Churn {
    /// Changes by kind: `routes`, `endpoints`, `certificates`.
    pub(crate) made: BTreeMap<String, u64>,
    /// Changes that the mesh refused, by reason.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) refused: BTreeMap<String, u64>,
    /// The second with the most errors, and of those with as many the one with the highest 99th percentile.
    pub(crate) worst_second: WorstSecond,
}

/// One second of a round, by when requests were due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct WorstSecond {
    /// From 0, at the beginning of what counts.
    pub(crate) number: u32,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    /// Milliseconds, of those that succeeded; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) p99: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max: Option<f64>,
}

/// What the proxies on the way used during a round, by the kernel's account of their processes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProxyUsage {
    /// CPU time of all of them, in microseconds, by answered request; absent if none was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us_per_request: Option<f64>,
    /// Cores that all of them kept busy.
    pub(crate) cores: f64,
    /// Resident memory of the caller's proxy near the end of the round, in 10^6 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) caller_resident_mb: Option<f64>,
    /// Of the service's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) service_resident_mb: Option<f64>,
}

/// What the machine used during a round, by its own account.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct MachineUsage {
    /// Microseconds of CPU time by answered request; absent if none was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_us_per_request: Option<f64>,
    /// Cores that were busy.
    pub(crate) cores: f64,
}

/// Figures of a distribution of latencies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

/// By how much a variant is slower than the baseline.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Added {
    pub(crate) p50: Difference,
    pub(crate) p90: Difference,
    pub(crate) p99: Difference,
    pub(crate) p999: Difference,
}

/// A difference, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Difference {
    /// Of the merged latencies.
    pub(crate) value: f64,
    /// The 95 % interval's ends, by resampling the rounds.
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// What two measurements of the baseline differ by.
    pub(crate) floor: f64,
    /// It may be nothing: it is not above the floor, or its interval has 0 in it.
    pub(crate) below_floor: bool,
}

/// What two measurements of the same baseline differ by at a point: the upper end of the 95 % interval of the
/// difference, whichever is the larger of the two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Floor {
    pub(crate) scenario: CostScenario,
    pub(crate) point: Point,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A report in which every field that can be absent is there once, and absent once.
    pub(crate) fn sample() -> CostReport {
        let quantiles = Quantiles { mean: 1.1, p50: 1.0, p90: 2.0, p99: 3.0, p999: 4.0, max: 5.0 };
        let usage = ProxyUsage {
            cpu_us_per_request: Some(40.5),
            cores: 0.04,
            caller_resident_mb: Some(9.5),
            service_resident_mb: None,
        };
        let round = Round {
            number: 0,
            place: 2,
            latency_ms: Some(quantiles),
            requests: 2,
            rate: 1000.0,
            errors: 1,
            status: BTreeMap::from([("200".to_owned(), 1), ("503".to_owned(), 1)]),
            failures: BTreeMap::from([("status 503".to_owned(), 1)]),
            slip_p99_ms: Some(0.1),
            proxies: Some(usage),
            throttled_seconds: None,
            churn: None,
            machine: Some(MachineUsage { cpu_us_per_request: None, cores: 1.5 }),
            void: Some("1 of 2 requests failed".to_owned()),
        };
        let difference = Difference { value: 0.5, low: 0.25, high: 0.75, floor: 0.125, below_floor: false };
        let point = Point { connections: 16, rate: Some(1000.0), ..Point::default() };
        let cell = Cell {
            scenario: CostScenario::Latency,
            proxy: ProxyKind::Native,
            mode: Mode::Both,
            point,
            rounds: vec![round],
            histogram_us: vec![(1000, 1)],
            hdr: Some("HISTFAAAA".to_owned()),
            latency_ms: Some(quantiles),
            added: Some(Added { p50: difference, p90: difference, p99: difference, p999: difference }),
            void: None,
            problems: vec!["round 0: 1 of 2 requests failed".to_owned()],
        };
        let empty = Cell {
            scenario: CostScenario::Memory,
            proxy: ProxyKind::None,
            mode: Mode::BaselineAgain,
            point: Point { connections: 1, services: Some(10), scoped: Some(true), ..Point::default() },
            rounds: Vec::new(),
            histogram_us: Vec::new(),
            hdr: None,
            latency_ms: None,
            added: None,
            void: Some("not measured".to_owned()),
            problems: Vec::new(),
        };
        CostReport {
            schema: SCHEMA.to_owned(),
            command: ["starling", "bench", "latency"].map(str::to_owned).into(),
            machine: Machine::read(),
            versions: Versions::of(None),
            settings: settings(),
            cells: vec![cell, empty],
            floors: vec![Floor {
                scenario: CostScenario::Latency,
                point,
                p50: 0.125,
                p90: 0.125,
                p99: 0.125,
                p999: 0.125,
            }],
            missing: vec!["envoy: there is none".to_owned()],
        }
    }

    fn settings() -> Settings {
        Settings {
            rounds: 5,
            seconds: 10.0,
            warm_up_seconds: 1.0,
            protocol: "http1".to_owned(),
            payload_bytes: 1024,
            mtls: true,
            access_log: false,
            tracing: false,
            policies: 0,
            workers: Some(1),
            generator_threads: 1,
            seed: 1,
        }
    }

    #[test]
    fn how_long_is_not_said_of_what_goes_by_requests() {
        assert_eq!(settings().rounds_line(), "5 rounds of 10 s");
        assert_eq!(Settings { seconds: 0.0, ..settings() }.rounds_line(), "5 rounds");
    }

    #[test]
    fn what_is_written_is_read_back() {
        let report = sample();
        let text = serde_json::to_string_pretty(&report).unwrap();
        assert_eq!(serde_json::from_str::<CostReport>(&text).unwrap(), report);
    }

    #[test]
    fn the_worst_second_has_most_errors_and_then_the_longest_latency() {
        let mut cell = sample().cells.remove(0);
        let template = Round { void: None, ..cell.rounds.remove(0) };
        let seconds =
            [(1, Some(9.0), false), (2, Some(1.0), false), (2, Some(3.0), false), (2, None, false), (7, None, true)];
        cell.rounds = seconds
            .map(|(errors, p99, is_void)| {
                let worst_second = WorstSecond { number: 0, requests: 10, errors, p99, max: None };
                let churn = Churn { made: BTreeMap::new(), refused: BTreeMap::new(), worst_second };
                Round { churn: Some(churn), void: is_void.then(|| "late".to_owned()), ..template.clone() }
            })
            .into();
        assert_eq!(cell.worst_second().map(|worst| (worst.errors, worst.p99)), Some((2, Some(3.0))));
        cell.rounds.clear();
        assert_eq!(cell.worst_second(), None);
    }

    #[test]
    fn names_in_json_are_those_of_the_reference() {
        let report = serde_json::to_value(sample()).unwrap();
        assert_eq!(report["schema"], "starling-bench-cost/1");
        let [cell, empty] = [&report["cells"][0], &report["cells"][1]];
        assert_eq!(
            (&cell["scenario"], &cell["proxy"], &cell["mode"]),
            (&"latency".into(), &"native".into(), &"both".into())
        );
        assert_eq!(empty["mode"], "baseline_again");
        assert_eq!(cell["added"]["p999"]["below_floor"], false);
        assert_eq!(cell["point"], serde_json::json!({ "connections": 16, "rate": 1000.0 }));
        assert_eq!(empty["point"], serde_json::json!({ "connections": 1, "services": 10, "scoped": true }));
        assert!(empty.get("hdr").is_none() && empty.get("added").is_none() && cell.get("void").is_none());
    }
}
