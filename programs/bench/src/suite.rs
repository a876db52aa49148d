//! `starling bench suite`: one scenario after the other, and one page of all.
//!
//! Each part is a run of this program of its own, with its report in a folder of its own: what one leaves behind in memory
//! is in no figure of the next, and one that fails takes nothing with it. The page is written anew after each part, so that
//! a suite that is ended early leaves what it has.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use crate::machine::Machine;
use crate::mesh::own_program;
use crate::page;
use crate::report::{FILE_NAME, PAGE_NAME};

/// Names the shape of what a suite writes beside its page.
const SCHEMA: &str = "starling-bench-suite/1";

/// Between two looks at whether a part has ended.
const GLANCE: Duration = Duration::from_millis(100);

/// Time for a part that is ended early to take its mesh down.
const DOWN_WITHIN: Duration = Duration::from_secs(15);

const AFTER_HELP: &str = "\
Every part leaves its own report.json and report.html in a folder of its name; report.html beside them has all of it, and
report.json which parts there are, how long each took and how it ended. The page is written after each part, so that a suite
may be ended early. The exit code is 1 when a part failed, or told of something that could not be measured.";

/// Run one scenario after the other, and make one page of all
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct SuiteArgs {
    /// Which
    #[arg(value_enum)]
    suite: Suite,
    /// Write into this folder [default: bench-published or bench-quick]
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Run these parts alone
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<String>,
    /// Run nothing, and tell which parts there are
    #[arg(long)]
    list: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Suite {
    /// What reproduces the published studies, at their size: two hours
    Published,
    /// A short run of everything: ten minutes
    Quick,
    /// That suites work, in seconds: its figures are nobody's
    #[value(hide = true)]
    Smoke,
}

/// A run of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    /// Also the name of its folder.
    name: &'static str,
    /// What it measures, or which study it reproduces.
    about: &'static str,
    /// Of `starling bench`.
    arguments: &'static str,
}

/// A part by its fields.
const fn part(name: &'static str, about: &'static str, arguments: &'static str) -> Part {
    Part { name, about, arguments }
}

/// Open Service Mesh's study of pods had 62 nodes.
const PUBLISHED: &[Part] = &[
    part("propagation", "Consul Global Scale Benchmark: endpoints", "propagation"),
    part("intention", "Consul Global Scale Benchmark: intentions", "intention"),
    part("rollout-200", "Open Service Mesh: 200 pods", "rollout --nodes 62 --workloads 200"),
    part("rollout-400", "Open Service Mesh: 400 pods", "rollout --nodes 62 --workloads 400"),
    part("rollout-800", "Open Service Mesh: 800 pods", "rollout --nodes 62 --workloads 800"),
    part("rollout-1600", "Open Service Mesh: 1,600 pods", "rollout --nodes 62 --workloads 1600"),
    part("latency", "Istio 1.2, by connections; Open Service Mesh, by rate", "latency"),
    part("cpu", "Istio 1.2 and Open Service Mesh: CPU of sidecars", "cpu"),
    part("memory", "Istio 1.2 and Open Service Mesh: memory of sidecars", "memory"),
    part("throughput", "to the knee, which nobody has published", "throughput"),
    part("ingress", "Consul and Istio ingress gateways on AKS", "ingress"),
];

/// Fleets of a tenth but where the size is the point, and changes that follow each other sooner.
const QUICK: &[Part] = &[
    part("propagation", "an endpoint, to 178,000 workloads on 10,000 nodes", "propagation --changes 2 --further 0"),
    part(
        "intention",
        "a wildcard intention, to a tenth of that",
        "intention --nodes 1000 --workloads 17800 --changes 4 --pause 1",
    ),
    part(
        "reconnect",
        "a server that is killed, and its nodes",
        "reconnect --nodes 1000 --workloads 17800 --changes 2 --pause 1",
    ),
    part("churn", "a change among 200 others a second", "churn --nodes 1000 --workloads 17800 --changes 10 --pause 1"),
    part(
        "faults",
        "slow readers, lost packets, reset connections",
        "faults --nodes 1000 --workloads 17800 --changes 2 --pause 0",
    ),
    part(
        "latency",
        "what proxies add, by connections",
        "latency --connections 1,16,64 --seconds 0.8 --warm-up 0.2 --rounds 5",
    ),
    part("cpu", "CPU time of proxies, by rate", "cpu --rates 1000,3000 --seconds 1 --warm-up 0.3 --rounds 3"),
    part(
        "throughput",
        "latency by load, to the knee",
        "throughput --rates 2000,8000,16000,24000 --seconds 1 --warm-up 0.3 --rounds 2",
    ),
    part(
        "memory",
        "memory of proxies, by connections and services",
        "memory --connections 16,256 --services 100 --seconds 1 --warm-up 0.3 --rounds 2",
    ),
    part("ingress", "an ingress gateway under limits", "ingress --requests 3000 --rounds 2"),
    part("churn-requests", "requests while the mesh changes", "churn --proxy all --seconds 3 --rounds 2"),
    part(
        "proxy",
        "the native data plane beside Envoy",
        "proxy --only memory,throughput,http2,grpc,bulk,handshakes --rounds 1 --seconds 1",
    ),
];

const SMOKE: &[Part] = &[
    part("latency", "no mesh", "latency --proxy none --connections 1 --rounds 2 --seconds 0.2 --warm-up 0.1"),
    part("cpu", "no mesh", "cpu --proxy none --rates 10 --rounds 1 --seconds 0.2 --warm-up 0.1"),
];

/// What a suite has done.
#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    suite: String,
    machine: Machine,
    parts: Vec<Done>,
}

/// A part that has ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Done {
    name: &'static str,
    about: &'static str,
    command: String,
    seconds: f64,
    /// Absent if a signal ended it.
    exit_code: Option<i32>,
    /// Where its report is, relative to the folder of the suite; absent if it left none.
    report: Option<String>,
}

/// A part that runs; dropping it has it take its mesh down, and waits for that.
struct Running(Child);

/// Runs a suite.
///
/// # Errors
/// When a part is named that there is not, or the folder cannot be written.
pub(crate) async fn run(args: SuiteArgs) -> anyhow::Result<ExitCode> {
    let name = args.suite.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
    let parts = chosen(args.suite, &args.only)?;
    if args.list {
        for Part { name, about, arguments } in parts {
            crate::said::line(&format!("{name:<15} {about}\n{:<15} starling bench {}", "", arguments));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let folder = args.report.unwrap_or_else(|| PathBuf::from(format!("bench-{name}")));
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut report = Report { schema: SCHEMA, suite: name, machine: Machine::read(), parts: Vec::new() };
    // What an earlier run left would be taken for this one's.
    write(&report, &folder, parts.len())?;
    for (number, part) in (1..).zip(&parts) {
        crate::said::note(&format!("[{number} of {}] {}: {}", parts.len(), part.name, part.about));
        report.parts.push(run_part(part, &folder).await?);
        write(&report, &folder, parts.len())?;
    }
    crate::said::note(&folder.join(PAGE_NAME).display().to_string());
    let is_whole = report.parts.iter().all(|part| part.exit_code == Some(0));
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn chosen(suite: Suite, only: &[String]) -> anyhow::Result<Vec<Part>> {
    let parts = match suite {
        Suite::Published => PUBLISHED,
        Suite::Quick => QUICK,
        Suite::Smoke => SMOKE,
    };
    if let Some(unknown) = only.iter().find(|name| parts.iter().all(|part| part.name != **name)) {
        let names: Vec<_> = parts.iter().map(|part| part.name).collect();
        bail!("there is no part {unknown:?}; there are {}", names.join(", "));
    }
    let is_chosen = |part: &&Part| only.is_empty() || only.iter().any(|name| name == part.name);
    Ok(parts.iter().filter(is_chosen).copied().collect())
}

async fn run_part(part: &Part, folder: &Path) -> anyhow::Result<Done> {
    let own = folder.join(part.name);
    std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let file = own.join(FILE_NAME);
    for old in [&file, &own.join(PAGE_NAME)].into_iter().filter(|old| old.exists()) {
        std::fs::remove_file(old).with_context(|| format!("cannot remove {}", old.display()))?;
    }
    let mut command = Command::new(own_program()?);
    command.arg("bench").args(part.arguments.split_whitespace()).stdin(Stdio::null());
    if part.arguments.starts_with("proxy ") {
        command.arg("--json").arg(&file);
    } else {
        command.arg("--report").arg(&own);
    }
    let begun = Instant::now();
    let mut running = Running(command.spawn().with_context(|| format!("cannot start {command:?}"))?);
    let status = loop {
        if let Some(status) = running.0.try_wait().context("cannot wait for a part")? {
            break status;
        }
        tokio::time::sleep(GLANCE).await;
    };
    Ok(Done {
        name: part.name,
        about: part.about,
        command: format!("starling bench {}", part.arguments),
        seconds: begun.elapsed().as_secs_f64().round(),
        exit_code: status.code(),
        report: file.exists().then(|| format!("{}/{FILE_NAME}", part.name)),
    })
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = |child: &mut Child| !matches!(child.try_wait(), Ok(None));
        if ended(&mut self.0) {
            return;
        }
        if let Ok(pid) = i32::try_from(self.0.id()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        let latest = Instant::now() + DOWN_WITHIN;
        while !ended(&mut self.0) {
            if Instant::now() > latest {
                let _ = self.0.kill();
                let _ = self.0.wait();
                return;
            }
            std::thread::sleep(GLANCE);
        }
    }
}

/// Writes the page and the list of parts that have ended so far.
fn write(report: &Report, folder: &Path, all: usize) -> anyhow::Result<()> {
    let mut problems: Vec<_> = report.parts.iter().filter_map(complaint).collect();
    let left = all - report.parts.len();
    if left > 0 {
        problems.push(format!("{left} of {all} parts have not run"));
    }
    let with_report =
        report.parts.iter().filter_map(|part| Some((part.name.to_owned(), folder.join(part.report.as_ref()?))));
    let title = format!("starling bench suite {}", report.suite);
    let page = page::join(&title, &with_report.collect::<Vec<_>>(), problems);
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    put(PAGE_NAME, page.html)?;
    put(FILE_NAME, serde_json::to_string_pretty(report)? + "\n")
}

/// What a reader must know of how a part ended.
fn complaint(part: &Done) -> Option<String> {
    let Done { name, exit_code, report, .. } = part;
    let how = exit_code.map_or_else(|| "a signal ended it".to_owned(), |code| format!("its exit code is {code}"));
    match (exit_code, report) {
        (Some(0), Some(_)) => None,
        (_, None) => Some(format!("{name} left no report: {how}")),
        (_, Some(_)) => Some(format!("{name} is not whole, or missed a bar: {how}; its report says what")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench: crate::BenchArgs,
    }

    #[test]
    fn every_part_is_a_command_line_that_is_understood_and_has_a_folder_of_its_own() {
        for parts in [PUBLISHED, QUICK, SMOKE] {
            let names: BTreeSet<_> = parts.iter().map(|part| part.name).collect();
            assert_eq!(names.len(), parts.len());
            for part in parts {
                let line = std::iter::once("bench").chain(part.arguments.split_whitespace());
                let read = Line::try_parse_from(line);
                assert!(
                    read.is_ok(),
                    "{}: {}",
                    part.name,
                    read.err().map(|error| error.to_string()).unwrap_or_default()
                );
            }
        }
    }

    #[test]
    fn parts_are_chosen_by_name() {
        let names = |only: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            chosen(Suite::Quick, &only).map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["latency", "churn"]).unwrap(), ["churn", "latency"]);
        assert_eq!(names(&[]).unwrap().len(), QUICK.len());
        let refused = names(&["latenzy"]).unwrap_err().to_string();
        assert!(refused.contains("latenzy") && refused.contains("churn-requests"), "{refused}");
    }

    #[test]
    fn a_part_that_left_nothing_or_less_than_all_is_told() {
        let done = |exit_code, report: Option<&str>| Done {
            name: "cpu",
            about: "",
            command: String::new(),
            seconds: 1.0,
            exit_code,
            report: report.map(str::to_owned),
        };
        assert_eq!(complaint(&done(Some(0), Some("x"))), None);
        assert_eq!(complaint(&done(Some(2), None)).as_deref(), Some("cpu left no report: its exit code is 2"));
        assert_eq!(complaint(&done(None, None)).as_deref(), Some("cpu left no report: a signal ended it"));
        assert!(complaint(&done(Some(1), Some("x"))).unwrap().contains("not whole"));
    }
}
