//! Traffic while the mesh's configuration changes.

use std::collections::BTreeMap;

use super::asked::Asked;
use super::figures::{Reading, digits, header, line, listed, name_cells, no_figure, variants};
use crate::cost::report::{Cell, Churn};
use crate::html::chart::{Chart, Dimension, Line, Scale};
use crate::html::{Cell as TableCell, NO_FIGURE, escape, plain, table};

pub(super) fn body(cells: &[Asked]) -> String {
    let lines: Vec<Line> = variants(cells)
        .iter()
        .filter_map(|it| {
            let worst = |cell: &Cell| Reading::of(cell, |round| round.churn.as_ref()?.worst_second.p99);
            line(&it.name, it.look(), &it.cells, |cell| Some(cell.point.changes_per_second.unwrap_or(0.0)), worst)
        })
        .collect();
    let is_varied = lines.iter().any(|line| line.points.len() > 1);
    let chart = Chart {
        name: "p99 of the worst second, by changes a second".to_owned(),
        x: Dimension::new("changes of the mesh's configuration a second", Scale::Linear),
        y: Dimension::new("milliseconds", Scale::Fitting),
        lines,
    };
    let chart = if is_varied { chart.render() } else { String::new() };
    format!(
        "<p>Routes, endpoints and certificates change while requests are sent at a steady rate. The worst second of a round \
         is the one with the most errors, and of those with as many the one with the highest 99th percentile; of a cell it \
         is the worst of its rounds. Latencies in milliseconds.</p>\n{chart}{}",
        figures(cells)
    )
}

/// Errors and requests of all rounds that count, for which errors are no reason not to; `None` if none does.
pub(in crate::html) fn errors(cell: &Cell) -> Option<(u64, u64)> {
    let each = cell.sound().map(|round| (round.errors, round.requests));
    each.reduce(|all, round| (all.0.saturating_add(round.0), all.1.saturating_add(round.1)))
}

fn figures(cells: &[Asked]) -> String {
    let mut rows: Vec<Vec<TableCell>> = Vec::new();
    for cell in listed(cells) {
        let mut row = name_cells(cell);
        match errors(&cell) {
            Some((errors, requests)) => {
                row.push(plain(&requests.to_string()));
                row.push((errors.to_string(), if errors > 0 { "missing" } else { "" }));
            }
            None => row.extend([(); 2].map(|()| no_figure(&cell))),
        }
        let number = |value: Option<f64>| plain(&value.map_or_else(|| NO_FIGURE.to_owned(), digits));
        let worst = cell.worst_second();
        row.push(plain(&worst.map_or_else(|| NO_FIGURE.to_owned(), |it| it.errors.to_string())));
        row.extend([number(worst.and_then(|it| it.p99)), number(worst.and_then(|it| it.max))]);
        match cell.latency_ms {
            Some(it) => row.extend([it.p50, it.p99].map(|it| number(Some(it)))),
            None => row.extend([(); 2].map(|()| no_figure(&cell))),
        }
        row.push(plain(&counted(&cell, |churn| &churn.made)));
        row.push(plain(&counted(&cell, |churn| &churn.refused)));
        rows.push(row);
    }
    let header =
        header(&["requests", "errors", "worst second: errors", "its p99", "its max", "p50", "p99", "made", "refused"]);
    table(&header, &rows)
}

/// Of all rounds that count.
fn counted(cell: &Cell, of: fn(&Churn) -> &BTreeMap<String, u64>) -> String {
    let mut all: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, count) in cell.sound().filter_map(|round| round.churn.as_ref()).flat_map(of) {
        let sum = all.entry(kind).or_default();
        *sum = sum.saturating_add(*count);
    }
    let words: Vec<String> = all.into_iter().map(|(kind, count)| format!("{count} {}", escape(kind))).collect();
    if words.is_empty() { NO_FIGURE.to_owned() } else { words.join(", ") }
}
