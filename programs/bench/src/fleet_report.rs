//! The report of a scenario with a simulated fleet: what `report.json` holds, and what its page is made of.

mod faults;
mod outage;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::percentiles::{Bin, Percentiles, histogram};
use crate::report::Versions;

#[cfg(test)]
pub(crate) use faults::tests::example as example_of_faults;
pub use faults::{BadNetwork, Faults, SlowReaders};
pub use outage::Outage;

/// Names the shape of the report; the number goes up when something is taken away or means something else.
pub(crate) const SCHEMA: &str = "starling-bench-fleet/1";

/// What one run with a fleet found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FleetReport {
    /// `starling-bench-fleet/1`.
    pub schema: String,
    /// Its name on the command line.
    pub scenario: String,
    /// Simulated nodes.
    pub nodes: u32,
    /// Workloads on them.
    pub workloads: u32,
    /// Servers that the nodes were attached to.
    pub servers: u32,
    /// Endpoints of the upstream that every workload has, of which one came and went; those of Envoys not counted.
    pub payload_endpoints: u32,
    /// In the order in which they were made.
    pub changes: Vec<FleetChange>,
    /// The servers, together.
    pub server: ServerCost,
    /// The simulated nodes, together.
    pub fleet: FleetCost,
    /// How the fleet came up.
    pub rollout: Rollout,
    /// The same changes when a tenth of the nodes was there; absent when they were not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// Traffic through real Envoys beside the fleet; absent when there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probes: Option<Probes>,
    /// What was done to the fleet to make it hard; absent when nothing was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faults: Option<Faults>,
    /// Use of the machine through the run, in the order of time.
    pub samples: Vec<Sample>,
    /// Where it was measured.
    pub machine: Machine,
    /// What was measured.
    pub versions: Versions,
}

/// One change, and when each workload had it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// From just before the API call until traffic through the Envoys beside the fleet had changed; absent when there were
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_ms: Option<TrafficChange>,
    /// What was seen while etcd had no leader; absent when it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<Outage>,
}

/// When the traffic through a few Envoys changed, in milliseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficChange {
    /// Through the first Envoy of which that was seen.
    pub first: Option<f64>,
    /// Through the last one; `None` if it was not seen of all.
    pub last: Option<f64>,
    /// Through each; `None` where it was not seen.
    pub envoys: Vec<Option<f64>>,
}

/// Requests through the Envoys beside a fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probes {
    /// How many were sent while changes were made.
    pub sent: u64,
    /// Those that were sent so late that the next one was due.
    pub late: u64,
    /// Those that were neither answered nor refused by an intention.
    pub failed: u64,
}

/// What a change costs when a tenth of the nodes is there, and how much more it does with all of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// Nodes that were there.
    pub nodes: u32,
    /// Workloads on them.
    pub workloads: u64,
    /// The changes that were made then.
    pub changes: Vec<FleetChange>,
    /// CPU time of the servers for one of them, the mean.
    pub server_cpu_ms_per_change: f64,
    /// How many times as long it takes with the whole fleet until the last workload is reached; medians over the changes.
    pub times_longer: Option<f64>,
    /// How many times the servers' CPU time a change takes with the whole fleet.
    pub times_cpu: Option<f64>,
}

/// What the servers used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ServerCost {
    /// Resident memory after the last change.
    pub rss_bytes: u64,
    /// CPU time, user and system, from just before the call until they had heard of everybody; the mean over all changes.
    pub cpu_ms_per_change: f64,
    /// Of that, to note a change as one that concerns every node, and the report of each; without the transport of the
    /// reports. Measured by doing so for as many nodes, and nothing else.
    pub receipts_ms_per_change: f64,
    /// CPU time while nothing changes, in percent of one core.
    pub idle_cpu_percent: f64,
    /// Frames encoded for agents.
    pub frames_encoded_per_change: f64,
    /// Bytes of frames sent to agents.
    pub bytes_sent_per_change: f64,
    /// Their memory when they were killed and came back; absent when they were not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restarts: Option<Restarts>,
    /// What further registrations add to their memory; absent when none were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub further: Option<Further>,
}

/// Memory of registrations on top of a fleet: instances and their sidecars, each with an upstream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Further {
    /// How many there were.
    pub registrations: u32,
    /// Allocated before the first: what is resident says little, as new registrations take pages that were free.
    pub allocated_bytes_before: u64,
    /// Allocated after the last.
    pub allocated_bytes_after: u64,
    /// What each added.
    pub bytes_each: f64,
}

/// Memory around restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Resident before the first.
    pub steady_rss_bytes: u64,
    /// The most that was resident after any, while all nodes came back.
    pub peak_rss_bytes: u64,
}

/// What the simulated nodes used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetCost {
    /// Resident memory after the last change.
    pub rss_bytes: u64,
}

/// From an empty catalog until every node has joined, every instance is registered and every certificate issued.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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
            traffic_ms: None,
            outage: None,
        }
    }

    /// Whether it reached every workload that it concerned, and showed in all traffic.
    pub fn is_complete(&self) -> bool {
        self.applied == self.affected && self.traffic_ms.as_ref().is_none_or(TrafficChange::is_complete)
    }
}

impl Rollout {
    /// This one and another, one after the other.
    pub fn and(self, other: Self) -> Self {
        Self {
            seconds: self.seconds + other.seconds,
            join_seconds: self.join_seconds + other.join_seconds,
            register_seconds: self.register_seconds + other.register_seconds,
            leaves_seconds: self.leaves_seconds + other.leaves_seconds,
        }
    }
}

impl TrafficChange {
    /// Of the moments at which it was seen through each Envoy.
    pub fn new(envoys: Vec<Option<f64>>) -> Self {
        let last = envoys.iter().copied().collect::<Option<Vec<f64>>>();
        Self {
            first: envoys.iter().flatten().copied().reduce(f64::min),
            last: last.and_then(|all| all.into_iter().reduce(f64::max)),
            envoys,
        }
    }

    /// Whether it was seen through every Envoy.
    pub fn is_complete(&self) -> bool {
        self.envoys.iter().all(Option::is_some)
    }
}

impl Growth {
    /// Holds changes with a tenth of the nodes against those with all of them.
    pub fn new(nodes: u32, few: Vec<FleetChange>, all: &[FleetChange]) -> Self {
        let cpu = |changes: &[FleetChange]| mean(changes.iter().map(|change| change.server_cpu_ms));
        let ratio = |all: Option<f64>, few: Option<f64>| Some(all? / few.filter(|few| *few > 0.0)?);
        Self {
            nodes,
            workloads: few.first().map_or(0, |change| change.affected),
            server_cpu_ms_per_change: cpu(&few).unwrap_or(0.0),
            times_longer: ratio(time_to_all(all), time_to_all(&few)),
            times_cpu: ratio(cpu(all), cpu(&few)),
            changes: few,
        }
    }
}

/// When the traffic changed, over the changes of a kind, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct TrafficOfKind {
    /// The kind.
    pub kind: String,
    /// Changes that showed through some Envoy.
    pub changes: usize,
    /// Through the first Envoy: the median.
    pub first: Option<f64>,
    /// Through the last Envoy: the median.
    pub last: Option<f64>,
    /// Through the last Envoy: the longest.
    pub longest: Option<f64>,
}

/// Until the last workload was reached: the median over changes.
pub fn time_to_all(changes: &[FleetChange]) -> Option<f64> {
    median(changes.iter().filter_map(|change| Some(change.latency_ms?.max)))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// `None` of none.
pub fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0.0_f64), |(sum, count), value| (sum + value, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

impl FleetReport {
    /// Every change, those with a tenth of the nodes included.
    pub fn all_changes(&self) -> impl Iterator<Item = &FleetChange> {
        self.growth.iter().flat_map(|growth| &growth.changes).chain(&self.changes)
    }

    /// Whether every change reached every workload that it concerned; a run where that is not so has failed.
    pub fn is_complete(&self) -> bool {
        self.all_changes().all(FleetChange::is_complete)
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

    /// When the traffic changed, for each kind of which that was looked at.
    pub fn traffic(&self) -> Vec<TrafficOfKind> {
        let of_kind = |kind: &str| {
            let all: Vec<&TrafficChange> = self.of_kind(kind).filter_map(|change| change.traffic_ms.as_ref()).collect();
            let last = || all.iter().filter_map(|traffic| traffic.last);
            TrafficOfKind {
                kind: kind.to_owned(),
                changes: all.len(),
                first: median(all.iter().filter_map(|traffic| traffic.first)),
                last: median(last()),
                longest: last().reduce(f64::max),
            }
        };
        self.kinds().into_iter().map(of_kind).filter(|traffic| traffic.changes > 0).collect()
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
            schema: SCHEMA.to_owned(),
            scenario: "propagation".to_owned(),
            nodes: 50,
            workloads: 1000,
            servers: 1,
            payload_endpoints: 1,
            changes: vec![
                FleetChange::new(41, "deregistration", 1000, &latencies(180_000)),
                FleetChange::new(42, "registration", 1000, &latencies(150_000)),
                FleetChange::new(43, "deregistration", 1000, &latencies(2_400_000)),
            ],
            server: ServerCost {
                rss_bytes: 300 << 20,
                cpu_ms_per_change: 95.5,
                receipts_ms_per_change: 0.25,
                idle_cpu_percent: 4.0,
                frames_encoded_per_change: 2.0,
                bytes_sent_per_change: 5000.0,
                restarts: None,
                further: None,
            },
            fleet: FleetCost { rss_bytes: 2 << 30 },
            rollout: Rollout { seconds: 12.5, join_seconds: 4.0, register_seconds: 3.5, leaves_seconds: 5.0 },
            growth: None,
            probes: None,
            faults: None,
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

    /// The same with Envoys beside it, changes with a tenth of the nodes, and further instances.
    pub(crate) fn example_with_everything() -> FleetReport {
        let mut report = example();
        for (number, change) in (1_u8..).zip(&mut report.changes) {
            let first = f64::from(number) * 10.0;
            change.traffic_ms = Some(TrafficChange::new(vec![Some(first + 5.25), Some(first)]));
            change.server_cpu_ms = 90.0;
        }
        let few = FleetChange { server_cpu_ms: 12.0, ..FleetChange::new(31, "deregistration", 100, &[20_000; 100]) };
        report.growth = Some(Growth::new(5, vec![few], &report.changes));
        report.probes = Some(Probes { sent: 4321, late: 7, failed: 1 });
        report.server.further = Some(Further {
            registrations: 10_000,
            allocated_bytes_before: 300 << 20,
            allocated_bytes_after: 310 << 20,
            bytes_each: 1048.576,
        });
        report
    }

    #[test]
    fn what_is_written_is_read_back() {
        for report in [example(), FleetReport { faults: Some(example_of_faults()), ..example_with_everything() }] {
            let text = serde_json::to_string(&report).unwrap();
            assert_eq!(serde_json::from_str::<FleetReport>(&text).unwrap(), report);
        }
    }

    #[test]
    fn the_report_holds_every_documented_field() {
        let json = serde_json::to_value(example()).unwrap();
        assert_eq!(json["schema"], "starling-bench-fleet/1");
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
    fn what_was_measured_besides_has_fields_of_its_own() {
        let json = serde_json::to_value(example_with_everything()).unwrap();
        let traffic = &json["changes"][2]["traffic_ms"];
        assert_eq!((&traffic["first"], &traffic["last"]), (&30.0.into(), &35.25.into()));
        assert_eq!(traffic["envoys"], serde_json::json!([35.25, 30.0]));
        assert_eq!((&json["growth"]["nodes"], &json["growth"]["workloads"]), (&5.into(), &100.into()));
        // The median of 180, 150 and 2400 ms is nine times 20 ms.
        assert_eq!((&json["growth"]["times_longer"], &json["growth"]["times_cpu"]), (&9.0.into(), &7.5.into()));
        assert_eq!(json["server"]["further"]["bytes_each"], 1048.576);
        assert_eq!(json["probes"]["failed"], 1);
        let json = serde_json::to_value(example()).unwrap();
        assert!(json.get("growth").is_none() && json["changes"][0].get("traffic_ms").is_none(), "{json}");
    }

    #[test]
    fn traffic_is_summed_up_by_kind() {
        assert_eq!(example().traffic(), []);
        let traffic = example_with_everything().traffic();
        let [gone, back] = traffic.as_slice() else { panic!("{traffic:?}") };
        assert_eq!((gone.kind.as_str(), gone.changes, back.changes), ("deregistration", 2, 1));
        assert_eq!((gone.first, gone.last, gone.longest), (Some(30.0), Some(35.25), Some(35.25)));
        assert_eq!((back.first, back.last), (Some(20.0), Some(25.25)));
    }

    #[test]
    fn a_change_that_did_not_show_in_all_traffic_makes_the_run_incomplete() {
        let unseen = TrafficChange::new(vec![Some(12.0), None]);
        assert_eq!((unseen.first, unseen.last), (Some(12.0), None));
        let mut report = example_with_everything();
        assert!(report.is_complete());
        report.changes[0].traffic_ms = Some(unseen);
        assert!(!report.is_complete());
    }

    #[test]
    fn a_workload_missed_with_a_tenth_of_the_nodes_counts_too() {
        let mut report = example_with_everything();
        report.growth.as_mut().unwrap().changes[0].applied = 99;
        assert!(!report.is_complete());
    }

    #[test]
    fn growth_from_nothing_is_no_figure() {
        let all = [FleetChange::new(2, "deny", 10, &[1000; 10])];
        let growth = Growth::new(1, vec![FleetChange::new(1, "deny", 1, &[])], &all);
        assert_eq!((growth.times_longer, growth.times_cpu), (None, None));
    }

    #[test]
    fn a_change_that_reached_nobody_has_no_latency() {
        let change = FleetChange::new(44, "deny", 3, &[]);
        assert!(!change.is_complete());
        assert_eq!((change.latency_ms, change.histogram), (None, Vec::new()));
    }
}
