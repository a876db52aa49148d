//! Reports: what a run found, as JSON for machines and a table for people.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::mesh::Envoy;

/// Name of the report in the folder given with `--report`.
const FILE_NAME: &str = "report.json";

/// What a scenario prints on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Output {
    /// A table for people
    #[default]
    Table,
    /// The report as JSON
    Json,
}

/// What was measured, by version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Versions {
    /// This program's.
    pub(crate) starling: &'static str,
    /// How this program was built: `release`, or `debug`, whose figures say little.
    pub(crate) build: &'static str,
    /// The data plane's; absent when none ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) envoy: Option<String>,
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
}

impl Versions {
    /// Of this build, and of the data plane if there is one.
    pub(crate) fn of(envoy: Option<&Envoy>) -> Self {
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        Self { starling: env!("CARGO_PKG_VERSION"), build, envoy: envoy.map(|envoy| envoy.version().to_owned()) }
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
    /// Prints the report in this form.
    ///
    /// # Errors
    /// When the report cannot be written as JSON.
    pub(crate) fn print<T: Serialize>(self, report: &T, table: impl FnOnce() -> String) -> anyhow::Result<()> {
        match self {
            Self::Table => println!("{}", table()),
            Self::Json => println!("{}", to_json(report)?),
        }
        Ok(())
    }
}

/// Writes the report wherever it is wanted: as `report.json` into a folder, which is made if need be, and to a file.
///
/// # Errors
/// When a place cannot be written; the text names it.
pub(crate) fn write<T: Serialize>(report: &T, folder: Option<&Path>, file: Option<&Path>) -> anyhow::Result<()> {
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
    }
}
