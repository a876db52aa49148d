//! What a run with a fleet found, for people: percentiles beside the published ones, cost, and the bars.

mod beside;

use std::process::ExitCode;

use super::failover::Kill;
use super::{Subject, faults};
use crate::fleet_report::{FleetReport, Outage, Restarts, ServerCost};
use crate::html;
use crate::percentiles::{PERCENTILES, Percentiles};
use crate::published::Published;
use crate::report::{Bar, OutputArgs};
use crate::table;

pub(super) const JSON_HELP: &str = "\
The report (report.json with --report, --json PATH, or -o json) is an object with these fields:
  schema (starling-bench-fleet/1), scenario, nodes, workloads, servers, payload_endpoints
  changes[]       revision, kind, affected and applied (workloads), server_cpu_ms, histogram[], and
                  latency_ms.{p50,p75,p90,p95,p96,p97,p98,p99,p999,max}: from just before the API call until the
                  workload's next request would be served by it; traffic_ms.{first, last, envoys[]}: until requests
                  through the Envoys beside the fleet showed it, to 10 ms; with failover --kill etcd-leader
                  outage.{writes_back_ms, reads, reads_failed, reads_slowest_ms, streams_lost}
  server          rss_bytes, cpu_ms_per_change, idle_cpu_percent (of one core, with everybody attached),
                  frames_encoded_per_change, bytes_sent_per_change,
                  receipts_ms_per_change (of that CPU, for the receipt; without its transport),
                  restarts.{steady_rss_bytes,peak_rss_bytes},
                  further.{registrations, allocated_bytes_before, allocated_bytes_after, bytes_each}
  fleet           rss_bytes
  rollout         seconds, and of these join_seconds, register_seconds, leaves_seconds
  faults          slow_readers.{nodes, bytes_per_second, p99_ms_without, p99_ms_with, p99_ratio, server_rss_bytes_before,
                  server_rss_bytes_peak, unsent_bytes_max, behind_min, connections_lost, caught_up, caught_up_seconds} and
                  bad_network.{loss_percent, packets_lost, resets_percent, connections_reset, p99_ms, max_ms}; of faults only
  growth          with --growth: nodes, workloads, changes[] and server_cpu_ms_per_change with a tenth of the nodes, and
                  how many times as much a change takes with all: times_longer (until the last workload), times_cpu
  probes          sent, late, failed: requests through the Envoys beside the fleet
  samples[]       CPU and memory, once a second
  machine, versions
The exit code is 1 when a workload was not reached or an Envoy's traffic did not change, or with --strict when a bar was missed.";

/// Milliseconds, of a change that is alone.
const P50_BAR_MS: f64 = 120.0;
const P99_BAR_MS: f64 = 250.0;
const MAX_BAR_MS: f64 = 500.0;

/// Milliseconds, of a change among many others.
const CHURN_P99_BAR_MS: f64 = 400.0;
const CHURN_MAX_BAR_MS: f64 = 1500.0;

/// Milliseconds, from a server's end until all nodes have what was changed after its return.
const RECONNECT_BAR_MS: f64 = 20_000.0;

/// Milliseconds, of a change that is alone, with several servers.
const P99_OF_SERVERS_BAR_MS: f64 = 300.0;
const MAX_OF_SERVERS_BAR_MS: f64 = 600.0;

/// Milliseconds from the acknowledgement, of a change in the middle of which a server is killed.
const FAILOVER_P99_BAR_MS: f64 = 1_000.0;
const FAILOVER_MAX_BAR_MS: f64 = 3_000.0;

/// Milliseconds from the end of etcd's leader until a write is acknowledged.
const WRITES_BACK_BAR_MS: f64 = 5_000.0;

/// Times its steady memory.
const RECONNECT_MEMORY_BAR: f64 = 1.5;

/// Megabytes of the server.
const MEMORY_BAR_MB: f64 = 800.0;

/// Percent of a core.
const IDLE_BAR_PERCENT: f64 = 15.0;

/// Seconds.
const ROLLOUT_BAR_S: f64 = 300.0;

/// Bytes that a change of one endpoint sends each node: 10 MB to ten thousand.
const BYTES_PER_NODE_BAR: f64 = 1000.0;

/// Frames that are encoded for a change, however many nodes hear of it: the item, whether its service has instances, and
/// how far the streams are.
const FRAMES_BAR: f64 = 3.0;

/// Percent of the server's CPU of a change.
const RECEIPTS_BAR_PERCENT: f64 = 5.0;

/// Bytes of the server for each registration on top of a fleet.
const FURTHER_BAR_BYTES: f64 = 1500.0;

/// Times the time of a change with a tenth of the nodes.
const GROWTH_BAR: f64 = 12.0;

/// Writes and prints the report; the exit code is a failure when a workload was not reached.
pub(super) fn deliver(subject: Subject, report: &FleetReport, output: &OutputArgs) -> anyhow::Result<ExitCode> {
    output.write_page(|| html::page_of_one(&report.scenario, html::Report::Fleet(report)))?;
    let bars = bars(subject, report);
    let code = output.deliver(report, &bars, || table(subject, report, &bars))?;
    if report.is_complete() {
        return Ok(code);
    }
    let missing: u64 = report.all_changes().map(|change| change.affected.saturating_sub(change.applied)).sum();
    if missing > 0 {
        crate::said::note(&format!("{missing} times a workload was not reached by a change"));
    }
    let unseen = beside::unseen(report);
    if unseen > 0 {
        crate::said::note(&format!("{unseen} times a change did not show in the traffic through an Envoy"));
    }
    Ok(ExitCode::FAILURE)
}

/// The promises of a fleet of the default size on the reference machine.
fn bars(subject: Subject, report: &FleetReport) -> Vec<Bar> {
    let all = of_all(report);
    let (p50, p99, max) = (all.map(|it| it.p50), all.map(|it| it.p99), all.map(|it| it.max));
    let mut bars = match subject {
        // The times promised are those of an upstream of one instance, as published: a node plans all of them anew.
        Subject::Endpoints if report.payload_endpoints > 1 => Vec::new(),
        Subject::Endpoints | Subject::Intention => {
            let (p99_bar, max_bar) = match report.servers {
                1 => (P99_BAR_MS, MAX_BAR_MS),
                _ => (P99_OF_SERVERS_BAR_MS, MAX_OF_SERVERS_BAR_MS),
            };
            vec![
                Bar::new("p50, ms", P50_BAR_MS, p50),
                Bar::new("p99, ms", p99_bar, p99),
                Bar::new("max, ms", max_bar, max),
            ]
        }
        Subject::Failover(_) => {
            let mut bars = vec![
                Bar::new("p99 from the acknowledgement, ms", FAILOVER_P99_BAR_MS, p99),
                Bar::new("max from the acknowledgement, ms", FAILOVER_MAX_BAR_MS, max),
            ];
            bars.extend(bars_of_outages(report));
            bars
        }
        Subject::Churn => {
            vec![Bar::new("p99, ms", CHURN_P99_BAR_MS, p99), Bar::new("max, ms", CHURN_MAX_BAR_MS, max)]
        }
        Subject::Reconnect => {
            let ratio = |it: Restarts| megabytes(it.peak_rss_bytes) / megabytes(it.steady_rss_bytes);
            let peak = report.server.restarts.map(ratio);
            vec![
                Bar::new("all nodes current, ms", RECONNECT_BAR_MS, max),
                Bar::new("memory peak, times the steady one", RECONNECT_MEMORY_BAR, peak),
            ]
        }
        Subject::Rollout => Vec::new(),
        Subject::Faults => report.faults.iter().flat_map(faults::findings::bars).collect(),
    };
    if matches!(subject, Subject::Endpoints | Subject::Intention) {
        bars.extend(bars_of_cost(report));
    }
    // Each server holds the whole catalog, and looks after two streams of each node with the others.
    let each = f64::from(report.servers.max(1));
    let (memory, idle) = (megabytes(report.server.rss_bytes) / each, report.server.idle_cpu_percent / each);
    bars.push(Bar::new("memory of a server, MB", MEMORY_BAR_MB, Some(memory)));
    bars.push(Bar::new("CPU of an idle server, % of a core", IDLE_BAR_PERCENT, Some(idle)));
    bars.push(Bar::new("roll-out, s", ROLLOUT_BAR_S, Some(report.rollout.seconds)));
    if let Some(further) = &report.server.further {
        bars.push(Bar::new("memory of a further registration, bytes", FURTHER_BAR_BYTES, Some(further.bytes_each)));
    }
    if let Some(growth) = &report.growth {
        bars.push(Bar::new("time of a change, times that of a tenth of the nodes", GROWTH_BAR, growth.times_longer));
    }
    bars
}

/// What may be noticed of an etcd without a leader.
fn bars_of_outages(report: &FleetReport) -> Vec<Bar> {
    let Some(worst) = worst_outage(report) else { return Vec::new() };
    #[expect(clippy::cast_precision_loss, reason = "reads are counted in thousands")]
    let failed = worst.reads_failed as f64;
    vec![
        Bar::new("writes back after the leader's end, ms", WRITES_BACK_BAR_MS, Some(worst.writes_back_ms)),
        Bar::new("reads that failed", 0.0, Some(failed)),
        Bar::new("streams of agents that were lost", 0.0, Some(worst.streams_lost)),
    ]
}

fn worst_outage(report: &FleetReport) -> Option<Outage> {
    Outage::worst(report.changes.iter().filter_map(|change| change.outage))
}

/// What a lone change may send, encode and spend on its receipt.
fn bars_of_cost(report: &FleetReport) -> [Bar; 3] {
    let ServerCost { cpu_ms_per_change, receipts_ms_per_change, .. } = report.server;
    let receipts = (cpu_ms_per_change > 0.0).then(|| receipts_ms_per_change / cpu_ms_per_change * 100.0);
    let streams = if report.servers > 1 { 2.0 } else { 1.0 };
    let bytes = report.server.bytes_sent_per_change / f64::from(report.nodes.max(1)) / streams;
    let frames = report.server.frames_encoded_per_change / f64::from(report.servers.max(1));
    [
        Bar::new("bytes sent to a stream for a change", BYTES_PER_NODE_BAR, Some(bytes)),
        Bar::new("frames that a server encodes for a change", FRAMES_BAR, Some(frames)),
        Bar::new("receipts, % of the server's CPU of a change", RECEIPTS_BAR_PERCENT, receipts),
    ]
}

/// Of each percentile the median over all changes, and the longest of all.
fn of_all(report: &FleetReport) -> Option<Percentiles> {
    let all: Vec<Percentiles> = report.changes.iter().filter_map(|change| change.latency_ms).collect();
    Percentiles::over_changes(&all)
}

fn table(subject: Subject, report: &FleetReport, bars: &[Bar]) -> String {
    let FleetReport { nodes, workloads, server, fleet, rollout, .. } = report;
    let bars: Vec<Vec<String>> = bars
        .iter()
        .map(|bar| {
            let found = bar.measured.map_or_else(|| "nothing".to_owned(), |found| format!("{found:.1}"));
            vec![bar.name.to_owned(), format!("{:.1}", bar.limit), found, table::verdict(bar.met).to_owned()]
        })
        .collect();
    let (servers, since) = match (report.servers, subject) {
        (1, _) => (String::new(), "the call"),
        (many, Subject::Failover(Kill::Server)) => {
            (format!(", {many} servers of which one is killed"), "the acknowledgement")
        }
        (many, Subject::Failover(Kill::EtcdLeader)) => {
            (format!(", {many} servers on an etcd whose leader is killed"), "the acknowledgement")
        }
        (many, _) => (format!(", {many} servers on three members of etcd"), "the call"),
    };
    let mut lines = vec![
        format!(
            "{nodes} nodes, {workloads} workloads{servers}; milliseconds from {since} to the workload's next request:"
        ),
        latencies(subject, report),
        format!(
            "{}: {}, {:.1} ms CPU for a change ({:.2} ms of it for its receipt, without the transport), {:.1} % of a \
             core idle; {:.1} frames encoded and {:.0} bytes sent for a change",
            if report.servers == 1 { "server" } else { "servers, together" },
            table::mebibytes(server.rss_bytes),
            server.cpu_ms_per_change,
            server.receipts_ms_per_change,
            server.idle_cpu_percent,
            server.frames_encoded_per_change,
            server.bytes_sent_per_change
        ),
        format!("fleet: {}", table::mebibytes(fleet.rss_bytes)),
        format!(
            "roll-out: {:.1} s (joining {:.1}, registering {:.1}, certificates {:.1})",
            rollout.seconds, rollout.join_seconds, rollout.register_seconds, rollout.leaves_seconds
        ),
    ];
    lines.extend(worst_outage(report).map(|worst| {
        format!(
            "without etcd's leader: {} reads at all servers, of which {} failed, the slowest {:.1} ms",
            worst.reads, worst.reads_failed, worst.reads_slowest_ms
        )
    }));
    lines.extend(beside::lines(report));
    lines.extend(report.faults.iter().flat_map(faults::findings::lines));
    lines.extend([
        table::render(&["bar", "at most", "found", "verdict"], bars),
        report.machine.line(),
        report.versions.line(),
    ]);
    lines.join("\n")
}

/// One column for each kind of change, one for all of them, and the published figures.
fn latencies(subject: Subject, report: &FleetReport) -> String {
    let mut header = vec!["workloads that had it".to_owned()];
    let mut columns: Vec<Vec<(String, f64)>> = Vec::new();
    let mut column = |title: String, figures: Option<Percentiles>| {
        header.push(title);
        columns.push(figures.iter().flat_map(Percentiles::named).map(|(name, ms)| (name.to_owned(), ms)).collect());
    };
    for kind in report.kinds() {
        let each: Vec<Percentiles> = report.of_kind(kind).filter_map(|change| change.latency_ms).collect();
        column(format!("{} × {kind}", each.len()), Percentiles::over_changes(&each));
    }
    if subject != Subject::Faults {
        column("all".to_owned(), of_all(report));
    }
    let published = Published::read().propagation;
    let place = usize::from(subject == Subject::Intention);
    if let Some(result) = published.results.into_iter().nth(place) {
        header.push("published".to_owned());
        columns.push(result.latency_ms.into_iter().collect());
    }
    let rows = PERCENTILES.map(|(name, words)| {
        let figure = |column: &Vec<(String, f64)>| {
            let found = column.iter().find(|(named, _)| named == name);
            found.map_or_else(|| "–".to_owned(), |(_, ms)| table::milliseconds(*ms))
        };
        std::iter::once(words.to_owned()).chain(columns.iter().map(figure)).collect()
    });
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    table::render(&header, rows)
}

#[expect(clippy::cast_precision_loss, reason = "a bar is in whole megabytes")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet_report::tests::{example, example_with_everything};

    #[test]
    fn the_table_has_what_was_promised_beside_what_was_found() {
        let report = example();
        let text = table(Subject::Endpoints, &report, &bars(Subject::Endpoints, &report));
        for part in ["2 × deregistration", "1 × registration", "32051.9", "MISSED", "roll-out: 12.5 s"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }

    #[test]
    fn what_was_measured_besides_has_its_bars() {
        let found = |report: &FleetReport, name: &str| {
            bars(Subject::Endpoints, report).into_iter().find(|bar| bar.name.starts_with(name))
        };
        let (growth, memory) = ("time of a change, times", "memory of a further registration");
        assert!(found(&example(), growth).is_none() && found(&example(), memory).is_none());
        let mut report = example_with_everything();
        assert!(found(&report, growth).unwrap().met && found(&report, memory).unwrap().met);
        report.growth.as_mut().unwrap().times_longer = Some(12.5);
        report.server.further.as_mut().unwrap().bytes_each = 1501.0;
        assert!(!found(&report, growth).unwrap().met && !found(&report, memory).unwrap().met);
        assert!(table(Subject::Endpoints, &report, &[]).contains("traffic through real Envoys"));
    }

    #[test]
    fn a_change_is_encoded_once_and_sends_little_however_large_its_service_is() {
        let mut report = FleetReport { payload_endpoints: 1000, ..example() };
        let missed = |report: &FleetReport| -> Vec<_> {
            let all = bars(Subject::Endpoints, report).into_iter();
            all.filter(|bar| !bar.met).filter_map(|bar| bar.name.split_once(' ')).map(|(first, _)| first).collect()
        };
        assert_eq!(missed(&report), [""; 0]);
        report.server.bytes_sent_per_change = 50.0 * 1000.0 + 1.0;
        report.server.frames_encoded_per_change = 50.0;
        report.server.receipts_ms_per_change = 95.5 * 0.051;
        assert_eq!(missed(&report), ["bytes", "frames", "receipts,"]);
        let of_a_rollout = bars(Subject::Rollout, &report);
        assert!(of_a_rollout.iter().all(|bar| !bar.name.starts_with("frames")), "of lone changes only");
    }

    #[test]
    fn the_tail_counts_as_it_was() {
        let report = example();
        let found = |name: &str| bars(Subject::Endpoints, &report).into_iter().find(|bar| bar.name == name).unwrap();
        assert!(!found("max, ms").met);
        assert_eq!(found("max, ms").measured, Some(2400.0));
        assert!(found("roll-out, s").met);
        assert!(bars(Subject::Rollout, &report).iter().all(|bar| !bar.name.ends_with("ms")));
    }
}
