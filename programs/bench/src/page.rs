//! `starling bench page`: several reports as one page.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::cost::report::{self as cost, CostReport};
use crate::fleet_report::{self as fleet, FleetReport};
use crate::html::{self, Titled};
use crate::proxy::{self, Findings};
use crate::report::{FILE_NAME, read_json};

/// How the schema of what a suite writes beside its page begins: a list of parts, each with a report of its own.
const SUITE_SCHEMA: &str = "starling-bench-suite/";

/// Folders within folders that are looked into, at most: a link in a circle ends somewhere.
const DEPTH_MAX: u32 = 16;

const AFTER_HELP: &str = "\
It is made of reports of what a mesh costs (starling bench latency, cpu, throughput, memory,
ingress, churn --proxy), of fleets (propagation, intention, rollout, reconnect, churn, faults), and
of both data planes (proxy). The folder of a suite has all of its parts.

The exit code is 1 when one of them could not be read, which is told at the top of the page; the
rest is there.";

/// Make one page of several reports, with the published studies beside them
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct PageArgs {
    /// Reports, and folders of which every report.json is taken
    #[arg(required = true, value_name = "DIR_OR_REPORT.json")]
    paths: Vec<PathBuf>,
    /// Write the page to this file
    #[arg(long, value_name = "PATH", default_value = "report.html")]
    file: PathBuf,
}

/// A report that was read.
#[derive(Debug, Clone, PartialEq)]
enum Report {
    Cost(Box<CostReport>),
    Fleet(Box<FleetReport>),
    Proxies(Box<Findings>),
}

/// A page, and what could not be read for it; each line names a file and what helps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Page {
    pub(crate) html: String,
    pub(crate) problems: Vec<String>,
}

/// Makes the page; the exit code is a failure if something could not be read.
///
/// # Errors
/// When there is no report at all, or the page cannot be written.
pub(crate) fn run(args: &PageArgs) -> anyhow::Result<ExitCode> {
    let mut found = Vec::new();
    for path in &args.paths {
        found.extend(reports_of(path)?);
    }
    let Page { html, problems } = join("starling bench", &found, Vec::new());
    let file = args.file.display();
    std::fs::write(&args.file, html).with_context(|| format!("cannot write {file}"))?;
    crate::said::line(&format!("{file}: {} of {} reports", found.len() - problems.len(), found.len()));
    for problem in &problems {
        crate::said::note(problem);
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Makes one page of reports under their titles, which tells these problems and those of reading.
pub(crate) fn join(title: &str, reports: &[(String, PathBuf)], mut problems: Vec<String>) -> Page {
    let mut read_ones = Vec::new();
    for (title, path) in reports {
        match read(path) {
            Ok(report) => read_ones.push((title, report)),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
    let titled: Vec<Titled> = read_ones
        .iter()
        .map(|(title, report)| {
            let report = match report {
                Report::Cost(report) => html::Report::Cost(report),
                Report::Fleet(report) => html::Report::Fleet(report),
                Report::Proxies(findings) => html::Report::Proxies(findings),
            };
            Titled { title, report }
        })
        .collect();
    Page { html: html::page(title, &titled, &problems), problems }
}

/// Reads a report of any schema that a page can show.
fn read(path: &Path) -> anyhow::Result<Report> {
    let json = read_json(path)?;
    let shown = path.display();
    let schema = json["schema"].as_str().map(str::to_owned);
    let report = match schema.as_deref() {
        Some(cost::SCHEMA) => serde_json::from_value(json).map(Report::Cost),
        Some(fleet::SCHEMA) => serde_json::from_value(json).map(Report::Fleet),
        Some(proxy::SCHEMA) => serde_json::from_value(json).map(Report::Proxies),
        Some(suite) if suite.starts_with(SUITE_SCHEMA) => {
            bail!("{shown} lists the parts of a suite, whose reports are in folders beside it: name its folder")
        }
        Some(other) => bail!(
            "{shown} is a report of schema {other:?}; a page shows {}, {} and {}: take the starling that wrote it, or measure again",
            cost::SCHEMA,
            fleet::SCHEMA,
            proxy::SCHEMA
        ),
        None => bail!(
            "{shown} names no schema, so it is no report that a page shows; `starling bench page --help` names those that are"
        ),
    };
    report.with_context(|| format!("{shown} is not as its schema has it: measure again with this starling"))
}

/// A report itself, or every report of a folder, in the order of their paths, with titles that tell them apart.
fn reports_of(path: &Path) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let found = std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    if !found.is_dir() {
        return Ok(vec![(title_of(path, path), path.to_owned())]);
    }
    let mut files = Vec::new();
    collect(path, DEPTH_MAX, &mut files)?;
    // The parts of a suite are there themselves.
    files.retain(|file| !is_of_suite(file));
    if files.is_empty() {
        bail!("{} has no {FILE_NAME} of a scenario in it; a run leaves one with --report DIR", path.display());
    }
    files.sort();
    Ok(files.into_iter().map(|file| (title_of(&file, path), file)).collect())
}

fn collect(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let shown = folder.display();
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {shown}"))? {
        let path = entry.with_context(|| format!("cannot read {shown}"))?.path();
        if path.is_dir() && depth > 0 {
            collect(&path, depth - 1, files)?;
        } else if path.file_name().is_some_and(|name| name == FILE_NAME) {
            files.push(path);
        }
    }
    Ok(())
}

/// What cannot be read is not: that is told when it is to be shown.
fn is_of_suite(file: &Path) -> bool {
    let json = read_json(file).ok();
    json.is_some_and(|json| json["schema"].as_str().is_some_and(|schema| schema.starts_with(SUITE_SCHEMA)))
}

/// The folder of a report below the one that was named; of any other file its own name.
fn title_of(file: &Path, root: &Path) -> String {
    if file.file_name().is_none_or(|name| name != FILE_NAME) {
        return file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    }
    let folder = file.parent().unwrap_or(file);
    let below = folder.strip_prefix(root).ok().filter(|below| !below.as_os_str().is_empty());
    let own = || folder.file_name().map(|name| Path::new(name).to_owned());
    below.map(Path::to_owned).or_else(own).map_or_else(|| "report".to_owned(), |title| title.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde::Serialize;

    use super::*;
    use crate::cost::report::tests::sample;
    use crate::fleet_report::tests::example;
    use crate::proxy::findings::tests::example as findings;

    fn leave(folder: &Path, report: &impl Serialize) {
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("report.json"), serde_json::to_string(report).unwrap()).unwrap();
    }

    #[test]
    fn every_report_of_a_folder_is_on_the_page_in_the_order_of_its_path() {
        let place = tempfile::tempdir().unwrap();
        leave(&place.path().join("suite/latency"), &sample());
        leave(&place.path().join("propagation"), &example());
        leave(&place.path().join("proxy"), &findings());
        let found = reports_of(place.path()).unwrap();
        assert_eq!(
            found.iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(),
            ["propagation", "proxy", "suite/latency"]
        );
        let Page { html, problems } = join("all", &found, Vec::new());
        assert_eq!(problems, [""; 0]);
        for part in ["<h1>all</h1>", "A fleet: propagation", "Both data planes: proxy", "<h3>suite/latency</h3>"] {
            assert!(html.contains(part), "{part} in\n{html}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named_with_what_helps_and_the_rest_is_there() {
        let place = tempfile::tempdir().unwrap();
        leave(&place.path().join("a"), &serde_json::json!({ "schema": "starling-bench-cost/99" }));
        leave(&place.path().join("b"), &serde_json::json!({ "schema": "starling-bench-cost/1", "cells": 1 }));
        leave(&place.path().join("c"), &serde_json::json!([1]));
        leave(&place.path().join("d"), &sample());
        let args = |paths| PageArgs { paths, file: place.path().join("page.html") };
        assert_eq!(run(&args(vec![place.path().to_owned()])).unwrap(), ExitCode::FAILURE);
        let page = std::fs::read_to_string(place.path().join("page.html")).unwrap();
        for part in
            ["starling-bench-cost/99", "take the starling that wrote it", "measure again with this", "names no schema"]
        {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        assert!(page.contains("id=\"latency\""), "{page}");
        assert_eq!(run(&args(vec![place.path().join("d")])).unwrap(), ExitCode::SUCCESS);
    }

    #[test]
    fn a_suites_own_folder_has_its_parts_on_the_page_and_nothing_to_complain_of() {
        let place = tempfile::tempdir().unwrap();
        leave(place.path(), &serde_json::json!({ "schema": "starling-bench-suite/1", "parts": [] }));
        let only_the_list = reports_of(place.path()).unwrap_err().to_string();
        assert!(only_the_list.contains("of a scenario"), "{only_the_list}");
        leave(&place.path().join("latency"), &sample());
        let found = reports_of(place.path()).unwrap();
        assert_eq!(found.iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(), ["latency"]);
        let args = |path| PageArgs { paths: vec![path], file: place.path().join("page.html") };
        assert_eq!(run(&args(place.path().to_owned())).unwrap(), ExitCode::SUCCESS);
        // Named by itself there is nothing of it to show.
        assert_eq!(run(&args(place.path().join("report.json"))).unwrap(), ExitCode::FAILURE);
        assert!(std::fs::read_to_string(place.path().join("page.html")).unwrap().contains("name its folder"));
    }

    #[test]
    fn a_place_without_reports_is_an_error_that_says_so() {
        let place = tempfile::tempdir().unwrap();
        let error = reports_of(place.path()).unwrap_err().to_string();
        assert!(error.contains("has no report.json of a scenario") && error.contains("--report DIR"), "{error}");
        let error = reports_of(&place.path().join("nowhere")).unwrap_err().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }

    #[test]
    fn a_title_is_the_folder_below_the_one_that_was_named() {
        let title = |file: &str, root: &str| title_of(Path::new(file), Path::new(root));
        assert_eq!(title("/out/a/b/report.json", "/out"), "a/b");
        assert_eq!(title("/out/report.json", "/out"), "out");
        assert_eq!(title("/out/cpu/report.json", "/out/cpu/report.json"), "cpu");
        assert_eq!(title("mine.json", "mine.json"), "mine");
    }
}
