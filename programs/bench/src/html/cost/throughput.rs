//! Latency by load, up to the rate that proxies no longer keep up with.

use super::asked::Asked;
use super::figures::{Reading, Variant, digits, line, points, variants};
use crate::cost::report::{Cell, Quantiles};
use crate::html::chart::{Chart, Dimension, Line, Scale};
use crate::html::{Cell as TableCell, NO_FIGURE, plain, table};

pub(super) fn body(cells: &[Asked]) -> String {
    let mut connections: Vec<u32> = points(cells).iter().map(|point| point.connections).collect();
    connections.sort_unstable();
    connections.dedup();
    let curves = connections.iter().map(|connections| {
        let cells: Vec<Asked> = cells.iter().copied().filter(|cell| cell.point.connections == *connections).collect();
        chart("p50", *connections, &cells, |it| it.p50) + &chart("p99", *connections, &cells, |it| it.p99)
    });
    format!(
        "<p>Each rate is offered in an open loop, whether answers keep up or not. A line ends at the highest rate that was \
         kept up with in any round; the band around it reaches from the lowest round that counts to the highest.</p>\n{}{}",
        curves.collect::<String>(),
        knees(cells, &connections)
    )
}

fn chart(name: &str, connections: u32, cells: &[Asked], of: fn(&Quantiles) -> f64) -> String {
    let answered = |cell: &Cell| Reading::of(cell, |round| Some(round.rate)).map(|reading| reading.value);
    let lines: Vec<Line> = variants(cells)
        .iter()
        .filter_map(|it| line(&it.name, it.look(), &it.cells, answered, |cell| Reading::latency(cell, of)))
        .collect();
    Chart {
        name: format!("Latency, {name}, by load, over {connections} connections"),
        x: Dimension::new("successful answers a second", Scale::Linear),
        y: Dimension::new("milliseconds", Scale::Fitting),
        lines,
    }
    .render()
}

/// The cell with the most answers a second among those that keep up in half of the rounds, over any number of connections.
pub(in crate::html) fn knee<'a>(variant: &Variant<'a>) -> Option<(Asked<'a>, Reading)> {
    let answered = |cell: &Asked<'a>| Some((*cell, Reading::of(cell, |round| Some(round.rate))?));
    let kept_up = variant.cells.iter().filter(|cell| cell.counts_by_half()).filter_map(answered);
    kept_up.max_by(|(_, one), (_, other)| one.value.total_cmp(&other.value))
}

fn knees(cells: &[Asked], connections: &[u32]) -> String {
    let mut rows: Vec<Vec<TableCell>> = Vec::new();
    for connections in connections {
        let cells: Vec<Asked> = cells.iter().copied().filter(|cell| cell.point.connections == *connections).collect();
        for variant in variants(&cells) {
            let behind = variant.cells.iter().filter(|cell| !cell.counts_by_half()).filter_map(|cell| cell.point.rate);
            let behind = behind.reduce(f64::min).map_or_else(|| "above what was asked".to_owned(), digits);
            let mut row = vec![plain(&variant.name), plain(&connections.to_string())];
            match knee(&variant) {
                Some((cell, answered)) => {
                    row.push(plain(&(answered.text() + &cell.note())));
                    let figures = cell.latency_ms.map(|it| [it.p50, it.p99]);
                    row.extend(figures.map_or_else(|| [NO_FIGURE; 2].map(plain), |it| it.map(|it| plain(&digits(it)))));
                    let cores = Reading::of(&cell, |round| Some(round.proxies?.cores));
                    row.push(plain(&cores.map_or_else(|| NO_FIGURE.to_owned(), |it| it.text())));
                }
                None => row.extend([("void", "missing"); 4].map(|(text, class)| (text.to_owned(), class))),
            }
            row.push(plain(&behind));
            rows.push(row);
        }
    }
    let header = [
        "through",
        "connections",
        "most answered/s",
        "p50 there, ms",
        "p99 there, ms",
        "proxies, cores",
        "behind at, requests/s",
    ];
    format!("<h4>As far as each kept up, in half of the rounds at least</h4>\n{}", table(&header.map(plain), &rows))
}
