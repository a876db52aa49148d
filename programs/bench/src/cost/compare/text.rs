//! A comparison for people: what changed, and how much did not.

use std::fmt::Write;

use super::judge::{Change, Verdict};
use super::{Comparison, word};
use crate::cost::report::{Mode, ProxyKind};
use crate::table;

impl Comparison {
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "note: {note}");
        }
        let told: Vec<&Change> = self.changes.iter().filter(|change| change.verdict != Verdict::Noise).collect();
        if !told.is_empty() {
            let header = ["cell", "figure", "A", "B", "change", "rounds", "95 % of the difference", "verdict"];
            text.push_str(&table::render(&header, told.iter().map(|change| row(change))));
            text.push('\n');
        }
        let unsure = told.iter().filter(|change| change.verdict == Verdict::Unsure).count();
        let noise = self.changes.len() - told.len();
        let _ = writeln!(
            text,
            "{} figures: {} regressions beyond {} %, {noise} with no more than noise, {unsure} not judged, {} cells are new in B",
            self.changes.len(),
            self.regressions,
            self.tolerance_percent,
            self.new
        );
        text
    }
}

fn row(change: &Change) -> Vec<String> {
    let verdict = match change.verdict {
        Verdict::Regression => "REGRESSION",
        Verdict::Missing => "MISSING in B",
        Verdict::Worse => "worse, within tolerance",
        Verdict::Better => "better",
        Verdict::Noise => "noise",
        Verdict::PastKnee => "past its knee",
        Verdict::Unsure => "not judged",
    };
    let interval = match (change.difference, change.verdict) {
        (Some(ends), _) => format!("{} to {}", number(ends.low), number(ends.high)),
        (None, Verdict::Missing | Verdict::PastKnee) => String::new(),
        (None, Verdict::Unsure) => "too few rounds".to_owned(),
        (None, Verdict::Regression | Verdict::Worse | Verdict::Better | Verdict::Noise) => "measured once".to_owned(),
    };
    let [of_a, of_b] = change.rounds;
    let rounds = if of_a == of_b { of_a.to_string() } else { format!("{of_a} and {of_b}") };
    vec![
        cell(change),
        change.figure.to_owned(),
        number(change.before),
        change.after.map(number).unwrap_or_default(),
        change.percent.map(|percent| format!("{percent:+.1} %")).unwrap_or_default(),
        rounds,
        interval,
        verdict.to_owned(),
    ]
}

/// Three digits after the point of what is small.
fn number(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.3}") } else { format!("{value:.1}") }
}

fn cell(Change { scenario, proxy, mode, point, .. }: &Change) -> String {
    let mut text = format!("{} {}", word(scenario), word(proxy));
    if *proxy == ProxyKind::None || *mode != Mode::Both {
        let _ = write!(text, " {}", word(mode));
    }
    let _ = write!(text, ", {}", super::super::text::point(point));
    text
}
