//! A fleet's report as one page that needs nothing else: no script, no font, no picture from elsewhere.

mod beside;
mod chart;
mod faults;

use std::collections::BTreeMap;

use crate::fleet_report::{FleetChange, FleetReport, Sample};
use crate::percentiles::{Bin, PERCENTILES, Percentiles};
use crate::published::{Published, PublishedResult, RolloutMinutes, ServersPeak};
use crate::table;
use chart::Series;

const STYLE: &str = include_str!("html/page.css");

/// What stands where there is no figure.
const NO_FIGURE: &str = "–";

/// A cell of a table: its text, and its CSS class if it has one.
type Cell = (String, &'static str);

/// Renders the page.
pub fn render(report: &FleetReport) -> String {
    let published = Published::read();
    let title = format!("starling bench {}", escape(&report.scenario));
    let sections = [
        opening(report),
        percentiles(report, &published),
        histograms(report),
        changes(report),
        beside::traffic(report),
        beside::growth(report),
        faults::section(report.faults.as_ref()),
        cost(report, &published),
        over_time(&report.samples),
        origin(report, &published),
    ];
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         </head>\n<body>\n<h1>{title}</h1>\n{}</body>\n</html>\n",
        sections.concat()
    )
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

fn percentiles(report: &FleetReport, published: &Published) -> String {
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
        "<h2>Milliseconds from the call to the workload's next request</h2>\n\
         <p>The median over the changes of a kind; in the last line the longest over all of them.</p>\n{}",
        table(&header, &rows)
    )
}

fn histograms(report: &FleetReport) -> String {
    let mut text = String::new();
    for kind in report.kinds() {
        let bins = together(report.of_kind(kind));
        text.push_str(&format!("<h2>Every workload, {}</h2>\n{}", escape(kind), chart::bars(&bins)));
    }
    text
}

/// The histograms of several changes as one, without the bins that are empty in all of them.
fn together<'a>(changes: impl Iterator<Item = &'a FleetChange>) -> Vec<Bin> {
    // The edges are the same numbers in every histogram, and numbers above zero are in the order of their bits.
    let mut bins: BTreeMap<u64, Bin> = BTreeMap::new();
    for bin in changes.flat_map(|change| &change.histogram).filter(|bin| bin.count > 0) {
        bins.entry(bin.from_ms.to_bits()).and_modify(|sum| sum.count += bin.count).or_insert(*bin);
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
    format!("<h2>Each change, in milliseconds</h2>\n{}", table(&header, &rows))
}

fn cost(report: &FleetReport, published: &Published) -> String {
    let FleetReport { server, fleet, rollout, .. } = report;
    let RolloutMinutes { nodes_available, workloads_scheduled } = published.rollout_minutes;
    let ServersPeak { cpu_percent, memory_gb_total } = published.servers_peak;
    let row = |name: &str, found: String, published: String| vec![plain(name), plain(&found), (published, "published")];
    let further = server.further.as_ref().map(|further| {
        let name = format!("memory of the servers for each of {} further registrations", further.registrations);
        row(&name, format!("{:.0} B", further.bytes_each), NO_FIGURE.to_owned())
    });
    let rows = [
        row(
            "memory of the servers",
            table::mebibytes(server.rss_bytes),
            format!("{memory_gb_total} GB at its peak, at {cpu_percent} % CPU"),
        ),
        row(
            "CPU of the servers for one change",
            format!("{} ms", table::milliseconds(server.cpu_ms_per_change)),
            NO_FIGURE.to_owned(),
        ),
        row("memory of the simulated nodes", table::mebibytes(fleet.rss_bytes), NO_FIGURE.to_owned()),
        row(
            "roll-out",
            format!("{:.1} s", rollout.seconds),
            format!("nodes in {nodes_available} min, workloads in {workloads_scheduled} min"),
        ),
    ];
    let rows: Vec<Vec<Cell>> = rows.into_iter().chain(further).collect();
    let header = [plain("what"), plain("this run"), ("published".to_owned(), "published")];
    format!("<h2>Cost</h2>\n{}", table(&header, &rows))
}

fn over_time(samples: &[Sample]) -> String {
    let series = |name: &'static str, of: fn(&Sample) -> f64| Series {
        name,
        points: samples.iter().map(|sample| (sample.seconds, of(sample))).collect(),
    };
    let cpu = [series("servers", |it| it.server_cpu_cores), series("simulated nodes", |it| it.fleet_cpu_cores)];
    let memory = [
        series("servers", |it| mebibytes(it.server_rss_bytes)),
        series("simulated nodes", |it| mebibytes(it.fleet_rss_bytes)),
    ];
    format!(
        "<h2>CPU over time</h2>\n{}<h2>Memory over time</h2>\n{}",
        chart::lines("CPU over time", "cores", &cpu),
        chart::lines("Memory over time", "MiB", &memory)
    )
}

fn origin(report: &FleetReport, published: &Published) -> String {
    let Published { title, system, hardware, workloads, .. } = published;
    let [title, system, hardware] = [title, system, hardware].map(|text| escape(text));
    format!(
        "<h2>Where this was measured</h2>\n<p>{}</p>\n<p>{}</p>\n\
         <p class=\"published\">Published figures: {title}; {system}; {workloads} workloads on {hardware}.</p>\n",
        escape(&report.machine.line()),
        escape(&report.versions.line())
    )
}

fn table(header: &[Cell], rows: &[Vec<Cell>]) -> String {
    let line = |cells: &[Cell], tag: &str| {
        let cells: String = cells
            .iter()
            .map(|(text, class)| match *class {
                "" => format!("<{tag}>{text}</{tag}>"),
                class => format!("<{tag} class=\"{class}\">{text}</{tag}>"),
            })
            .collect();
        format!("<tr>{cells}</tr>\n")
    };
    let rows: String = rows.iter().map(|row| line(row, "td")).collect();
    format!("<table>\n<thead>\n{}</thead>\n<tbody>\n{rows}</tbody>\n</table>\n", line(header, "th"))
}

fn plain(text: &str) -> Cell {
    (text.to_owned(), "")
}

fn milliseconds(value: Option<f64>) -> String {
    value.map_or_else(|| NO_FIGURE.to_owned(), table::milliseconds)
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture needs three digits")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Text as it may stand between tags.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests;
