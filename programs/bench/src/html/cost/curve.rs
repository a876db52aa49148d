//! Latency by percentile: the whole distribution at one point, with room for its tail.

use super::asked::Asked;
use super::figures::{By, Sweep, points, variants};
use crate::cost::report::Point;
use crate::cost::text::point;
use crate::html::chart::{Chart, Dimension, Line, Scale, Spot};

/// Connections and rate of the published studies, at which curves are shown if they were measured.
const USUAL: (u32, f64) = (16, 1000.0);

/// Places of the horizontal axis from one power of ten of the requests that took longer to the next.
const PLACES_PER_DECADE: f64 = 20.0;

/// Percentiles that are marked: the share of requests that took longer, and their names.
const MARKED: [(f64, &str); 7] = [
    (1.0, "0"),
    (0.5, "50 %"),
    (0.1, "90 %"),
    (0.01, "99 %"),
    (0.001, "99.9 %"),
    (0.0001, "99.99 %"),
    (0.000_01, "99.999 %"),
];

/// The curves at the usual point, or at the one in the middle; nothing, if there are no latencies.
pub(super) fn body(cells: &[Asked]) -> String {
    let Some(at) = chosen(cells) else { return String::new() };
    let cells: Vec<Asked> = cells.iter().copied().filter(|cell| cell.point == at).collect();
    let lines: Vec<Line> = variants(&cells)
        .iter()
        .filter_map(|variant| {
            let cell = variant.cells.first()?;
            let points = curve(&cell.histogram_us);
            (points.len() > 1).then(|| Line { name: variant.name.clone(), look: variant.look(), points })
        })
        .collect();
    let end = lines.iter().filter_map(|line| line.points.last()).map(|spot| spot.x).fold(0.0, f64::max);
    let ticks = MARKED.into_iter().map(|(longer, name)| (place(longer), name.to_owned()));
    let across = Dimension {
        label: "percentile of the requests".to_owned(),
        scale: Scale::Linear,
        ticks: ticks.filter(|(place, _)| *place <= end + 1e-9).collect(),
    };
    let name = format!("Latency by percentile, {}", point(&at));
    Chart { name, x: across, y: Dimension::new("milliseconds", Scale::Logarithmic), lines }.render()
}

fn chosen(cells: &[Asked]) -> Option<Point> {
    let measured: Vec<Asked> = cells.iter().copied().filter(|cell| !cell.histogram_us.is_empty()).collect();
    let usual = measured.iter().find(|cell| (cell.point.connections, cell.point.rate) == (USUAL.0, Some(USUAL.1)));
    let middle = || {
        let cells = Sweep::new(By::Connections, &measured).map_or_else(|| measured.clone(), |sweep| sweep.cells);
        let points = points(&cells);
        points.get(points.len() / 2).copied()
    };
    usual.map(|cell| cell.point).or_else(middle)
}

/// Where a percentile stands, by the share of requests that took longer.
fn place(longer: f64) -> f64 {
    -longer.log10()
}

/// The latency at evenly spaced places, up to the one at which a single request took longer.
fn curve(histogram_us: &[(u64, u64)]) -> Vec<Spot> {
    let total = histogram_us.iter().map(|(_, count)| float(*count)).sum::<f64>();
    let mut spots = Vec::new();
    let last = place(1.0 / total) + 1e-9;
    let mut places = (0..).map(|number| f64::from(number) / PLACES_PER_DECADE).take_while(|at| *at <= last).peekable();
    let mut seen = 0.0;
    for (microseconds, count) in histogram_us {
        seen += float(*count);
        let milliseconds = (float(*microseconds) / 1e3).max(1e-3);
        // As long as the share that took longer than this is not above the one asked for.
        let reaches = |at: &f64| total - seen <= total * 10_f64.powf(-at) * 1.000_001;
        while let Some(at) = places.next_if(reaches) {
            spots.push(Spot::plain(at, milliseconds));
        }
    }
    spots
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture needs three digits")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_reaches_as_far_as_there_are_requests_for_it() {
        let spots = curve(&[(1000, 900), (5000, 90), (20_000, 9), (80_000, 1)]);
        let at = |place: f64| spots.iter().rfind(|spot| spot.x <= place + 1e-9).and_then(|spot| spot.y);
        assert_eq!([0.0, 1.0, 1.1, 2.0, 2.1].map(at), [1.0, 1.0, 5.0, 5.0, 20.0].map(Some));
        assert!(spots.last().is_some_and(|spot| (spot.x - 3.0).abs() < 1e-9), "{spots:?}");
        assert_eq!(curve(&[]), []);
    }
}
