//! The report of a scenario with a simulated fleet: what `report.json` holds, and what its page is made of.

use serde::Serialize;

use crate::machine::Machine;
use crate::percentiles::{Bin, Percentiles, histogram};
use crate::report::Versions;

/// What one run with a fleet found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetReport {
    /// Its name on the command line.
    pub scenario: String,
    /// Simulated nodes.
    pub nodes: u32,
    /// Workloads on them.
    pub workloads: u32,
    /// Servers that the nodes were attached to.
    pub servers: u32,
    /// In the order in which they were made.
    pub changes: Vec<FleetChange>,
    /// The servers, together.
    pub server: ServerCost,
    /// The simulated nodes, together.
    pub fleet: FleetCost,
    /// How the fleet came up.
    pub rollout: Rollout,
    /// Use of the machine through the run, in the order of time.
    pub samples: Vec<Sample>,
    /// Where it was measured.
    pub machine: Machine,
    /// What was measured.
    pub versions: Versions,
}

/// One change, and when each workload had it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FleetChange {
    /// The store's commit number.
    pub revision: u64,
    /// What was changed, such as `deregistration`.
    pub kind: String,
    /// Workloads that it concerned.
    pub affected: u64,
    /// Those of them that it reached.
    pub applied: u64,
    /// From just before the API call until a workload's next request would see it; `None` if it reached nobody.
    pub latency_ms: Option<Percentiles>,
    /// The same latencies, counted.
    pub histogram: Vec<Bin>,
    /// CPU time of the servers, from just before the call until they had heard of everybody.
    pub server_cpu_ms: f64,
}

/// What the servers used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ServerCost {
    /// Resident memory after the last change.
    pub rss_bytes: u64,
    /// CPU time, user and system, from just before the call until they had heard of everybody; the mean over all changes.
    pub cpu_ms_per_change: f64,
    /// CPU time while nothing changes, in percent of one core.
    pub idle_cpu_percent: f64,
    /// Frames encoded for agents.
    pub frames_encoded_per_change: f64,
    /// Bytes of frames sent to agents.
    pub bytes_sent_per_change: f64,
    /// Their memory when they were killed and came back; absent when they were not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Restarts>,
}

/// Memory around restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Restarts {
    /// Resident before the first.
    pub steady_rss_bytes: u64,
    /// The most that was resident after any, while all nodes came back.
    pub peak_rss_bytes: u64,
}

/// What the simulated nodes used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FleetCost {
    /// Resident memory after the last change.
    pub rss_bytes: u64,
}

/// From an empty catalog until every node has joined, every instance is registered and every certificate issued.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rollout {
    /// How long it took.
    pub seconds: f64,
    /// Of that, until every node had joined and was attached.
    pub join_seconds: f64,
    /// Then until every workload and sidecar was registered.
    pub register_seconds: f64,
    /// Then until every certificate was there.
    pub leaves_seconds: f64,
}

/// CPU and memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sample {
    /// Since the run began.
    pub seconds: f64,
    /// Cores that the servers kept busy since the sample before.
    pub server_cpu_cores: f64,
    /// Cores that the simulated nodes kept busy since the sample before.
    pub fleet_cpu_cores: f64,
    /// Resident memory of the servers.
    pub server_rss_bytes: u64,
    /// Resident memory of the simulated nodes.
    pub fleet_rss_bytes: u64,
}

impl FleetChange {
    /// Counts the latencies of the workloads that a change reached, in microseconds.
    pub fn new(revision: u64, kind: impl Into<String>, affected: u64, latencies_us: &[u64]) -> Self {
        Self {
            revision,
            kind: kind.into(),
            affected,
            applied: u64::try_from(latencies_us.len()).unwrap_or(u64::MAX),
            latency_ms: Percentiles::of(latencies_us),
            histogram: histogram(latencies_us),
            server_cpu_ms: 0.0,
        }
    }

    /// Whether it reached every workload that it concerned.
    pub fn is_complete(&self) -> bool {
        self.applied == self.affected
    }
}

impl FleetReport {
    /// Whether every change reached every workload that it concerned; a run where that is not so has failed.
    pub fn is_complete(&self) -> bool {
        self.changes.iter().all(FleetChange::is_complete)
    }

    /// The kinds of changes, in the order in which they were first made.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for FleetChange { kind, .. } in &self.changes {
            if !kinds.contains(&kind.as_str()) {
                kinds.push(kind);
            }
        }
        kinds
    }

    /// The changes of one kind.
    pub fn of_kind(&self, kind: &str) -> impl Iterator<Item = &FleetChange> {
        self.changes.iter().filter(move |change| change.kind == kind)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small run: two kinds of changes in turn, and one of them has a straggler.
    pub(crate) fn example() -> FleetReport {
        let latencies = |slowest: u64| -> Vec<u64> { (0..999).map(|it| 40_000 + it * 100).chain([slowest]).collect() };
        FleetReport {
            scenario: "propagation".to_owned(),
            nodes: 50,
            workloads: 1000,
            servers: 1,
            changes: vec![
                FleetChange::new(41, "deregistration", 1000, &latencies(180_000)),
                FleetChange::new(42, "registration", 1000, &latencies(150_000)),
                FleetChange::new(43, "deregistration", 1000, &latencies(2_400_000)),
            ],
            server: ServerCost {
                rss_bytes: 300 << 20,
                cpu_ms_per_change: 95.5,
                idle_cpu_percent: 4.0,
                frames_encoded_per_change: 2.0,
                bytes_sent_per_change: 5000.0,
                restarts: None,
            },
            fleet: FleetCost { rss_bytes: 2 << 30 },
            rollout: Rollout { seconds: 12.5, join_seconds: 4.0, register_seconds: 3.5, leaves_seconds: 5.0 },
            samples: (0..20_u32)
                .map(|second| Sample {
                    seconds: f64::from(second),
                    server_cpu_cores: f64::from(second % 7) / 5.0,
                    fleet_cpu_cores: 0.5,
                    server_rss_bytes: u64::from(second) << 24,
                    fleet_rss_bytes: 2 << 30,
                })
                .collect(),
            machine: Machine::read(),
            versions: Versions::of(None),
        }
    }

    #[test]
    fn the_report_holds_every_documented_field() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["scenario"], "propagation");
        assert_eq!((&json["nodes"], &json["workloads"], &json["servers"]), (&50.into(), &1000.into(), &1.into()));
        let change = &json["changes"][0];
        assert_eq!((&change["revision"], &change["kind"]), (&41.into(), &"deregistration".into()));
        assert_eq!((&change["affected"], &change["applied"]), (&1000.into(), &1000.into()));
        for percentile in ["p50", "p75", "p90", "p95", "p96", "p97", "p98", "p99", "p999", "max"] {
            assert!(change["latency_ms"][percentile].is_f64(), "{percentile}");
        }
        assert_eq!(json["server"]["rss_bytes"], 300 << 20);
        assert_eq!(json["server"]["cpu_ms_per_change"], 95.5);
        assert_eq!(json["fleet"]["rss_bytes"], 2_u64 << 30);
        assert_eq!(json["rollout"]["seconds"], 12.5);
        assert_eq!(json["samples"][3]["server_rss_bytes"], 3 << 24);
        assert!(json["machine"]["cores"].as_u64().unwrap() > 0);
    }

    #[test]
    fn one_workload_that_was_not_reached_makes_the_run_incomplete() {
        let mut report = example();
        assert!(report.is_complete());
        report.changes.push(FleetChange::new(44, "deny", 3, &[1000, 2000]));
        assert!(!report.is_complete());
        assert_eq!(report.kinds(), ["deregistration", "registration", "deny"]);
        assert_eq!(report.of_kind("deregistration").count(), 2);
    }

    #[test]
    fn a_change_that_reached_nobody_has_no_latency() {
        let change = FleetChange::new(44, "deny", 3, &[]);
        assert!(!change.is_complete());
        assert_eq!((change.latency_ms, change.histogram), (None, Vec::new()));
    }
}
