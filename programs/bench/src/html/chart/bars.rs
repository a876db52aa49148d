//! The bars of a histogram.

use super::axis::{Axis, Scale, label, powers_of_ten};
use super::{BOTTOM, LABELS_APART, LEFT, RIGHT, WIDTH, float, grid_line, mark, picture};
use crate::percentiles::Bin;

const HEIGHT: f64 = 240.0;
const TOP: f64 = 12.0;

/// Width of a bar or height of one that is not empty, at least: a single straggler must be seen.
const BAR_MIN: f64 = 2.0;

/// A histogram; both scales are logarithmic, so that one straggler among 178,000 can be seen, however late it is. Bins
/// that have no place on such a scale are not there.
pub(in crate::html) fn bars(name: &str, bins: &[Bin]) -> String {
    let has_place = |bin: &&Bin| bin.from_ms > 0.0 && bin.from_ms < bin.to_ms && bin.to_ms.is_finite();
    let bins: Vec<&Bin> = bins.iter().filter(has_place).collect();
    let highest = bins.iter().map(|bin| bin.count).max().unwrap_or(0);
    let edges: Vec<f64> = bins.iter().flat_map(|bin| [bin.from_ms, bin.to_ms]).collect();
    let axis = Axis::exact(Scale::Logarithmic, &edges, (LEFT, WIDTH - RIGHT));
    let Some(axis) = axis.filter(|_| highest > 0) else { return String::new() };
    let bottom = HEIGHT - BOTTOM;
    let x = |milliseconds: f64| axis.place(milliseconds);
    let y = |count: u64| bottom - height_of(count) / height_of(highest) * (bottom - TOP);
    let mut body = String::new();
    for count in powers_of_ten(1.0, float(highest)) {
        let place = bottom - (count + 1.0).log10() / height_of(highest) * (bottom - TOP);
        body.push_str(&grid_line(place, &label(count)));
    }
    let mut free = f64::MIN;
    for milliseconds in axis.one_two_five() {
        let at = x(milliseconds);
        if at >= free {
            body.push_str(&mark((at, bottom + 15.0), &label(milliseconds)));
            free = at + LABELS_APART;
        }
    }
    for Bin { from_ms, to_ms, count } in bins.into_iter().filter(|bin| bin.count > 0) {
        let (left, right) = (x(*from_ms), x(*to_ms));
        let width = (right - left - 1.0).max(BAR_MIN);
        let height = (bottom - y(*count)).max(BAR_MIN);
        body.push_str(&format!(
            "<rect class=\"bar\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{from_ms:.1} to {to_ms:.1} ms: {count}</title></rect>\n",
            bottom - height
        ));
    }
    picture(name, HEIGHT, &body, "milliseconds, logarithmic; upwards: workloads, logarithmic")
}

/// How high a count stands: its logarithm, shifted so that nothing has no height.
fn height_of(count: u64) -> f64 {
    (float(count) + 1.0).log10()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentiles::histogram;

    #[test]
    fn a_single_straggler_has_a_bar_at_the_far_end() {
        let mut latencies = vec![100_000; 178_000];
        latencies.push(32_000_000);
        let text = bars("Workloads by latency", &histogram(&latencies));
        assert_eq!(text.matches("<rect").count(), 2);
        let straggler = text.lines().rfind(|line| line.contains("<rect")).unwrap();
        assert!(straggler.contains("ms: 1</title>"), "{straggler}");
        let x: f64 = straggler.split("x=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(x > WIDTH * 0.9, "{straggler}");
    }

    #[test]
    fn nothing_makes_no_picture() {
        assert_eq!(bars("nothing", &[]), "");
        assert_eq!(bars("empty", &[Bin { from_ms: 1.0, to_ms: 2.0, count: 0 }]), "");
    }
}
