//! `starling bench compare`: what changed between two reports, and whether it is more than noise.
//!
//! A figure of a cell is the median of what its rounds measured; `judge` says what became of it. Reports of different
//! settings are refused here, and `notes` tells what else is not the same.

mod judge;
mod notes;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::Serialize;

use super::report::{Cell, CostReport, SCHEMA, Settings};
use crate::report::read_json;
use judge::{Change, Pair, Verdict};

/// Exit code when the files cannot be compared.
const EXIT_NOT_COMPARABLE: u8 = 2;

/// The change for the worse that is let pass, in percent, if none is named.
const TOLERANCE_DEFAULT_PERCENT: f64 = 5.0;

const AFTER_HELP: &str = "\
A figure is the median of the rounds. It changed if the 95 % interval of the difference, by
resampling the rounds, has no 0 in it, and the difference is above the noise floors of both reports;
only latencies have such floors. With fewer than 4 rounds that count in A or in B it is not judged:
measure with --rounds 5. Memory by services, which is measured once, is judged by the tolerance
alone.

A figure is missing in B if B has none, or lost so many of its rounds that it has less than half of
A's, or too few to be judged. A rate that B no longer keeps up with is not, if the most that B
answers is less than A's by no more than the tolerance.

The exit code is 0 when nothing is worse by more than the tolerance, 1 when something is or is
missing in B, and 2 when the files are no reports of what a mesh costs, or were measured under
different settings.";

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
            crate::said::note(&format!("error: {error:#}"));
            return Ok(ExitCode::from(EXIT_NOT_COMPARABLE));
        }
    };
    match args.output {
        Output::Table => crate::said::text(&comparison.text()),
        Output::Json => crate::said::line(&serde_json::to_string_pretty(&comparison)?),
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
    let is_known = |new: &&Cell| before.cells.iter().any(|old| is_same(old, new));
    let common = after.cells.iter().filter(is_known).count();
    if common == 0 {
        bail!("the two reports have no measurement in common");
    }
    let changes = Pair { before, after, tolerance_percent }.changes();
    let regressions = changes.iter().filter(|change| change.verdict.fails()).count();
    let new = after.cells.len() - common;
    let mut notes = notes::notes(before, after);
    if changes.iter().all(|change| change.verdict == Verdict::Unsure) {
        notes.push("nothing was judged: measure both with --rounds 5 or more".to_owned());
    }
    Ok(Comparison { tolerance_percent, regressions, changes, new, notes })
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

fn is_same(one: &Cell, other: &Cell) -> bool {
    (one.scenario, one.proxy, one.mode, one.point) == (other.scenario, other.proxy, other.mode, other.point)
}

/// A name as the report has it.
pub(super) fn word(name: &impl Serialize) -> String {
    let json = serde_json::to_value(name).ok();
    json.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
