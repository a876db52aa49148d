//! What the scenario found: figures by plane, held against the bars.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::Row;
use super::figure::{Bar, Figure};
use super::measure::{Bench, Reading, Who};
use crate::cost::median;
use crate::machine::Machine;
use crate::report::Versions;
use crate::table;

/// The report of this scenario.
pub(super) const JSON_HELP: &str = "\
What --json writes: schema (starling-bench-proxy/1), rounds, seconds, figures[] (figure, name, bar,
native, envoy, times, met; native and envoy are medians over the rounds, and native_rounds and
envoy_rounds what they are of), readings[] (what else was measured on the way), problems[] (why a
figure may not be believed), machine, versions.

The exit code is 1 when a bar was missed, or a figure may not be believed.";

/// Names the shape of the report; the number goes up when something is taken away or means something else.
pub(crate) const SCHEMA: &str = "starling-bench-proxy/1";

/// Over the figures, for people.
pub(crate) const FIGURES_HEADER: [&str; 6] =
    ["two hops, mTLS, L7 authorisation", "Envoy", "native", "times", "bar", "verdict"];

/// Everything found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Findings {
    /// [`SCHEMA`].
    schema: String,
    rounds: u32,
    seconds: f64,
    figures: Vec<Line>,
    readings: Vec<Reading>,
    problems: Vec<String>,
    machine: Machine,
    versions: Versions,
}

/// A figure of both planes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Line {
    figure: Figure,
    name: Cow<'static, str>,
    bar: Bar,
    native: Option<f64>,
    envoy: Option<f64>,
    /// The native plane's in Envoy's.
    times: Option<f64>,
    met: bool,
    native_rounds: Vec<f64>,
    envoy_rounds: Vec<f64>,
}

impl Line {
    fn new(figure: Figure, native_rounds: Vec<f64>, envoy_rounds: Vec<f64>) -> Self {
        let (native, envoy) = (median(native_rounds.iter().copied()), median(envoy_rounds.iter().copied()));
        let times = native.zip(envoy).filter(|(_, envoy)| *envoy != 0.0).map(|(native, envoy)| native / envoy);
        let (name, bar) = (Cow::Borrowed(figure.name()), figure.bar());
        Self { figure, name, bar, native, envoy, times, met: bar.is_met(native, envoy), native_rounds, envoy_rounds }
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        vec![
            self.name.clone().into_owned(),
            number(self.envoy),
            number(self.native),
            self.times.map_or_else(|| "–".to_owned(), |times| format!("{times:.2}")),
            self.bar.text(),
            table::verdict(self.met).to_owned(),
        ]
    }
}

impl Findings {
    pub(super) fn new(
        bench: &Bench,
        rows: &[Row],
        rounds: u32,
        seconds: f64,
        machine: Machine,
        versions: Versions,
    ) -> Self {
        let line = |figure: Figure| {
            let of = |who| bench.readings.iter().filter(move |it| it.who == who && it.figure == Some(figure));
            let values = |who| of(who).map(|reading| reading.value).collect();
            Line::new(figure, values(Who::Native), values(Who::Envoy))
        };
        let wanted = Figure::ALL.into_iter().filter(|figure| rows.contains(&figure.row()));
        Self {
            schema: SCHEMA.to_owned(),
            rounds,
            seconds,
            figures: wanted.map(line).collect(),
            readings: bench.readings.clone(),
            problems: bench.problems.clone(),
            machine,
            versions,
        }
    }

    /// Whether every bar was met, by figures that may be believed.
    pub(super) fn is_met(&self) -> bool {
        self.problems.is_empty() && self.figures.iter().all(|line| line.met)
    }

    /// Why figures may not be believed.
    pub(crate) fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The figures under [`FIGURES_HEADER`], and whether the bar of each was met.
    pub(crate) fn rows(&self) -> Vec<(Vec<String>, bool)> {
        self.figures.iter().map(|line| (line.cells(), line.met)).collect()
    }

    /// How and where they were measured, in one line.
    pub(crate) fn origin(&self) -> String {
        let envoy = self.versions.envoy.as_deref().unwrap_or("–");
        format!(
            "medians of {} rounds of {} s, one worker each; Envoy {envoy}; {} build; {}",
            self.rounds,
            self.seconds,
            self.versions.build,
            self.machine.line()
        )
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = table::render(&FIGURES_HEADER, self.figures.iter().map(Line::cells));
        text.push('\n');
        for problem in &self.problems {
            text.push_str(&format!("NOT TO BE BELIEVED: {problem}\n"));
        }
        text + &self.origin() + "\n"
    }
}

/// As many digits as tell something.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 1000.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// One bar that was met, and one that was missed.
    pub(crate) fn example() -> Findings {
        Findings {
            schema: SCHEMA.to_owned(),
            rounds: 3,
            seconds: 1.5,
            figures: vec![
                Line::new(Figure::RequestsPerSecond, vec![2100.0], vec![1000.0]),
                Line::new(Figure::ChangeErrors, vec![7.0], vec![0.0]),
            ],
            readings: Vec::new(),
            problems: vec!["throughput: <late>".to_owned()],
            machine: Machine::read(),
            versions: Versions::of(None),
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = serde_json::to_string(&example()).unwrap();
        assert_eq!(serde_json::from_str::<Findings>(&text).unwrap(), example());
    }

    #[test]
    fn the_median_of_the_rounds_is_held_against_the_bar() {
        let line = Line::new(Figure::RequestsPerSecond, vec![900.0, 2100.0, 2000.0], vec![1000.0, 1100.0, 500.0]);
        assert_eq!((line.native, line.envoy, line.times, line.met), (Some(2000.0), Some(1000.0), Some(2.0), true));
        assert_eq!(median([4.0, 1.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn what_was_not_measured_is_missed() {
        let line = Line::new(Figure::ChangeErrors, Vec::new(), vec![0.0]);
        assert!(!line.met);
        assert_eq!(line.cells()[5], "MISSED");
    }
}
