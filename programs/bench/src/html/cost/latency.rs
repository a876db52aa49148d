//! Latency by connections and by rate, and what of it proxies add.

use super::asked::Asked;
use super::curve;
use super::figures::{By, Reading, Sweep, Variant, digits, header, listed, name_cells, no_figure, points, variants};
use crate::cost::report::{Added, Difference, Mode, Point, Quantiles};
use crate::cost::text::point;
use crate::html::{Cell as TableCell, NO_FIGURE, escape, plain, table};
use crate::published::{AddedMs, PublishedAddition, SidecarStudy, Sidecars};

/// Reads one of the latencies of a cell.
type Read = fn(&Quantiles) -> f64;

/// Quantiles of which there are charts.
const CHARTED: [(&str, Read); 2] = [("p50", |it| it.p50), ("p99", |it| it.p99)];

/// A quantile of what is added: what it is called, and where it is.
struct Quantile {
    name: &'static str,
    of: fn(&Added) -> Difference,
    published: fn(&AddedMs) -> Option<f64>,
}

const SHOWN: [Quantile; 2] = [
    Quantile { name: "p50", of: |it| it.p50, published: |it| Some(it.p50) },
    Quantile { name: "p99", of: |it| it.p99, published: |it| Some(it.p99) },
];

const FURTHER: [Quantile; 2] = [
    Quantile { name: "p90", of: |it| it.p90, published: |it| it.p90 },
    Quantile { name: "p99.9", of: |it| it.p999, published: |_| None },
];

pub(super) fn body(cells: &[Asked], published: &Sidecars) -> String {
    let charts: String = [By::Connections, By::Rate]
        .into_iter()
        .filter_map(|by| Sweep::new(by, cells))
        .flat_map(|sweep| {
            CHARTED.map(|(name, of)| {
                let lines = sweep.lines(|cell| Reading::latency(cell, of));
                sweep.chart(&format!("Latency, {name}"), "milliseconds", lines)
            })
        })
        .collect();
    let explained = if charts.is_empty() {
        ""
    } else {
        "<p>From when a request was due until its answer was there, in an open loop. A line is of all rounds that count, \
         merged; the band around it reaches from the lowest of these rounds to the highest. A cross is a measurement that \
         may not be believed.</p>\n"
    };
    let (shown, further) = (additions(cells, published, &SHOWN), additions(cells, published, &FURTHER));
    let further = if further.is_empty() {
        String::new()
    } else {
        format!("<details>\n<summary>The same at p90 and p99.9</summary>\n{further}</details>\n")
    };
    format!("{explained}{charts}{shown}{further}{}{}", curve::body(cells), every_figure(cells))
}

/// A table for each quantile: a line for each point, a column for each variant and each study. Nothing, if nothing is known
/// of what is added.
fn additions(cells: &[Asked], published: &Sidecars, quantiles: &[Quantile]) -> String {
    let columns: Vec<Variant> = variants(cells).into_iter().filter(|variant| variant.mode != Mode::Baseline).collect();
    if columns.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    for Quantile { name, of, published: published_of } in quantiles {
        let studies: Vec<&SidecarStudy> = published
            .studies()
            .into_iter()
            .filter(|study| study.added.iter().any(|added| published_of(&added.ms).is_some()))
            .collect();
        let mut header = vec![plain("point")];
        header.extend(columns.iter().map(|variant| plain(&variant.name)));
        header.extend(studies.iter().map(|it| (format!("{}, both sidecars", escape(&it.study.name)), "published")));
        let points = points(cells);
        let at = |at: &Point| -> Vec<TableCell> {
            let measured = columns.iter().map(|variant| added(variant, at, *of));
            let published = studies.iter().map(|it| (published_at(it, at, *published_of), "published"));
            [plain(&point(at))].into_iter().chain(measured).chain(published).collect()
        };
        let mut rows: Vec<Vec<TableCell>> = points.iter().map(at).collect();
        for (number, study) in studies.iter().enumerate() {
            let elsewhere = study.added.iter().filter(|added| !points.iter().any(|point| is_at(added, point)));
            rows.extend(elsewhere.map(|added| {
                let mut row = vec![(conditions(added), "published")];
                row.extend(columns.iter().map(|_| plain(NO_FIGURE)));
                let figure = |place| if place == number { published_of(&added.ms) } else { None };
                row.extend((0..studies.len()).map(|place| (signed(figure(place)), "published")));
                row
            }));
        }
        text.push_str(&format!("<h4>Added to no mesh at {name}, milliseconds</h4>\n{}", table(&header, &rows)));
    }
    text + "<p>Below a figure is its 95 % interval, by resampling the rounds. Below noise is what is not above what two \
            measurements of no mesh differ by, or whose interval has 0 in it.</p>\n"
}

fn added(variant: &Variant, at: &Point, of: fn(&Added) -> Difference) -> TableCell {
    let Some(cell) = variant.cells.iter().find(|cell| cell.point == *at) else { return plain(NO_FIGURE) };
    let Some(added) = &cell.added else { return no_figure(cell) };
    let Difference { value, low, high, floor, below_floor } = of(added);
    if below_floor {
        return (format!("below noise<br/><small>of {}</small>{}", digits(floor), cell.note()), "noise");
    }
    let interval = format!("<br/><small>{} to {}</small>", digits(low), digits(high));
    plain(&format!("{}{interval}{}", signed(Some(value)), cell.note()))
}

/// What a study has of a point; more than one figure if it was measured under several conditions.
fn published_at(study: &SidecarStudy, at: &Point, of: fn(&AddedMs) -> Option<f64>) -> String {
    let figures: Vec<String> = study
        .added
        .iter()
        .filter(|added| is_at(added, at))
        .filter_map(|added| {
            let figure = signed(Some(of(&added.ms)?));
            let condition = added.condition.as_ref();
            Some(condition.map_or_else(|| figure.clone(), |it| format!("{figure} <small>{}</small>", escape(it))))
        })
        .collect();
    if figures.is_empty() { NO_FIGURE.to_owned() } else { figures.join("<br/>") }
}

/// Whether a published addition was measured at a point.
pub(in crate::html) fn is_at(added: &PublishedAddition, point: &Point) -> bool {
    let is_rate = point.rate.is_some_and(|rate| added.rates.contains(&rate));
    is_rate && added.connections.is_none_or(|connections| connections == point.connections)
}

fn conditions(PublishedAddition { rates, connections, condition, .. }: &PublishedAddition) -> String {
    let rates: Vec<String> = rates.iter().map(|rate| digits(*rate)).collect();
    let connections = connections.map(|connections| format!("{connections} conn."));
    let rates = format!("{}/s", rates.join(", "));
    let parts: Vec<String> = connections.into_iter().chain([rates]).chain(condition.clone()).collect();
    escape(&parts.join(", "))
}

pub(in crate::html) fn signed(value: Option<f64>) -> String {
    value.map_or_else(
        || NO_FIGURE.to_owned(),
        |value| {
            if value > 0.0 { format!("+{}", digits(value)) } else { digits(value) }
        },
    )
}

/// All latencies as a table that is not open at first.
fn every_figure(cells: &[Asked]) -> String {
    let row = |cell: Asked| {
        let figures = cell.latency_ms.map(|it| [it.mean, it.p50, it.p90, it.p99, it.p999, it.max]);
        let figures = figures.map_or_else(|| [(); 6].map(|()| no_figure(&cell)), |it| it.map(|it| plain(&digits(it))));
        name_cells(cell).into_iter().chain(figures).collect()
    };
    let rows: Vec<Vec<TableCell>> = listed(cells).map(row).collect();
    let header = header(&["mean", "p50", "p90", "p99", "p99.9", "max"]);
    format!("<details>\n<summary>Every latency, milliseconds</summary>\n{}</details>\n", table(&header, &rows))
}
