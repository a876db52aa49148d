//! Reports: what a run found, as JSON for machines and a table for people.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::mesh::Envoy;

/// Name of the report in the folder given with `--report`.
pub(crate) const FILE_NAME: &str = "report.json";

/// Name of the page beside it.
pub(crate) const PAGE_NAME: &str = "report.html";

/// Largest report that is read: a hundred times one of every scenario.
const REPORT_BYTES_MAX: u64 = 1 << 30;

/// What a scenario prints on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table for people
    #[default]
    Table,
    /// The report as JSON
    Json,
}

/// What every scenario is asked about its end: what it prints and leaves behind, and what counts as failure.
#[derive(Debug, clap::Args)]
pub(crate) struct OutputArgs {
    /// Exit with 1 when a bar is missed
    #[arg(long)]
    strict: bool,
    /// Leave the folder with data and logs behind, and say where it is
    #[arg(long)]
    pub(crate) keep: bool,
    /// Write report.json, and of fleets and costs a page, report.html, into this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Write the report to this file
    #[arg(long, value_name = "PATH")]
    json: Option<PathBuf>,
    /// What to print
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// What was measured, by version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// This program's.
    pub starling: String,
    /// How this program was built: `release`, or `debug`, whose figures say little.
    pub build: String,
    /// The data plane's; absent when none ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envoy: Option<String>,
}

/// A promise, and whether it was kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Bar {
    /// What is promised.
    pub(crate) name: &'static str,
    /// The promise: at most this.
    pub(crate) limit: f64,
    /// What was found; absent when nothing could be measured.
    pub(crate) measured: Option<f64>,
    /// Whether it was kept.
    pub(crate) met: bool,
}

impl Bar {
    /// Holds what was found against the promise; nothing found is a promise broken.
    pub(crate) fn new(name: &'static str, limit: f64, measured: Option<f64>) -> Self {
        Self { name, limit, measured, met: measured.is_some_and(|measured| measured <= limit) }
    }

    /// Why a run that missed it counts as failed.
    fn complaint(&self) -> String {
        let Self { name, limit, measured, .. } = self;
        let found = measured.map_or_else(|| "could not be measured".to_owned(), |found| format!("is {found:.4}"));
        format!("bar missed: {name} {found}, at most {limit:.4} is promised")
    }
}

impl OutputArgs {
    /// Finds out before a run, which may take an hour, whether what it finds can be written.
    ///
    /// # Errors
    /// When a place cannot be written; the text names it.
    pub(crate) fn verify(&self) -> anyhow::Result<()> {
        if let Some(folder) = &self.report {
            std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            verify_writable(&folder.join(FILE_NAME))?;
        }
        self.json.as_deref().map_or(Ok(()), verify_writable)
    }

    /// Writes the report as a page into the folder, if there is to be one.
    ///
    /// # Errors
    /// As for [`OutputArgs::deliver`].
    pub(crate) fn write_page(&self, page: impl FnOnce() -> String) -> anyhow::Result<()> {
        let Some(folder) = &self.report else { return Ok(()) };
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let path = folder.join(PAGE_NAME);
        std::fs::write(&path, page()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes and prints a finished run's report. The exit code is a failure with `--strict` if a bar was missed; which
    /// one, and by how much, goes to standard error.
    ///
    /// # Errors
    /// When a place cannot be written; the text names it.
    pub(crate) fn deliver<T: Serialize>(
        &self,
        report: &T,
        bars: &[Bar],
        table: impl FnOnce() -> String,
    ) -> anyhow::Result<ExitCode> {
        write(report, self.report.as_deref(), self.json.as_deref())?;
        self.output.print(report, table)?;
        if !self.strict {
            return Ok(ExitCode::SUCCESS);
        }
        let mut code = ExitCode::SUCCESS;
        for bar in bars.iter().filter(|bar| !bar.met) {
            crate::said::note(&bar.complaint().to_string());
            code = ExitCode::FAILURE;
        }
        Ok(code)
    }
}

impl Versions {
    /// Of this build, and of the data plane if there is one.
    pub(crate) fn of(envoy: Option<&Envoy>) -> Self {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self {
            starling: env!("CARGO_PKG_VERSION").to_owned(),
            build: build.to_owned(),
            envoy: envoy.map(|envoy| envoy.version().to_owned()),
        }
    }

    /// One line for people.
    pub(crate) fn line(&self) -> String {
        let envoy = self.envoy.as_deref().map_or_else(|| "no Envoy".to_owned(), |version| format!("Envoy {version}"));
        let warning =
            if self.build == "debug" { " (a debug build: these figures are no measure of speed)" } else { "" };
        format!("starling {} {}{warning}, {envoy}", self.starling, self.build)
    }
}

impl Output {
    fn print<T: Serialize>(self, report: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
        match self {
            Self::Table => crate::said::line(&table()),
            Self::Json => crate::said::line(&to_json(report)?),
        }
        Ok(())
    }
}

/// Opens a file for writing, and leaves it as it was.
///
/// # Errors
/// When that cannot be; the text names it.
pub(crate) fn verify_writable(path: &Path) -> anyhow::Result<()> {
    let was_there = path.exists();
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))?;
    if !was_there {
        std::fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// Writes the report wherever it is wanted: as `report.json` into a folder, which is made if need be, and to a file.
fn write<T: Serialize>(report: &T, folder: Option<&Path>, file: Option<&Path>) -> anyhow::Result<()> {
    if folder.is_none() && file.is_none() {
        return Ok(());
    }
    let text = to_json(report)? + "\n";
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let in_folder = folder.map(|folder| folder.join(FILE_NAME));
    for path in in_folder.as_deref().into_iter().chain(file) {
        std::fs::write(path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Reads a report, whatever its schema.
///
/// # Errors
/// When it is no file, too large, or no JSON; the text names it.
pub(crate) fn read_json(path: &Path) -> anyhow::Result<serde_json::Value> {
    let shown = path.display();
    let length = std::fs::metadata(path).with_context(|| format!("cannot read {shown}"))?.len();
    if length > REPORT_BYTES_MAX {
        bail!("{shown} has {length} bytes; the largest report that is read has {REPORT_BYTES_MAX}");
    }
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    serde_json::from_str(&text).with_context(|| format!("{shown} is no JSON"))
}

fn to_json<T: Serialize>(report: &T) -> anyhow::Result<String> {
    serde_json::to_string_pretty(report).context("cannot write the report as JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_up_to_its_limit_and_missed_by_nothing() {
        assert!(Bar::new("p99", 50.0, Some(50.0)).met);
        assert!(!Bar::new("p99", 50.0, Some(50.001)).met);
        assert!(!Bar::new("p99", 50.0, None).met);
    }

    #[test]
    fn only_a_strict_run_fails_on_a_missed_bar() {
        let run = |strict, measured| {
            let args = OutputArgs { strict, keep: false, report: None, json: None, output: Output::Table };
            args.deliver(&1, &[Bar::new("met", 1.0, Some(1.0)), Bar::new("p99", 50.0, measured)], String::new).unwrap()
        };
        assert_eq!(run(false, Some(51.0)), ExitCode::SUCCESS);
        assert_eq!(run(true, Some(50.0)), ExitCode::SUCCESS);
        assert_eq!(run(true, Some(51.0)), ExitCode::FAILURE);
        assert_eq!(run(true, None), ExitCode::FAILURE);
    }

    #[test]
    fn a_complaint_names_the_bar_and_both_figures() {
        let missed = Bar::new("registration, s", 2.0, Some(2.5));
        assert_eq!(missed.complaint(), "bar missed: registration, s is 2.5000, at most 2.0000 is promised");
        let unknown = Bar::new("p99, ms", 50.0, None);
        assert_eq!(unknown.complaint(), "bar missed: p99, ms could not be measured, at most 50.0000 is promised");
    }

    #[test]
    fn a_report_goes_to_a_folder_and_to_a_file() {
        let place = tempfile::tempdir().unwrap();
        let (folder, file) = (place.path().join("new/folder"), place.path().join("own.json"));
        write(&Bar::new("p99", 50.0, Some(3.5)), Some(&folder), Some(&file)).unwrap();
        let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
        assert_eq!(text, std::fs::read_to_string(file).unwrap());
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(read, serde_json::json!({ "name": "p99", "limit": 50.0, "measured": 3.5, "met": true }));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = write(&1, None, Some(Path::new("/nowhere/report.json"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/report.json"), "{error:#}");
        // And before the run, which leaves no trace of having been looked at.
        let place = tempfile::tempdir().unwrap();
        let (here, nowhere) = (place.path().join("own.json"), Path::new("/nowhere/own.json").to_owned());
        std::fs::write(place.path().join("file"), "").unwrap();
        let verify =
            |report, json| OutputArgs { strict: false, keep: false, report, json, output: Output::Table }.verify();
        verify(Some(place.path().join("folder")), Some(here.clone())).unwrap();
        assert!(!here.exists() && !place.path().join("folder/report.json").exists());
        assert!(format!("{:#}", verify(None, Some(nowhere)).unwrap_err()).contains("/nowhere/own.json"));
        verify(Some(place.path().join("file/folder")), None).unwrap_err();
    }
}
