//! Charts as SVG inside the page: lines with bands, and bars of a histogram. What a pointer shows is in titles; the name
//! of a chart is there for who cannot see it.

mod axis;
mod bars;
mod look;

use axis::{Axis, label};
pub(super) use axis::{Scale, grouped};
pub(super) use bars::bars;
pub(super) use look::{Hue, Look, Stroke};

use super::escape;

/// Width of a chart, and of the margins with its labels, in CSS pixels.
const WIDTH: f64 = 720.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const BOTTOM: f64 = 36.0;

/// Height of the part in which lines are.
const PLOT: f64 = 210.0;

/// From the outermost points to the margins, where there is no zero to begin from.
const PADDING: f64 = 14.0;

/// Height of a line of the legend, and of what is written above the vertical axis.
const LEGEND_LINE: f64 = 17.0;

/// Where its lines begin.
const LEGEND_LEFT: f64 = 4.0;

/// Widths in the legend: of a letter, about, and of a line's sample.
const LETTER: f64 = 6.1;
const SAMPLE: f64 = 26.0;

/// Pixels between two labels of an axis, at least.
const LABELS_APART: f64 = 36.0;

/// Lines by one number.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) name: String,
    pub(super) x: Dimension,
    pub(super) y: Dimension,
    pub(super) lines: Vec<Line>,
}

/// What an axis shows.
#[derive(Debug, Clone)]
pub(super) struct Dimension {
    /// With its unit.
    pub(super) label: String,
    pub(super) scale: Scale,
    /// Values that are marked, with what stands there; empty of round ones.
    pub(super) ticks: Vec<(f64, String)>,
}

/// A line of a chart.
#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) name: String,
    pub(super) look: Look,
    /// Ascending.
    pub(super) points: Vec<Spot>,
}

/// A point of a line.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Spot {
    pub(super) x: f64,
    /// Absent where there should be a figure and is none: the line is interrupted.
    pub(super) y: Option<f64>,
    /// Lowest and highest.
    pub(super) band: Option<(f64, f64)>,
    /// What a pointer on it shows; without it there is no mark.
    pub(super) told: String,
}

impl Dimension {
    pub(super) fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.to_owned(), scale, ticks: Vec::new() }
    }
}

impl Spot {
    /// Without a mark.
    pub(super) fn plain(x: f64, y: f64) -> Self {
        Self { x, y: Some(y), ..Self::default() }
    }
}

impl Chart {
    /// The picture with its name above; nothing, if no line has a figure.
    pub(super) fn render(&self) -> String {
        let lines = self.lines.iter().map(Line::with_places).collect();
        Self { lines, ..self.clone() }.draw()
    }

    fn draw(&self) -> String {
        let spots = || self.lines.iter().flat_map(|line| &line.points);
        let with_figure = || spots().filter(|spot| spot.y.is_some());
        let across: Vec<f64> = spots().map(|spot| spot.x).collect();
        let upwards: Vec<f64> = with_figure()
            .flat_map(|spot| spot.y.into_iter().chain(spot.band.into_iter().flat_map(|it| [it.0, it.1])))
            .collect();
        let (legend, top) = self.legend();
        let bottom = top + PLOT;
        let left = if self.x.scale == Scale::Logarithmic { LEFT + PADDING } else { LEFT };
        let Some(x) = Axis::exact(self.x.scale, &across, (left, WIDTH - RIGHT - PADDING)) else { return String::new() };
        let Some(y) = Axis::round(self.y.scale, &upwards, (bottom, top)) else { return String::new() };
        let mut body = legend;
        let scale = if y.is_logarithmic() { ", logarithmic" } else { "" };
        body.push_str(&format!("<text x=\"4\" y=\"{:.1}\">↑ {}{scale}</text>\n", top - 11.0, escape(&self.y.label)));
        for value in y.ticks() {
            body.push_str(&grid_line(y.place(value), &label(value)));
        }
        body.push_str(&self.marks_across(&x, &across, bottom));
        for line in &self.lines {
            body.push_str(&line.band(&x, &y));
        }
        for line in &self.lines {
            body.push_str(&line.render(&x, &y, bottom));
        }
        let scale = if x.is_logarithmic() { ", logarithmic" } else { "" };
        let name = escape(&self.name);
        let picture = picture(&name, bottom + BOTTOM, &body, &format!("{}{scale}", escape(&self.x.label)));
        format!("<figure>\n<figcaption>{name}</figcaption>\n{picture}</figure>\n")
    }

    /// What stands under the horizontal axis, as far as there is room.
    fn marks_across(&self, axis: &Axis, values: &[f64], bottom: f64) -> String {
        let own = || axis.ticks_at(values).into_iter().map(|value| (value, label(value))).collect();
        let ticks: Vec<(f64, String)> = if self.x.ticks.is_empty() { own() } else { self.x.ticks.clone() };
        let mut free = f64::MIN;
        let mut text = String::new();
        for (value, label) in ticks {
            let at = axis.place(value);
            if at >= free {
                text.push_str(&mark((at, bottom + 15.0), &label));
                free = at + LABELS_APART;
            }
        }
        text
    }

    /// Names of the lines beside samples of them, and where the plot begins below.
    fn legend(&self) -> (String, f64) {
        let (mut x, mut y) = (LEGEND_LEFT, LEGEND_LINE - 4.0);
        let mut text = String::new();
        for Line { name, look, points } in &self.lines {
            let width = SAMPLE + 8.0 + LETTER * length(name);
            if x + width > WIDTH && x > LEGEND_LEFT {
                (x, y) = (LEGEND_LEFT, y + LEGEND_LINE);
            }
            let (class, dashes, middle) = (look.class(), look.dashes(), y - 4.0);
            if points.len() > 1 {
                text.push_str(&format!("<path class=\"line {class}\"{dashes} d=\"M{x:.1} {middle:.1}h{SAMPLE}\"/>\n"));
            }
            if points.iter().any(|spot| !spot.told.is_empty()) {
                text.push_str(&look.mark((x + SAMPLE / 2.0, middle), ""));
            }
            text.push_str(&format!("<text x=\"{:.1}\" y=\"{y:.1}\">{}</text>\n", x + SAMPLE + 6.0, escape(name)));
            x += width + 14.0;
        }
        (text, y + 2.0 * LEGEND_LINE)
    }
}

impl Line {
    /// Without what has no place in a picture, such as what came of a division by nothing.
    fn with_places(&self) -> Self {
        let spots = self.points.iter().filter(|spot| spot.x.is_finite()).map(|spot| Spot {
            y: spot.y.filter(|y| y.is_finite()),
            band: spot.band.filter(|(low, high)| low.is_finite() && high.is_finite()),
            ..spot.clone()
        });
        Self { points: spots.collect(), ..self.clone() }
    }

    /// The points that have a figure, in runs without a gap.
    fn runs(&self) -> impl Iterator<Item = &[Spot]> {
        self.points.split(|spot| spot.y.is_none()).filter(|run| !run.is_empty())
    }

    fn band(&self, x: &Axis, y: &Axis) -> String {
        let mut text = String::new();
        for run in self.runs() {
            let banded = || run.iter().filter_map(|spot| Some((spot.x, spot.band?)));
            let upper = banded().map(|(at, (_, high))| (at, high));
            let lower: Vec<(f64, f64)> = banded().map(|(at, (low, _))| (at, low)).collect();
            let corners = path(upper.chain(lower.iter().rev().copied()), x, y);
            match lower.as_slice() {
                [] => {}
                // One point has no area: a stroke from its lowest to its highest.
                [_] => text.push_str(&format!("<path class=\"whisker {}\" d=\"M{corners}\"/>\n", self.look.class())),
                _ => text.push_str(&format!("<path class=\"band {}\" d=\"M{corners}z\"/>\n", self.look.class())),
            }
        }
        text
    }

    fn render(&self, x: &Axis, y: &Axis, bottom: f64) -> String {
        let (class, dashes) = (self.look.class(), self.look.dashes());
        let mut text = String::new();
        for run in self.runs().filter(|run| run.len() > 1) {
            let line = path(run.iter().filter_map(|spot| Some((spot.x, spot.y?))), x, y);
            text.push_str(&format!("<path class=\"line {class}\"{dashes} d=\"M{line}\"/>\n"));
        }
        for Spot { x: across, y: upwards, told, .. } in self.points.iter().filter(|spot| !spot.told.is_empty()) {
            let (at, told) = (x.place(*across), escape(told));
            text.push_str(&match upwards {
                Some(value) => self.look.mark((at, y.place(*value)), &told),
                None => format!(
                    "<path class=\"cross {class}\" d=\"M{:.1} {:.1}l8 8m-8 0l8 -8\"><title>{told}</title></path>\n",
                    at - 4.0,
                    bottom - 4.0
                ),
            });
        }
        text
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>, x: &Axis, y: &Axis) -> String {
    let places: Vec<String> = points.map(|(at, value)| format!("{:.1} {:.1}", x.place(at), y.place(value))).collect();
    places.join("L")
}

fn picture(name: &str, height: f64, body: &str, below: &str) -> String {
    let (middle, bottom) = (f64::midpoint(LEFT, WIDTH - RIGHT), height - 4.0);
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{name}\">\n{body}\
         <text class=\"centred\" x=\"{middle}\" y=\"{bottom}\">{below}</text>\n</svg>\n"
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
fn mark((x, y): (f64, f64), label: &str) -> String {
    format!("<text class=\"centred\" x=\"{x:.1}\" y=\"{y:.1}\">{label}</text>\n")
}

fn length(text: &str) -> f64 {
    float(u64::try_from(text.chars().count()).unwrap_or_default())
}

#[expect(clippy::cast_precision_loss, reason = "a place in a picture needs three digits")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::percentiles::Bin;

    fn chart(points: Vec<Spot>) -> Chart {
        Chart {
            name: "CPU".to_owned(),
            x: Dimension::new("seconds", Scale::Linear),
            y: Dimension::new("cores", Scale::Linear),
            lines: vec![Line {
                name: "servers & agents".to_owned(),
                look: Look::new(Hue::Blue, Stroke::Dashed),
                points,
            }],
        }
    }

    fn spot(x: f64, y: f64) -> Spot {
        Spot { x, y: Some(y), band: Some((y - 0.5, y + 0.5)), told: format!("at {x}") }
    }

    #[test]
    fn a_line_runs_from_corner_to_corner() {
        let text = chart(vec![Spot::plain(0.0, 0.0), Spot::plain(10.0, 2.0)]).render();
        assert!(text.contains("d=\"M64.0 257.0L690.0 47.0\""), "{text}");
        assert!(text.contains(">servers &amp; agents</text>") && text.contains("↑ cores"), "{text}");
        assert!(text.contains("stroke-dasharray") && text.contains("aria-label=\"CPU\""), "{text}");
        assert_eq!(text.matches("mark").count(), 0, "nothing is told of its points: {text}");
    }

    #[test]
    fn rounds_make_a_band_around_the_line() {
        let text = chart(vec![spot(0.0, 1.0), spot(10.0, 1.5)]).render();
        assert!(text.contains("class=\"band blue\" d=\"M64.0 99.5L690.0 47.0L690.0 152.0L64.0 204.5z\""), "{text}");
        assert_eq!(text.matches("<title>at 10</title>").count(), 1, "{text}");
        let text = chart(vec![spot(10.0, 1.5)]).render();
        assert!(text.contains("class=\"whisker blue\""), "{text}");
    }

    #[test]
    fn where_a_figure_is_missing_the_line_is_interrupted_and_says_why() {
        let gap = Spot { x: 5.0, told: "void: <late>".to_owned(), ..Spot::default() };
        let text = chart(vec![spot(0.0, 1.0), spot(2.0, 1.0), gap.clone(), spot(8.0, 1.0), spot(10.0, 1.0)]).render();
        assert_eq!((text.matches("class=\"band").count(), text.matches("class=\"line").count()), (2, 3), "{text}");
        assert!(text.contains("class=\"cross blue\"") && text.contains("<title>void: &lt;late&gt;</title>"), "{text}");
        // Also at the end, where it has a place of its own.
        let text = chart(vec![spot(0.0, 1.0), spot(2.0, 1.0), gap]).render();
        assert!(text.contains("class=\"cross blue\" d=\"M686.0"), "{text}");
    }

    #[test]
    fn a_long_legend_takes_several_lines_and_the_plot_begins_below() {
        let mut chart = chart(vec![spot(1.0, 1.0)]);
        let (_, first) = chart.legend();
        chart.lines =
            (0..8).map(|number| Line { name: format!("a line of name {number}"), ..chart.lines[0].clone() }).collect();
        let (text, second) = chart.legend();
        assert_eq!(second, first + LEGEND_LINE, "{text}");
        let right = text.split(" x=\"").skip(1).map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
        assert!(right.fold(0.0, f64::max) < WIDTH - 100.0, "{text}");
    }

    #[test]
    fn labels_do_not_stand_on_each_other() {
        let mut chart = chart([100.0, 101.0, 5000.0].map(|x| spot(x, 1.0)).to_vec());
        chart.x.scale = Scale::Logarithmic;
        let text = chart.render();
        assert!(
            text.contains(">100</text>") && !text.contains(">101</text>") && text.contains(">5,000</text>"),
            "{text}"
        );
    }

    #[test]
    fn numbers_without_a_place_are_not_drawn_and_end_nothing() {
        let nasty = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::MAX, f64::MIN, 5e-324, 0.0, -1.0];
        for scale in [Scale::Linear, Scale::Logarithmic, Scale::Fitting] {
            for (one, other) in nasty.into_iter().flat_map(|one| nasty.map(|other| (one, other))) {
                let told = || "a figure".to_owned();
                let spots = [(one, other), (other, one), (1.0, 1.0), (2.0, one)];
                let spots = spots.map(|(x, y)| Spot { x, y: Some(y), band: Some((other, y)), told: told() });
                let mut chart = chart(spots.to_vec());
                (chart.x.scale, chart.y.scale) = (scale, scale);
                let text = chart.render();
                assert!(!text.contains("NaN") && !text.contains("inf"), "{one} and {other} on {scale:?}: {text}");
                assert!(text.contains("<title>a figure</title>"), "what has a place is there: {text}");
                let bin = |from_ms: f64, to_ms: f64| Bin { from_ms, to_ms, count: u64::MAX };
                let text = bars("bins", &[bin(one, other), bin(other, one), bin(1.0, 2.0)]);
                assert!(!text.contains("NaN") && !text.contains("inf") && text.contains("<rect"), "{text}");
            }
        }
    }

    #[test]
    fn nothing_makes_no_picture() {
        assert_eq!(chart(Vec::new()).render(), "");
        assert_eq!(chart(vec![Spot { x: 1.0, ..Spot::default() }]).render(), "");
    }
}
