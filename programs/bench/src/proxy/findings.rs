//! What the scenario found: figures by plane, held against the bars.

use serde::Serialize;

use super::Row;
use super::figure::{Bar, Figure};
use super::measure::{Bench, Reading, Who};
use crate::cost::median;
use crate::machine::Machine;
use crate::report::Versions;
use crate::table;

/// The report of this scenario.
pub(super) const JSON_HELP: &str = "\
What --json writes: rounds, seconds, figures[] (figure, name, bar, native, envoy, times, met; native and envoy are medians
over the rounds, and native_rounds and envoy_rounds what they are of), readings[] (what else was measured on the way),
problems[] (why a figure may not be believed), machine, versions.

The exit code is 1 when a bar was missed, or a figure may not be believed.";

/// Everything found.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Findings {
    rounds: u32,
    seconds: f64,
    figures: Vec<Line>,
    readings: Vec<Reading>,
    problems: Vec<String>,
    machine: Machine,
    versions: Versions,
}

/// A figure of both planes.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    figure: Figure,
    name: &'static str,
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
        let (name, bar) = (figure.name(), figure.bar());
        Self { figure, name, bar, native, envoy, times, met: bar.is_met(native, envoy), native_rounds, envoy_rounds }
    }

    fn cells(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
        vec![
            self.name.to_owned(),
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

    /// For people.
    pub(super) fn text(&self) -> String {
        let header = ["two hops, mTLS, L7 authorisation", "Envoy", "native", "times", "bar", "verdict"];
        let mut text = table::render(&header, self.figures.iter().map(Line::cells));
        text.push('\n');
        for problem in &self.problems {
            text.push_str(&format!("NOT TO BE BELIEVED: {problem}\n"));
        }
        let envoy = self.versions.envoy.as_deref().unwrap_or("–");
        text.push_str(&format!(
            "medians of {} rounds of {} s, one worker each; Envoy {envoy}; {} build; {}\n",
            self.rounds,
            self.seconds,
            self.versions.build,
            self.machine.line()
        ));
        text
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
mod tests {
    use super::*;

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
