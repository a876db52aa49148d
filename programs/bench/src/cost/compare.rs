//! `starling bench compare`: what changed between two reports, and whether it is more than noise.
//!
//! A figure of a cell is the median of what its rounds measured. The difference of two such medians has a 95 % interval by
//! resampling the rounds of each report; it is more than noise if that interval has no 0 in it and the difference is above
//! the noise floor of both reports. A regression is such a difference, for the worse, beyond the tolerance.

mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Serialize;

use super::report::{
    Cell, CostReport, CostScenario, Floor, Mode, Point, ProxyKind, Quantiles, Round, SCHEMA, Settings,
};
use super::statistics::{Interval, difference_of_medians};
use crate::machine::Machine;
use crate::report::read_json;

/// Exit code when the files cannot be compared.
const EXIT_NOT_COMPARABLE: u8 = 2;

/// The change for the worse that is let pass, in percent, if none is named.
const TOLERANCE_DEFAULT_PERCENT: f64 = 5.0;

const AFTER_HELP: &str = "\
A figure is the median of the rounds. It changed if the 95 % interval of the difference, by resampling the rounds, has no
0 in it, and the difference is above the noise floors of both reports.

The exit code is 0 when nothing is worse by more than the tolerance, 1 when something is or is missing in B, and 2 when
the files are no reports of what a mesh costs, or were measured under different settings.";

/// Say what changed between two reports of what a mesh costs, and whether it is more than noise
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct CompareArgs {
    /// The report before
    #[arg(value_name = "A.json")]
    before: PathBuf,
    /// The report after
    #[arg(value_name = "B.json")]
    after: PathBuf,
    /// How much worse a figure may be before it is a regression
    #[arg(long, value_name = "PERCENT", default_value_t = TOLERANCE_DEFAULT_PERCENT, value_parser = tolerance)]
    tolerance: f64,
    /// How to print it
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Table,
    Json,
}

fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("a percentage from 0 to 1000".to_owned()),
    }
}

/// What came of it for one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// Worse, by more than noise and the tolerance.
    Regression,
    /// In A, and not in B.
    Missing,
    /// Worse by more than noise, within the tolerance.
    Worse,
    Better,
    /// No more than noise.
    Noise,
    /// Too few rounds to tell.
    Unsure,
}

impl Verdict {
    fn fails(self) -> bool {
        matches!(self, Self::Regression | Self::Missing)
    }
}

/// Which way is worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worse {
    Higher,
    Lower,
}

/// A figure of a round.
struct Figure {
    name: &'static str,
    worse: Worse,
    of: fn(&Round) -> Option<f64>,
    /// Below what it is noise; 0 of what has no floor.
    floor: fn(&Floor) -> f64,
}

fn latency(round: &Round, of: fn(&Quantiles) -> f64) -> Option<f64> {
    round.latency_ms.as_ref().map(of)
}

#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
fn failed_percent(round: &Round) -> Option<f64> {
    (round.requests > 0).then(|| 100.0 * round.errors as f64 / round.requests as f64)
}

const FIGURES: [Figure; 9] = [
    Figure { name: "p50_ms", worse: Worse::Higher, of: |round| latency(round, |it| it.p50), floor: |it| it.p50 },
    Figure { name: "p90_ms", worse: Worse::Higher, of: |round| latency(round, |it| it.p90), floor: |it| it.p90 },
    Figure { name: "p99_ms", worse: Worse::Higher, of: |round| latency(round, |it| it.p99), floor: |it| it.p99 },
    Figure { name: "p999_ms", worse: Worse::Higher, of: |round| latency(round, |it| it.p999), floor: |it| it.p999 },
    Figure { name: "rate", worse: Worse::Lower, of: |round| Some(round.rate), floor: |_| 0.0 },
    Figure { name: "failed_percent", worse: Worse::Higher, of: failed_percent, floor: |_| 0.0 },
    Figure {
        name: "cpu_us_per_request",
        worse: Worse::Higher,
        of: |round| round.proxies?.cpu_us_per_request,
        floor: |_| 0.0,
    },
    Figure {
        name: "caller_resident_mb",
        worse: Worse::Higher,
        of: |round| round.proxies?.caller_resident_mb,
        floor: |_| 0.0,
    },
    Figure {
        name: "service_resident_mb",
        worse: Worse::Higher,
        of: |round| round.proxies?.service_resident_mb,
        floor: |_| 0.0,
    },
];

/// One figure of one cell, in both reports.
#[derive(Debug, Serialize)]
struct Change {
    scenario: CostScenario,
    proxy: ProxyKind,
    mode: Mode,
    point: Point,
    figure: &'static str,
    before: f64,
    /// Absent if there is none.
    after: Option<f64>,
    /// Of the difference of the medians; absent of too few rounds.
    difference: Option<Ends>,
    /// In percent of what it was; absent if that was 0.
    percent: Option<f64>,
    floor: f64,
    verdict: Verdict,
}

/// A difference and its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Ends {
    value: f64,
    low: f64,
    high: f64,
}

/// What `-o json` prints.
#[derive(Debug, Serialize)]
struct Comparison {
    tolerance_percent: f64,
    regressions: usize,
    changes: Vec<Change>,
    /// Cells that B has and A has not.
    new: usize,
    /// What has to be known to believe it.
    notes: Vec<String>,
}

/// Compares.
///
/// # Errors
/// When nothing can be printed.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let read = || -> anyhow::Result<Comparison> {
        let (before, after) = (read(&args.before)?, read(&args.after)?);
        compare(&before, &after, args.tolerance)
    };
    let comparison = match read() {
        Ok(comparison) => comparison,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(EXIT_NOT_COMPARABLE));
        }
    };
    match args.output {
        Output::Table => print!("{}", comparison.text()),
        Output::Json => println!("{}", serde_json::to_string_pretty(&comparison)?),
    }
    Ok(if comparison.regressions == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads a report.
///
/// # Errors
/// When it is none.
pub(super) fn read(path: &Path) -> anyhow::Result<CostReport> {
    let shown = path.display();
    let json = read_json(path)?;
    match json["schema"].as_str() {
        Some(SCHEMA) => serde_json::from_value(json).with_context(|| format!("{shown} is not as {SCHEMA} has it")),
        Some(other) => bail!("{shown} is a report of schema {other:?}; {SCHEMA:?} can be compared"),
        None => bail!("{shown} is no report of what a mesh costs: it names no schema ({SCHEMA:?})"),
    }
}

fn compare(before: &CostReport, after: &CostReport, tolerance_percent: f64) -> anyhow::Result<Comparison> {
    fit(&before.settings, &after.settings)?;
    let mut changes = Vec::new();
    let mut common = 0;
    for old in &before.cells {
        let new = after.cells.iter().find(|new| is_same(old, new));
        common += usize::from(new.is_some());
        for figure in &FIGURES {
            changes.extend(change(figure, old, new, (before, after), tolerance_percent));
        }
    }
    if common == 0 {
        bail!("the two reports have no measurement in common");
    }
    let new = after.cells.iter().filter(|new| !before.cells.iter().any(|old| is_same(old, new))).count();
    let regressions = changes.iter().filter(|change| change.verdict.fails()).count();
    Ok(Comparison { tolerance_percent, regressions, changes, new, notes: notes(before, after) })
}

/// What was asked of both has to be the same; how often and how long it was measured need not.
fn fit(before: &Settings, after: &Settings) -> anyhow::Result<()> {
    let asked = |settings: &Settings| {
        let Settings { protocol, payload_bytes, mtls, access_log, tracing, policies, workers, .. } = settings.clone();
        [
            ("protocol", protocol),
            ("payload_bytes", payload_bytes.to_string()),
            ("mtls", mtls.to_string()),
            ("access_log", access_log.to_string()),
            ("tracing", tracing.to_string()),
            ("policies", policies.to_string()),
            ("workers", workers.map_or_else(|| "unknown".to_owned(), |workers| workers.to_string())),
        ]
    };
    let differing: Vec<String> = asked(before)
        .into_iter()
        .zip(asked(after))
        .filter(|(before, after)| before != after)
        .map(|((name, before), (_, after))| format!("{name} ({before} and {after})"))
        .collect();
    if !differing.is_empty() {
        bail!("the two reports were measured under different settings: {}", differing.join(", "));
    }
    Ok(())
}

fn notes(before: &CostReport, after: &CostReport) -> Vec<String> {
    let mut notes = Vec::new();
    let hardware = |report: &CostReport| {
        let Machine { cpu, model, cores, memory, .. } = report.machine.clone();
        (cpu, model, cores, memory)
    };
    if hardware(before) != hardware(after) {
        notes.push("the two were measured on different machines, or on one that was changed".to_owned());
    }
    for (name, report) in [("A", before), ("B", after)] {
        notes.extend(report.missing.iter().map(|missing| format!("{name} lacks: {missing}")));
    }
    notes
}

fn is_same(one: &Cell, other: &Cell) -> bool {
    (one.scenario, one.proxy, one.mode, one.point) == (other.scenario, other.proxy, other.mode, other.point)
}

/// A figure of each round that may be believed.
fn values(cell: &Cell, of: fn(&Round) -> Option<f64>) -> Vec<f64> {
    if cell.void.is_some() {
        return Vec::new();
    }
    cell.rounds.iter().filter(|round| round.void.is_none()).filter_map(of).collect()
}

/// `None` if there was no such figure before.
fn change(
    figure: &Figure,
    old: &Cell,
    new: Option<&Cell>,
    (before, after): (&CostReport, &CostReport),
    tolerance_percent: f64,
) -> Option<Change> {
    let of_old = values(old, figure.of);
    let of_new = new.map(|new| values(new, figure.of)).unwrap_or_default();
    let median = super::statistics::median;
    let (was, is) = (median(of_old.iter().copied())?, median(of_new.iter().copied()));
    let of_floor = |floor: &Floor| {
        let here = (floor.scenario, floor.point) == (old.scenario, old.point);
        here.then(|| (figure.floor)(floor))
    };
    let floor = before.floors.iter().chain(&after.floors).filter_map(of_floor).fold(0.0, f64::max);
    let interval = difference_of_medians(&of_new, &of_old, before.settings.seed);
    let percent = is.filter(|_| was != 0.0).map(|is| (is / was - 1.0) * 100.0);
    let verdict = match (is, interval) {
        (None, _) => Verdict::Missing,
        (Some(_), None) => Verdict::Unsure,
        (Some(_), Some(interval)) => judge(figure.worse, interval, floor, percent, tolerance_percent),
    };
    let Cell { scenario, proxy, mode, point, .. } = *old;
    let difference = interval.map(|Interval { value, low, high }| Ends { value, low, high });
    let (figure, before, after) = (figure.name, was, is);
    Some(Change { scenario, proxy, mode, point, figure, before, after, difference, percent, floor, verdict })
}

fn judge(
    worse: Worse,
    Interval { value, low, high }: Interval,
    floor: f64,
    percent: Option<f64>,
    tolerance_percent: f64,
) -> Verdict {
    if value.abs() <= floor || (low <= 0.0 && high >= 0.0) {
        return Verdict::Noise;
    }
    let for_the_worse = match worse {
        Worse::Higher => value > 0.0,
        Worse::Lower => value < 0.0,
    };
    // What was nothing before has no percentage: whatever comes is beyond any.
    let beyond = percent.is_none_or(|percent| percent.abs() > tolerance_percent);
    match (for_the_worse, beyond) {
        (false, _) => Verdict::Better,
        (true, false) => Verdict::Worse,
        (true, true) => Verdict::Regression,
    }
}

/// A name as the report has it.
pub(super) fn word(name: &impl Serialize) -> String {
    let json = serde_json::to_value(name).ok();
    json.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
