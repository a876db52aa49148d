//! What the scenario found: writes a second side by side, held against the bar.

use serde::Serialize;

use super::restart::Restart;
use super::tool::Told;
use super::{Load, Writer};
use crate::cost::median;
use crate::machine::Machine;
use crate::report::Versions;
use crate::table;

/// The report of this scenario.
pub(super) const JSON_HELP: &str = "\
What --json writes: schema (starling-bench-store/1), rounds, writes, callers, value_bytes, lines[] (writer, name, per_second,
p50_ms, p99_ms, ratio, bar, met; medians over the rounds, per_second_rounds what they are of; ratio is to the better of etcd's
two lines of puts), restart (entries, seconds until the server is ready again, seconds_rounds, bar, met), machine, versions.

The exit code is 1 when a bar was missed.";

/// Names the shape of the report; the number goes up when something is taken away or means something else.
const SCHEMA: &str = "starling-bench-store/1";

/// Starling's commits are at least so much of what etcd's own benchmark puts: a fifth is what a condition may cost.
const RATIO_MIN: f64 = 0.8;

const HEADER: [&str; 6] = ["durable writes through three members", "writes/s", "p50 ms", "p99 ms", "of etcd's", "bar"];

/// Everything found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Findings {
    schema: &'static str,
    rounds: u32,
    writes: u32,
    callers: u32,
    value_bytes: u32,
    lines: Vec<Line>,
    /// Absent when it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) restart: Option<Restart>,
    machine: Machine,
    versions: Versions,
}

/// The medians of one writer.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    writer: Writer,
    name: &'static str,
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// To the better of etcd's puts.
    ratio: f64,
    bar: Option<f64>,
    met: bool,
    per_second_rounds: Vec<f64>,
}

impl Writer {
    fn name(self) -> &'static str {
        match self {
            Self::PutOneConnection => "etcd's benchmark: put, one connection",
            Self::PutEachMember => "etcd's benchmark: put, one to each member",
            Self::TxnEachMember => "etcd's benchmark: txn-put, one to each member",
            Self::Commits => "starling: commits, a condition and a put each",
            Self::Api => "starling: registrations by HTTP at one server",
        }
    }

    fn bar(self) -> Option<f64> {
        (self == Self::Commits).then_some(RATIO_MIN)
    }
}

impl Findings {
    pub(super) fn new(all: &[(Writer, Told)], load: Load, rounds: u32, machine: Machine, versions: Versions) -> Self {
        let of = |writer: Writer| all.iter().filter(move |(who, _)| *who == writer).map(|(_, told)| *told);
        let rate = |writer: Writer| median(of(writer).map(|told| told.per_second)).unwrap_or_default();
        let etcd = rate(Writer::PutOneConnection).max(rate(Writer::PutEachMember));
        let line = |writer: Writer| {
            let per_second = rate(writer);
            let ratio = if etcd > 0.0 { per_second / etcd } else { 0.0 };
            Line {
                writer,
                name: writer.name(),
                per_second,
                p50_ms: median(of(writer).map(|told| told.p50_ms)).unwrap_or_default(),
                p99_ms: median(of(writer).map(|told| told.p99_ms)).unwrap_or_default(),
                ratio,
                bar: writer.bar(),
                met: writer.bar().is_none_or(|bar| ratio >= bar),
                per_second_rounds: of(writer).map(|told| told.per_second).collect(),
            }
        };
        let Load { writes, callers, value_bytes } = load;
        let lines = Writer::ALL.into_iter().map(line).collect();
        Self { schema: SCHEMA, rounds, writes, callers, value_bytes, lines, restart: None, machine, versions }
    }

    /// Whether the bars were met.
    pub(super) fn is_met(&self) -> bool {
        self.lines.iter().all(|line| line.met) && self.restart.as_ref().is_none_or(|restart| restart.met)
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let cells = |line: &Line| {
            let verdict = |bar: f64| format!("≥ {bar:.2} {}", table::verdict(line.met));
            vec![
                line.name.to_owned(),
                format!("{:.0}", line.per_second),
                table::milliseconds(line.p50_ms),
                table::milliseconds(line.p99_ms),
                format!("{:.2}", line.ratio),
                line.bar.map_or_else(|| "–".to_owned(), verdict),
            ]
        };
        let Self { rounds, writes, callers, value_bytes, versions, machine, .. } = self;
        let table = table::render(&HEADER, self.lines.iter().map(cells));
        let (build, machine) = (&versions.build, machine.line());
        let restart = self.restart.as_ref().map(|restart| format!("{}\n", restart.line())).unwrap_or_default();
        format!(
            "{table}\n{restart}medians of {rounds} rounds of {writes} writes of {value_bytes} bytes by {callers} callers; {build} build; {machine}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(commits: [f64; 3]) -> Findings {
        let told = |per_second| Told { per_second, p50_ms: 1.0, p99_ms: 2.0 };
        let of = |writer, rates: [f64; 3]| rates.map(|rate| (writer, told(rate)));
        let all = [
            of(Writer::PutOneConnection, [900.0, 800.0, 10_000.0]),
            of(Writer::PutEachMember, [1000.0, 1100.0, 100.0]),
            of(Writer::Commits, commits),
        ];
        let load = Load { writes: 1, callers: 1, value_bytes: 1 };
        Findings::new(&all.concat(), load, 3, Machine::read(), Versions::of(None))
    }

    #[test]
    fn the_median_is_held_against_the_better_of_etcds() {
        let met = findings([800.0, 1.0, 900.0]);
        assert!(met.is_met(), "{}", met.text());
        assert!(met.text().contains("0.80"), "{}", met.text());
        assert!(!findings([790.0, 1.0, 900.0]).is_met());
    }
}
