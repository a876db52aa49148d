//! The part of the page of a report of a fleet.

mod beside;
mod faults;

use std::collections::BTreeMap;

use super::chart::{self, Chart, Dimension, Hue, Line, Look, Scale, Spot, Stroke};
use super::key::injected;
use super::{Cell, NO_FIGURE, Section, escape, milliseconds, plain, study, table};
use crate::fleet_report::{FleetChange, FleetReport, Sample};
use crate::percentiles::{Bin, PERCENTILES, Percentiles};
use crate::published::{Pods, Propagation, Published, PublishedResult, PublishedRollout, RolloutMinutes, ServersPeak};

/// Everything that a report of a fleet says.
pub(super) fn section(id: String, title: &str, report: &FleetReport, published: &Published) -> Section {
    let parts = [
        opening(report),
        percentiles(report, &published.propagation),
        histograms(report),
        changes(report),
        beside::traffic(report),
        beside::growth(report),
        faults::section(report.faults.as_ref()),
        cost(report, published),
        over_time(&report.samples),
        origin(report, published),
    ];
    Section { id, title: format!("A fleet: {title}"), body: parts.concat() }
}

fn opening(report: &FleetReport) -> String {
    let FleetReport { nodes, workloads, servers, changes, .. } = report;
    let incomplete = changes.iter().filter(|change| !change.is_complete()).count();
    let verdict = if incomplete == 0 {
        "Each reached every workload that it concerned.".to_owned()
    } else {
        format!("<span class=\"missing\">{incomplete} of them did not reach every workload that they concerned.</span>")
    };
    format!("<p>{nodes} nodes, {workloads} workloads, {servers} servers, {} changes. {verdict}</p>\n", changes.len())
}

fn percentiles(report: &FleetReport, published: &Propagation) -> String {
    let mut header = vec![plain("workloads that had it")];
    let mut columns: Vec<(BTreeMap<String, f64>, &'static str)> = Vec::new();
    for kind in report.kinds() {
        let each: Vec<Percentiles> = report.of_kind(kind).filter_map(|change| change.latency_ms).collect();
        header.push(plain(&format!("{} × {}", each.len(), escape(kind))));
        let together = Percentiles::over_changes(&each);
        let named = together.iter().flat_map(Percentiles::named).map(|(name, ms)| (name.to_owned(), ms));
        columns.push((named.collect(), ""));
    }
    for PublishedResult { name, latency_ms } in &published.results {
        header.push((format!("published: {}", escape(name)), "published"));
        columns.push((latency_ms.clone(), "published"));
    }
    let rows = PERCENTILES.map(|(name, words)| {
        let mut row = vec![plain(words)];
        row.extend(columns.iter().map(|(figures, class)| (milliseconds(figures.get(name).copied()), *class)));
        row
    });
    format!(
        "<h3>Milliseconds from the call to the workload's next request</h3>\n\
         <p>The median over the changes of a kind; in the last line the longest over all of them.</p>\n{}",
        table(&header, &rows)
    )
}

fn histograms(report: &FleetReport) -> String {
    let mut text = String::new();
    for kind in report.kinds() {
        let bins = together(report.of_kind(kind));
        text.push_str(&format!(
            "<h3>Every workload, {}</h3>\n{}",
            escape(kind),
            chart::bars(&format!("Workloads by latency, {}", escape(kind)), &bins)
        ));
    }
    text
}

/// The histograms of several changes as one, without the bins that are empty in all of them.
fn together<'a>(changes: impl Iterator<Item = &'a FleetChange>) -> Vec<Bin> {
    // The edges are the same numbers in every histogram, and numbers above zero are in the order of their bits.
    let mut bins: BTreeMap<u64, Bin> = BTreeMap::new();
    for bin in changes.flat_map(|change| &change.histogram).filter(|bin| bin.count > 0) {
        bins.entry(bin.from_ms.to_bits())
            .and_modify(|sum| sum.count = sum.count.saturating_add(bin.count))
            .or_insert(*bin);
    }
    bins.into_values().collect()
}

fn changes(report: &FleetReport) -> String {
    let header = ["revision", "kind", "affected", "applied", "p50", "p99", "max"].map(plain);
    let rows: Vec<Vec<Cell>> = report
        .changes
        .iter()
        .map(|change| {
            let FleetChange { revision, kind, affected, applied, latency_ms, .. } = change;
            let class = if change.is_complete() { "" } else { "missing" };
            let mut row = vec![plain(&revision.to_string()), plain(&escape(kind)), plain(&affected.to_string())];
            row.push((applied.to_string(), class));
            let figures = [latency_ms.map(|it| it.p50), latency_ms.map(|it| it.p99), latency_ms.map(|it| it.max)];
            row.extend(figures.map(|figure| plain(&milliseconds(figure))));
            row
        })
        .collect();
    format!("<h3>Each change, in milliseconds</h3>\n{}", table(&header, &rows))
}

fn cost(report: &FleetReport, published: &Published) -> String {
    let FleetReport { server, fleet, rollout, .. } = report;
    let [memory_published, rollout_published] = beside(report, published);
    let row = |name: &str, found: String, published: String| vec![plain(name), plain(&found), (published, "published")];
    let further = server.further.as_ref().map(|further| {
        let name = format!("memory of the servers for each of {} further registrations", further.registrations);
        row(&name, format!("{:.0} B", further.bytes_each), NO_FIGURE.to_owned())
    });
    let rows = [
        row("memory of the servers", table::mebibytes(server.rss_bytes), memory_published),
        row(
            "CPU of the servers for one change",
            format!("{} ms", table::milliseconds(server.cpu_ms_per_change)),
            NO_FIGURE.to_owned(),
        ),
        row("memory of the simulated nodes", table::mebibytes(fleet.rss_bytes), NO_FIGURE.to_owned()),
        row("roll-out", format!("{:.1} s", rollout.seconds), rollout_published),
    ];
    let rows: Vec<Vec<Cell>> = rows.into_iter().chain(further).collect();
    let header = [plain("what"), plain("this run"), ("published".to_owned(), "published")];
    format!("<h3>Cost</h3>\n{}", table(&header, &rows))
}

/// What was published of a fleet of the size: memory of the control plane, and how it came up.
fn beside(report: &FleetReport, published: &Published) -> [String; 2] {
    match published.rollout_of(report.workloads) {
        None => [NO_FIGURE; 2].map(str::to_owned),
        Some(PublishedRollout::Fleet(Propagation { servers_peak, rollout_minutes, .. })) => {
            let ServersPeak { cpu_percent, memory_gb_total } = servers_peak;
            let RolloutMinutes { nodes_available, workloads_scheduled } = rollout_minutes;
            [
                format!("{memory_gb_total} GB at its peak, at {cpu_percent} % CPU"),
                format!("nodes in {nodes_available} min, workloads in {workloads_scheduled} min"),
            ]
        }
        Some(PublishedRollout::Pods(pods, study)) => {
            let Pods { round_minutes, control_plane_mb_per_pod, .. } = pods;
            let name = escape(&study.name);
            [
                format!("{name}: {control_plane_mb_per_pod} MB for each pod"),
                format!("{name}: {round_minutes} min for each round, sidecars into {}", injected(pods)),
            ]
        }
    }
}

fn over_time(samples: &[Sample]) -> String {
    let line = |name: &str, hue: Hue, of: fn(&Sample) -> f64| Line {
        name: name.to_owned(),
        look: Look::new(hue, Stroke::Solid),
        points: samples.iter().map(|sample| Spot::plain(sample.seconds, of(sample))).collect(),
    };
    let chart = |name: &str, unit: &str, servers: fn(&Sample) -> f64, fleet: fn(&Sample) -> f64| Chart {
        name: name.to_owned(),
        x: Dimension::new("seconds", Scale::Linear),
        y: Dimension::new(unit, Scale::Linear),
        lines: vec![line("servers", Hue::Blue, servers), line("simulated nodes", Hue::Orange, fleet)],
    };
    let cpu = chart("CPU over time", "cores", |it| it.server_cpu_cores, |it| it.fleet_cpu_cores);
    let memory =
        chart("Memory over time", "MiB", |it| mebibytes(it.server_rss_bytes), |it| mebibytes(it.fleet_rss_bytes));
    format!("<h3>Over time</h3>\n{}{}", cpu.render(), memory.render())
}

fn origin(report: &FleetReport, published: &Published) -> String {
    let of_pods = match published.rollout_of(report.workloads) {
        Some(PublishedRollout::Pods(_, of_pods)) => study(of_pods),
        Some(PublishedRollout::Fleet(_)) | None => String::new(),
    };
    format!(
        "<h3>Where this was measured</h3>\n<p>{}</p>\n<p>{}</p>\n{}{of_pods}",
        escape(&report.machine.line()),
        escape(&report.versions.line()),
        study(&published.propagation.study)
    )
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture needs three digits")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests;
