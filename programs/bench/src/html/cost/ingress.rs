//! What ingress gateways answer under limits.

use super::asked::Asked;
use super::figures::{Reading, digits, no_figure, variants};
use crate::cost::report::{Limited, Point};
use crate::html::{Cell as TableCell, NO_FIGURE, escape, plain, table};
use crate::published::{Ingress, IngressMs, IngressResult, Limits};

pub(super) fn body(cells: &[Asked], published: &Ingress) -> String {
    let mut groups: Vec<Option<Limits>> = Vec::new();
    let published_limits = published.results.iter().map(|result| Some(result.limits));
    for limits in cells.iter().map(|cell| limits(&cell.point)).chain(published_limits) {
        if !groups.contains(&limits) {
            groups.push(limits);
        }
    }
    let mut rows: Vec<Vec<TableCell>> = Vec::new();
    for group in groups {
        let cells: Vec<Asked> = cells.iter().copied().filter(|cell| limits(&cell.point) == group).collect();
        for variant in variants(&cells) {
            rows.extend(variant.cells.iter().map(|cell| measured(&variant.name, group, *cell)));
        }
        let results = published.results.iter().filter(|result| Some(result.limits) == group);
        rows.extend(results.map(beside));
    }
    let figures = ["conn.", "requests/s", "p50", "p90", "p95", "p99", "max", "throttled, s", "errors"].map(plain);
    let header: Vec<TableCell> =
        [plain("limits"), ("through".to_owned(), "words")].into_iter().chain(figures).collect();
    format!(
        "<p>Latencies in milliseconds. Limits are those of each limited proxy; throttled is for how long the kernel did not \
         let limited proxies run. Below a figure are the lowest and the highest round that counts.</p>\n{}",
        table(&header, &rows)
    )
}

fn measured(name: &str, limits: Option<Limits>, cell: Asked) -> Vec<TableCell> {
    let mut row = vec![
        (words(limits), "words"),
        (escape(name) + &cell.note(), "words"),
        plain(&cell.point.connections.to_string()),
    ];
    let Some(latency) = cell.latency_ms else {
        row.extend([(); 8].map(|()| no_figure(&cell)));
        return row;
    };
    let text = |reading: Option<Reading>| plain(&reading.map_or_else(|| NO_FIGURE.to_owned(), |it| it.text()));
    row.push(text(Reading::of(&cell, |round| Some(round.rate))));
    let figures = [Some(latency.p50), Some(latency.p90), cell.quantile(0.95), Some(latency.p99), Some(latency.max)];
    row.extend(figures.map(|it| plain(&it.map_or_else(|| NO_FIGURE.to_owned(), digits))));
    row.push(text(Reading::of(&cell, |round| round.throttled_seconds)));
    row.push(plain(&cell.rounds.iter().fold(0, |all: u64, round| all.saturating_add(round.errors)).to_string()));
    row
}

fn beside(IngressResult { name, limits, rate, latency_ms, .. }: &IngressResult) -> Vec<TableCell> {
    let IngressMs { p50, p90, p95, p99, max } = *latency_ms;
    let mut row = vec![words(Some(*limits)), format!("published: {}", escape(name)), NO_FIGURE.to_owned()];
    row.extend([*rate, p50, p90, p95, p99, max].map(digits));
    row.extend([NO_FIGURE; 2].map(str::to_owned));
    let class = |place| if place < 2 { "words published" } else { "published" };
    row.into_iter().enumerate().map(|(place, text)| (text, class(place))).collect()
}

/// `None` where nothing is limited.
pub(in crate::html) fn limits(point: &Point) -> Option<Limits> {
    Some(Limits { of: point.limited?, cores: point.cpu_limit?, memory_mib: point.memory_limit_mib? })
}

pub(in crate::html) fn words(limits: Option<Limits>) -> String {
    let Some(Limits { of, cores, memory_mib }) = limits else { return "none".to_owned() };
    let of = match of {
        Limited::Gateway => "gateway",
        Limited::All => "each proxy",
    };
    format!("{of}: {cores} cores, {memory_mib} MiB")
}
