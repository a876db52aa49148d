//! What the runs found, and the report made of it.

use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use crate::machine::Machine;
use crate::report::{OutputArgs, Versions};
use crate::table;

/// Shown under `--help`: what is measured, and the report.
pub(super) const JSON_HELP: &str = "\
What is measured:
  A change: from just before the API call until the snapshot is swapped from which a workload's next
  request would be served, at every workload, on the one clock of the machine. The receipt: by the
  server's own clock, from the commit until the last node was in force, as its agent said through the
  relay. CPU is user and system time from /proc, from just before the call until the receipt is whole.
  Server, relays, and the fleet share the cores of this machine: what the fleet takes is in every time.

Report (--json, --report, -o json; memory in bytes):
  scenario            \"relay\"
  changes             of each run
  workloads_per_node
  runs[]              way (\"direct\", or \"N relays\"), nodes, rollout_s, change_ms with p50, p99, max
                      (over all workloads and changes), slowest_ms (each change's max, in order),
                      receipt_ms (the mean of the receipts' own maxima), server_cpu_ms and relays_cpu_ms
                      (per change), server_rss_bytes, relay_rss_bytes (all relays), complete
  broken              the run that could not be ended, after which there were no others, and why; or null
  growth[]            in words, from the smallest fleet to the largest of each way
  machine             cpu, model, cores, memory (bytes), kernel, date
  versions            starling, build";

/// How a fleet is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// To the server.
    Direct,
    /// To so many relays.
    Relays(u32),
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => formatter.write_str("direct"),
            Self::Relays(1) => formatter.write_str("1 relay"),
            Self::Relays(count) => write!(formatter, "{count} relays"),
        }
    }
}

/// What came of one change.
pub(super) struct Measured {
    pub(super) latencies_us: Vec<u64>,
    /// That it concerned.
    pub(super) workloads: u64,
    /// `None` if it is not whole.
    pub(super) receipt: Option<Duration>,
    pub(super) server_cpu: Duration,
    pub(super) relays_cpu: Duration,
}

/// A fleet of one size, attached in one way.
pub(super) struct Row {
    way: Way,
    nodes: u32,
    rollout: Duration,
    measured: Vec<Measured>,
    pub(super) server_rss_bytes: u64,
    pub(super) relay_rss_bytes: u64,
}

impl Row {
    pub(super) fn new(way: Way, nodes: u32, rollout: Duration) -> Self {
        Self { way, nodes, rollout, measured: Vec::new(), server_rss_bytes: 0, relay_rss_bytes: 0 }
    }

    pub(super) fn add(&mut self, measured: Measured) {
        self.measured.push(measured);
    }

    fn run(&self) -> Run {
        let mut all: Vec<u64> = self.measured.iter().flat_map(|change| change.latencies_us.iter().copied()).collect();
        all.sort_unstable();
        let slowest = self.measured.iter().map(|change| change.latencies_us.iter().max().copied().unwrap_or_default());
        let receipts: Vec<_> = self.measured.iter().filter_map(|change| change.receipt).collect();
        let is_reached = |change: &Measured| u64::try_from(change.latencies_us.len()).ok() == Some(change.workloads);
        Run {
            way: self.way.to_string(),
            nodes: self.nodes,
            rollout_s: self.rollout.as_secs_f64(),
            change_ms: ChangeMs { p50: share(&all, 50), p99: share(&all, 99), max: share(&all, 100) },
            slowest_ms: slowest.map(milliseconds).collect(),
            receipt_ms: mean(receipts.iter().map(|took| took.as_secs_f64() * 1e3)),
            server_cpu_ms: mean(self.measured.iter().map(|change| change.server_cpu.as_secs_f64() * 1e3)),
            relays_cpu_ms: mean(self.measured.iter().map(|change| change.relays_cpu.as_secs_f64() * 1e3)),
            server_rss_bytes: self.server_rss_bytes,
            relay_rss_bytes: self.relay_rss_bytes,
            complete: receipts.len() == self.measured.len() && self.measured.iter().all(is_reached),
        }
    }
}

/// The report; [`JSON_HELP`] tells its fields.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    scenario: &'static str,
    changes: u32,
    workloads_per_node: u32,
    runs: Vec<Run>,
    broken: Option<String>,
    growth: Vec<String>,
    machine: Machine,
    versions: Versions,
}

#[derive(Debug, Serialize)]
struct Run {
    way: String,
    nodes: u32,
    rollout_s: f64,
    change_ms: ChangeMs,
    slowest_ms: Vec<f64>,
    receipt_ms: f64,
    server_cpu_ms: f64,
    relays_cpu_ms: f64,
    server_rss_bytes: u64,
    relay_rss_bytes: u64,
    complete: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct ChangeMs {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Findings {
    pub(super) fn new(
        rows: Vec<Row>,
        broken: Option<String>,
        changes: u32,
        workloads_per_node: u32,
        versions: Versions,
    ) -> Self {
        let runs: Vec<_> = rows.iter().map(Row::run).collect();
        let growth = growth(&runs);
        Self {
            scenario: "relay",
            changes,
            workloads_per_node,
            runs,
            broken,
            growth,
            machine: Machine::read(),
            versions,
        }
    }

    /// Writes the report where it is wanted.
    ///
    /// # Errors
    /// When a place cannot be written; the text names it.
    pub(super) fn deliver(&self, output: &OutputArgs) -> anyhow::Result<ExitCode> {
        output.write_page(|| self.page())?;
        let code = output.deliver(self, &[], || self.table())?;
        let is_whole = self.broken.is_none() && self.runs.iter().all(|run| run.complete);
        Ok(if is_whole { code } else { ExitCode::FAILURE })
    }

    /// The report for people.
    fn table(&self) -> String {
        let header = ["nodes", "by", "p50", "p99", "max", "told", "cpu", "cpu r", "mem", "mem r", "up", "all"];
        let rows = self.runs.iter().map(|run| {
            vec![
                run.nodes.to_string(),
                run.way.clone(),
                table::milliseconds(run.change_ms.p50),
                table::milliseconds(run.change_ms.p99),
                table::milliseconds(run.change_ms.max),
                table::milliseconds(run.receipt_ms),
                table::milliseconds(run.server_cpu_ms),
                table::milliseconds(run.relays_cpu_ms),
                mebibytes(run.server_rss_bytes),
                mebibytes(run.relay_rss_bytes),
                format!("{:.0}", run.rollout_s),
                if run.complete { "yes" } else { "NO" }.to_owned(),
            ]
        });
        let mut text = format!(
            "One change of an upstream that all have, {} changes a run, {} workloads a node; milliseconds\n\n",
            self.changes, self.workloads_per_node
        );
        text.push_str(&table::render(&header, rows));
        text.push_str(
            "\n\np50, p99, max: until a change is in force, over all workloads. told: the receipt. cpu, mem: of the server, in ms per \
             change and MiB;\ncpu r, mem r: of all relays. up: seconds until the fleet was there. all: whether all were reached and told.",
        );
        text.push_str("\n\nthe slowest workload of each change, ms\n");
        for run in &self.runs {
            let each: Vec<_> = run.slowest_ms.iter().map(|slowest| format!("{slowest:.0}")).collect();
            text.push_str(&format!("  {} nodes, {}: {}\n", run.nodes, run.way, each.join(" ")));
        }
        text.push('\n');
        for line in &self.growth {
            text.push_str(line);
            text.push('\n');
        }
        if let Some(broken) = &self.broken {
            text.push_str(&format!("\nNOT MEASURED, as it broke, nor what was to come after it: {broken}\n"));
        }
        text.push_str(&format!("\n{}\n{}", self.versions.line(), self.machine.line()));
        text
    }

    /// The same as a page.
    fn page(&self) -> String {
        let text = self.table().replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>starling bench relay</title>\
             <body style=\"max-width:80rem;margin:2rem auto;font:14px/1.5 sans-serif\"><h1>Relays</h1><pre>{text}</pre></body></html>"
        )
    }
}

/// How times and costs grow with the fleet, in words.
fn growth(runs: &[Run]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut ways: Vec<&str> = runs.iter().map(|run| run.way.as_str()).collect();
    ways.dedup();
    ways.sort_unstable();
    ways.dedup();
    for way in ways {
        let of: Vec<_> = runs.iter().filter(|run| run.way == way).collect();
        let (Some(few), Some(many)) = (of.iter().min_by_key(|run| run.nodes), of.iter().max_by_key(|run| run.nodes))
        else {
            continue;
        };
        if few.nodes == many.nodes {
            continue;
        }
        let thousands = f64::from(many.nodes - few.nodes) / 1000.0;
        let each = |value: fn(&Run) -> f64| (value(many) - value(few)) / thousands;
        lines.push(format!(
            "{way}: each further 1,000 nodes add {:.1} ms to the last workload's time, {:.1} ms of CPU at the server and {:.1} ms \
             at all relays",
            each(|run| run.change_ms.max),
            each(|run| run.server_cpu_ms),
            each(|run| run.relays_cpu_ms),
        ));
    }
    let has = |direct: bool| runs.iter().any(|run| (run.way == "direct") == direct);
    if has(false) {
        lines.push(
            "Behind relays a server sends a change once for each relay, whatever the fleet; what grows there is the receipt, \
             an entry for each node. Each relay sends it to its own part of the fleet, from the bytes that came."
                .to_owned(),
        );
    }
    if has(true) && has(false) {
        lines.push(
            "On one machine the relays, the server and the fleet itself share the cores, and every node's own work is in these \
             times; what a relay takes off a server shows in the server's CPU, and on machines of its own in the time, too."
                .to_owned(),
        );
    }
    lines
}

fn mebibytes(bytes: u64) -> String {
    (bytes >> 20).to_string()
}

fn share(sorted: &[u64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().map_or(0.0, milliseconds)
}

#[expect(clippy::cast_precision_loss, reason = "a change takes far less than 2^53 microseconds")]
fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "changes are counted in thousands")]
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<_> = values.collect();
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(way: Way, nodes: u32, slowest_ms: u64) -> Row {
        let mut row = Row::new(way, nodes, Duration::from_secs(1));
        for receipt in [Some(Duration::from_millis(5)), Some(Duration::from_millis(7))] {
            row.add(Measured {
                latencies_us: vec![1_000, 2_000, slowest_ms * 1_000],
                workloads: 3,
                receipt,
                server_cpu: Duration::from_millis(4),
                relays_cpu: Duration::from_millis(u64::from(nodes) / 100),
            });
        }
        row
    }

    #[test]
    fn growth_is_told_for_each_way_and_what_was_missed_makes_a_run_incomplete() {
        let rows = vec![row(Way::Direct, 1_000, 10), row(Way::Relays(2), 1_000, 10), row(Way::Relays(2), 3_000, 30)];
        let broken = Some("9000 nodes, direct: the fleet is gone".to_owned());
        let findings = Findings::new(rows, broken, 2, 1, Versions::of(None));
        assert!(findings.runs.iter().all(|run| run.complete));
        assert_eq!((findings.runs[2].change_ms.p50, findings.runs[2].change_ms.max), (2.0, 30.0));
        assert!((findings.runs[0].receipt_ms - 6.0).abs() < 1e-9);
        let line = "2 relays: each further 1,000 nodes add 10.0 ms to the last workload's time, 0.0 ms of CPU at the server \
                    and 10.0 ms at all relays";
        assert_eq!(findings.growth[0], line);
        let text = findings.table();
        assert!(text.contains("2 relays") && text.contains("1000"), "{text}");
        assert!(text.contains("it broke") && text.contains("9000 nodes, direct: the fleet is gone"), "{text}");

        let mut missed = row(Way::Direct, 1_000, 10);
        missed.measured[0].workloads = 4;
        assert!(!missed.run().complete);
        let mut untold = row(Way::Direct, 1_000, 10);
        untold.measured[1].receipt = None;
        assert!(!untold.run().complete);
    }
}
