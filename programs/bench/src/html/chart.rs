//! Charts as SVG inside the page: bars of a histogram, and lines over time.

use crate::percentiles::Bin;

/// Size of a chart and of the margins with its labels, in CSS pixels.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 36.0;

/// Ticks of an axis, about.
const TICKS: f64 = 5.0;

/// Width of a bar or height of one that is not empty, at least: a single straggler must be seen.
const BAR_MIN: f64 = 2.0;

/// Pixels between two labels of an axis, at least.
const LABELS_APART: f64 = 36.0;

/// A line of a chart.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// Seconds and values, in the order of time.
    pub(super) points: Vec<(f64, f64)>,
}

/// An axis: where a value stands in the picture.
struct Axis {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
}

impl Axis {
    fn across(from: f64, to: f64) -> Self {
        Self { from, to, start: LEFT, end: WIDTH - RIGHT }
    }

    fn upwards(from: f64, to: f64) -> Self {
        Self { from, to, start: HEIGHT - BOTTOM, end: TOP }
    }

    fn place(&self, value: f64) -> f64 {
        let span = self.to - self.from;
        let part = if span > 0.0 { (value - self.from) / span } else { 0.0 };
        self.start + part * (self.end - self.start)
    }
}

/// A histogram; both scales are logarithmic, so that one straggler among 178,000 can be seen, however late it is. Bins
/// are in ascending order.
pub(super) fn bars(bins: &[Bin]) -> String {
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else {
        return String::new();
    };
    let highest = bins.iter().map(|bin| bin.count).max().unwrap_or(0);
    let x = Axis::across(first.from_ms.log10(), last.to_ms.log10());
    let y = Axis::upwards(0.0, height_of(highest));
    let mut body = String::new();
    for count in powers_of_ten(1.0, float(highest)) {
        body.push_str(&grid_line(y.place((count + 1.0).log10()), &label(count)));
    }
    let mut free = f64::MIN;
    for milliseconds in one_two_five(first.from_ms, last.to_ms) {
        let at = x.place(milliseconds.log10());
        if at >= free {
            body.push_str(&mark(at, &label(milliseconds)));
            free = at + LABELS_APART;
        }
    }
    for Bin { from_ms, to_ms, count } in bins.iter().filter(|bin| bin.count > 0) {
        let (left, right) = (x.place(from_ms.log10()), x.place(to_ms.log10()));
        let width = (right - left - 1.0).max(BAR_MIN);
        let height = (y.start - y.place(height_of(*count))).max(BAR_MIN);
        body.push_str(&format!(
            "<rect class=\"bar\" x=\"{left:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\">\
             <title>{from_ms:.1} to {to_ms:.1} ms: {count}</title></rect>\n",
            y.start - height
        ));
    }
    picture("Workloads by latency", &body, "milliseconds, logarithmic; upwards: workloads, logarithmic")
}

/// Lines over time; `unit` is that of the values.
pub(super) fn lines(name: &str, unit: &str, series: &[Series]) -> String {
    let points = || series.iter().flat_map(|line| &line.points);
    let highest = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let latest = points().map(|(seconds, _)| *seconds).fold(0.0, f64::max);
    if latest <= 0.0 {
        return String::new();
    }
    let (x, y) = (Axis::across(0.0, latest), Axis::upwards(0.0, highest));
    let mut body = String::new();
    for value in even_ticks(highest) {
        body.push_str(&grid_line(y.place(value), &label(value)));
    }
    for seconds in even_ticks(latest) {
        body.push_str(&mark(x.place(seconds), &label(seconds)));
    }
    for (number, Series { name, points }) in series.iter().enumerate() {
        let path: Vec<String> =
            points.iter().map(|(seconds, value)| format!("{:.1},{:.1}", x.place(*seconds), y.place(*value))).collect();
        body.push_str(&format!("<polyline class=\"line{number}\" points=\"{}\"/>\n", path.join(" ")));
        body.push_str(&format!(
            "<text class=\"line{number}\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
            LEFT + 8.0 + 160.0 * float(u64::try_from(number).unwrap_or_default()),
            TOP + 10.0
        ));
    }
    picture(name, &body, &format!("seconds; upwards: {unit}"))
}

fn picture(name: &str, body: &str, legend: &str) -> String {
    let (middle, bottom) = (WIDTH / 2.0, HEIGHT - 4.0);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{name}\">\n{body}\
         <text class=\"centred\" x=\"{middle}\" y=\"{bottom}\">{legend}</text>\n</svg>\n"
    )
}

/// A line across the picture with its value at the left.
fn grid_line(y: f64, label: &str) -> String {
    let (right, text, baseline) = (WIDTH - RIGHT, LEFT - 6.0, y + 4.0);
    format!(
        "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\"/>\
         <text class=\"ends\" x=\"{text}\" y=\"{baseline:.1}\">{label}</text>\n"
    )
}

/// A value under the picture.
fn mark(x: f64, label: &str) -> String {
    format!("<text class=\"centred\" x=\"{x:.1}\" y=\"{:.1}\">{label}</text>\n", HEIGHT - BOTTOM + 15.0)
}

/// How high a count stands: its logarithm, shifted so that nothing has no height.
fn height_of(count: u64) -> f64 {
    (float(count) + 1.0).log10()
}

/// From zero up to `highest` in steps of 1, 2 or 5 times a power of ten.
fn even_ticks(highest: f64) -> Vec<f64> {
    if highest <= 0.0 {
        return vec![0.0];
    }
    let rough = highest / TICKS;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    std::iter::successors(Some(0.0), |tick| Some(tick + step)).take_while(|tick| *tick <= highest).collect()
}

fn powers_of_ten(from: f64, to: f64) -> impl Iterator<Item = f64> {
    std::iter::successors(Some(10_f64.powf(from.log10().floor())), |power| Some(power * 10.0))
        .take_while(move |power| *power <= to)
        .filter(move |power| *power >= from)
}

fn one_two_five(from: f64, to: f64) -> impl Iterator<Item = f64> {
    powers_of_ten(from / 10.0, to)
        .flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * power))
        .filter(move |value| (from..=to).contains(value))
}

/// A value without the digits that only floating point adds.
fn label(value: f64) -> String {
    format!("{}", (value * 1e4).round() / 1e4)
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture needs three digits")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentiles::histogram;

    #[test]
    fn ticks_are_round_numbers_that_reach_the_highest() {
        assert_eq!(even_ticks(2.0).into_iter().map(label).collect::<Vec<_>>(), ["0", "0.5", "1", "1.5", "2"]);
        assert_eq!(even_ticks(730.0), [0.0, 200.0, 400.0, 600.0]);
        assert_eq!(even_ticks(0.0), [0.0]);
        assert_eq!(
            one_two_five(40.0, 2400.0).map(label).collect::<Vec<_>>(),
            ["50", "100", "200", "500", "1000", "2000"]
        );
        assert_eq!(powers_of_ten(1.0, 178_000.0).count(), 6);
    }

    #[test]
    fn a_single_straggler_has_a_bar_at_the_far_end() {
        let mut latencies = vec![100_000; 178_000];
        latencies.push(32_000_000);
        let text = bars(&histogram(&latencies));
        assert_eq!(text.matches("<rect").count(), 2);
        let straggler = text.lines().rfind(|line| line.contains("<rect")).unwrap();
        assert!(straggler.contains("ms: 1</title>"), "{straggler}");
        let x: f64 = straggler.split("x=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        assert!(x > WIDTH * 0.9, "{straggler}");
    }

    #[test]
    fn a_line_runs_from_corner_to_corner() {
        let text = lines("CPU", "cores", &[Series { name: "servers", points: vec![(0.0, 0.0), (10.0, 1.6)] }]);
        assert!(text.contains("points=\"64.0,204.0 704.0,12.0\""), "{text}");
        assert!(text.contains(">servers</text>") && text.contains("upwards: cores"), "{text}");
    }

    #[test]
    fn nothing_makes_no_picture() {
        assert_eq!(bars(&[]), "");
        assert_eq!(lines("CPU", "cores", &[Series { name: "servers", points: Vec::new() }]), "");
    }
}
