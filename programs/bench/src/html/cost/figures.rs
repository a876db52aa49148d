//! Figures of cells, and lines through those that differ in one number alone.

use super::asked::Asked;
use crate::cost::median;
use crate::cost::report::{Cell, Mode, Point, ProxyKind, Quantiles, Round};
use crate::cost::text::{point, through};
use crate::html::chart::{Chart, Dimension, Hue, Line, Look, Scale, Spot, Stroke, grouped};
use crate::html::{Cell as TableCell, NO_FIGURE, plain};

/// A figure, and what it was in the lowest and the highest of the rounds that count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::html) struct Reading {
    pub(in crate::html) value: f64,
    pub(in crate::html) low: f64,
    pub(in crate::html) high: f64,
}

impl Reading {
    /// The median over the rounds that count; `None` of none.
    pub(in crate::html) fn of(cell: &Cell, read: impl Fn(&Round) -> Option<f64>) -> Option<Self> {
        let values: Vec<f64> = cell.sound().filter_map(read).collect();
        let value = median(values.iter().copied())?;
        let (low, high) = values.iter().fold((value, value), |(low, high), it| (low.min(*it), high.max(*it)));
        Some(Self { value, low, high })
    }

    /// Of the latencies of all rounds together, and of each.
    pub(in crate::html) fn latency(cell: &Cell, of: fn(&Quantiles) -> f64) -> Option<Self> {
        let value = of(cell.latency_ms.as_ref()?);
        let rounds = Self::of(cell, |round| round.latency_ms.as_ref().map(of));
        let (low, high) = rounds.map_or((value, value), |it| (it.low.min(value), it.high.max(value)));
        Some(Self { value, low, high })
    }

    /// With the lowest and the highest round where they are not the same.
    pub(in crate::html) fn text(&self) -> String {
        let [value, low, high] = [self.value, self.low, self.high].map(digits);
        if low == high { value } else { format!("{value}<br/><small>{low} to {high}</small>") }
    }
}

/// Cells of the same proxies.
#[derive(Debug, Clone)]
pub(in crate::html) struct Variant<'a> {
    pub(in crate::html) name: String,
    pub(in crate::html) proxy: ProxyKind,
    pub(in crate::html) mode: Mode,
    pub(in crate::html) cells: Vec<Asked<'a>>,
}

impl Variant<'_> {
    pub(super) fn look(&self) -> Look {
        let hue = match self.proxy {
            ProxyKind::None => Hue::Grey,
            ProxyKind::Native => Hue::Blue,
            ProxyKind::Envoy => Hue::Orange,
            ProxyKind::Target => Hue::Green,
        };
        let stroke = match self.mode {
            Mode::Baseline | Mode::Both | Mode::Gateway => Stroke::Solid,
            Mode::Client => Stroke::Dashed,
            Mode::Server | Mode::BaselineAgain => Stroke::Dotted,
        };
        Look::new(hue, stroke)
    }
}

/// In the order in which they come; the baseline is there once, however often it was measured.
pub(in crate::html) fn variants<'a>(cells: &[Asked<'a>]) -> Vec<Variant<'a>> {
    let mut variants: Vec<Variant> = Vec::new();
    for cell in cells.iter().filter(|cell| cell.mode != Mode::BaselineAgain) {
        match variants.iter_mut().find(|it| (it.proxy, it.mode) == (cell.proxy, cell.mode)) {
            Some(variant) => variant.cells.push(*cell),
            None => {
                let Cell { proxy, mode, .. } = **cell;
                variants.push(Variant { name: through(cell), proxy, mode, cells: vec![*cell] });
            }
        }
    }
    variants
}

/// What tables have a line of: point by point, the baseline once, however often it was measured.
pub(super) fn listed<'a>(cells: &[Asked<'a>]) -> impl Iterator<Item = Asked<'a>> {
    let points = points(cells);
    let mut cells: Vec<Asked> = cells.iter().copied().filter(|cell| cell.mode != Mode::BaselineAgain).collect();
    cells.sort_by_key(|cell| points.iter().position(|point| *point == cell.point));
    cells.into_iter()
}

/// How a line of a table begins, below [`header`].
pub(super) fn name_cells(cell: Asked) -> Vec<TableCell> {
    vec![plain(&point(&cell.point)), (through(&cell) + &cell.note(), "name")]
}

/// Names of the columns: point and proxies, and what else there is.
pub(super) fn header(figures: &[&str]) -> Vec<TableCell> {
    let named = [plain("point"), ("through".to_owned(), "name")];
    named.into_iter().chain(figures.iter().map(|figure| plain(figure))).collect()
}

/// The points of cells, each once.
pub(in crate::html) fn points(cells: &[Asked]) -> Vec<Point> {
    cells.iter().fold(Vec::new(), |mut points, cell| {
        if !points.contains(&cell.point) {
            points.push(cell.point);
        }
        points
    })
}

/// A number of a point that is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Connections,
    Rate,
}

impl By {
    fn of(self, point: &Point) -> Option<f64> {
        match self {
            Self::Connections => Some(f64::from(point.connections)),
            Self::Rate => point.rate,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Connections => Self::Rate,
            Self::Rate => Self::Connections,
        }
    }

    pub(super) fn axis(self) -> Dimension {
        match self {
            Self::Connections => Dimension::new("connections", Scale::Logarithmic),
            Self::Rate => Dimension::new("requests a second", Scale::Linear),
        }
    }
}

/// Cells that differ in one number, and in their proxies.
#[derive(Debug, Clone)]
pub(super) struct Sweep<'a> {
    pub(super) by: By,
    fixed: f64,
    pub(super) cells: Vec<Asked<'a>>,
}

impl<'a> Sweep<'a> {
    /// The longest there is; `None` if a number does not vary.
    pub(super) fn new(by: By, cells: &[Asked<'a>]) -> Option<Self> {
        let is_plain = |point: &Point| {
            let Point {
                connections: _,
                rate,
                services,
                scoped: _,
                requests,
                cpu_limit: _,
                memory_limit_mib: _,
                limited,
                changes_per_second,
            } = point;
            rate.is_some()
                && services.is_none()
                && requests.is_none()
                && limited.is_none()
                && changes_per_second.is_none()
        };
        let cells = || cells.iter().copied().filter(|cell| is_plain(&cell.point));
        let fixed_at = |fixed: f64| cells().filter(move |cell| by.other().of(&cell.point) == Some(fixed));
        let values = |fixed: f64| {
            let mut values: Vec<f64> = fixed_at(fixed).filter_map(|cell| by.of(&cell.point)).collect();
            values.sort_unstable_by(f64::total_cmp);
            values.dedup();
            values.len()
        };
        let fixed = cells().filter_map(|cell| by.other().of(&cell.point)).max_by_key(|fixed| values(*fixed))?;
        (values(fixed) > 1).then(|| Self { by, fixed, cells: fixed_at(fixed).collect() })
    }

    /// What does not vary.
    pub(super) fn at(&self) -> String {
        match self.by {
            By::Connections => format!("at {} requests a second", digits(self.fixed)),
            By::Rate => format!("over {} connections", digits(self.fixed)),
        }
    }

    /// The values of what varies, ascending, each once.
    pub(super) fn values(&self) -> Vec<f64> {
        let mut values: Vec<f64> = self.cells.iter().filter_map(|cell| self.by.of(&cell.point)).collect();
        values.sort_unstable_by(f64::total_cmp);
        values.dedup();
        values
    }

    /// A line of each variant of which there is a figure.
    pub(super) fn lines(&self, read: impl Fn(&Cell) -> Option<Reading>) -> Vec<Line> {
        let variants = variants(&self.cells);
        let line = |it: &Variant| line(&it.name, it.look(), &it.cells, |cell| self.by.of(&cell.point), &read);
        variants.iter().filter_map(line).collect()
    }

    /// A chart of a figure; what varies is told by its name.
    pub(super) fn chart(&self, name: &str, unit: &str, lines: Vec<Line>) -> String {
        let by = match self.by {
            By::Connections => "connections",
            By::Rate => "rate",
        };
        let name = format!("{name}, by {by}, {}", self.at());
        Chart { name, x: self.by.axis(), y: Dimension::new(unit, Scale::Fitting), lines }.render()
    }
}

/// A line through the figures of cells; `None` if there are none.
pub(super) fn line(
    name: &str,
    look: Look,
    cells: &[Asked],
    across: impl Fn(&Cell) -> Option<f64>,
    read: impl Fn(&Cell) -> Option<Reading>,
) -> Option<Line> {
    let spot = |cell: &Asked| {
        let reading = read(cell);
        let told = match (reading, &cell.void) {
            (Some(Reading { value, low, high }), _) => {
                format!("{} ({} to {}, {})", digits(value), digits(low), digits(high), cell.rounds())
            }
            (None, Some(void)) => format!("void: {void}"),
            (None, None) => return None,
        };
        let told = format!("{name}, {}: {told}", point(&cell.point));
        let band = reading.map(|it| (it.low, it.high));
        Some(Spot { x: across(cell)?, y: reading.map(|it| it.value), band, told })
    };
    let mut points: Vec<Spot> = cells.iter().filter_map(spot).collect();
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    points.iter().any(|spot| spot.y.is_some()).then(|| Line { name: name.to_owned(), look, points })
}

/// A line of published figures.
pub(super) fn published_line(name: &str, hue: Hue, figures: impl Iterator<Item = (f64, f64)>) -> Line {
    let points = figures.map(|(x, y)| {
        let told = format!("published: {name}, at {}: {}", digits(x), digits(y));
        Spot { x, y: Some(y), band: None, told }
    });
    Line { name: format!("published: {name}"), look: Look::new(hue, Stroke::Dotted), points: points.collect() }
}

/// A cell by its scenario's point and its proxies, for a list.
pub(super) fn named(cell: &Cell) -> String {
    format!("{}, {}", through(cell), point(&cell.point))
}

/// Three digits, or as many as a whole number has.
pub(in crate::html) fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        large if large >= 100.0 || large == large.trunc() => 0,
        middle if middle >= 10.0 => 1,
        small if small >= 1.0 => 2,
        _ => 3,
    };
    grouped(&format!("{value:.decimals$}"))
}

/// Of a figure that may not be there.
pub(super) fn reading_text(reading: Option<Reading>, cell: &Cell) -> TableCell {
    match reading {
        Some(reading) => (reading.text(), ""),
        None => no_figure(cell),
    }
}

/// What stands where a cell has no figure.
pub(super) fn no_figure(cell: &Cell) -> TableCell {
    if cell.void.is_some() { ("void".to_owned(), "missing") } else { (NO_FIGURE.to_owned(), "") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        let shown = [0.0, 0.123_4, 1.234, 12.34, 123.4, 32_051.9, 16.0, -0.5].map(digits);
        assert_eq!(shown, ["0", "0.123", "1.23", "12.3", "123", "32,052", "16", "-0.500"]);
    }
}
