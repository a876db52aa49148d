//! Reports as Service Mesh Performance (SMP) files, which other tools for meshes read.
//!
//! Source: `protos/service_mesh_performance.proto` of the specification, version v0.0.1: `PerformanceTestConfig`,
//! `ServiceMeshConfig`, `EnvironmentConfig` and `PerformanceTestResult`, under the names that its files have for them. A
//! report becomes a stream of YAML documents, one for each cell with latencies. They are written as JSON, which YAML
//! contains. SMP has neither 99.9 % nor intervals nor rounds: those are in the report alone.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use serde_json::{Value, json};

use super::compare::{read, word};
use super::limits::Limit;
use super::report::{Cell, CostReport, Mode, Point, ProxyKind};

/// Version of the specification.
const SMP_VERSION: &str = "v0.0.1";

/// `PerformanceTestConfig.Client.Protocol` of what the generator speaks.
fn protocol(spoken: &str) -> u8 {
    const HTTP: u8 = 0;
    const TCP: u8 = 1;
    const GRPC: u8 = 3;
    match spoken {
        "tcp" => TCP,
        "grpc" => GRPC,
        _ => HTTP,
    }
}

/// Write a report of what a mesh costs as a Service Mesh Performance (SMP) file
#[derive(Debug, clap::Args)]
pub(crate) struct SmpArgs {
    /// The report
    #[arg(value_name = "REPORT.json")]
    report: PathBuf,
    /// Write to a file, and not to standard output
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
}

/// Writes the file.
///
/// # Errors
/// When the report cannot be read, or the file cannot be written.
pub(crate) fn run(args: &SmpArgs) -> anyhow::Result<ExitCode> {
    let text = render(&read(&args.report)?);
    match &args.file {
        Some(path) => std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?,
        None => crate::said::text(&text),
    }
    Ok(ExitCode::SUCCESS)
}

fn render(report: &CostReport) -> String {
    let cells = report.cells.iter().filter(|cell| cell.void.is_none());
    let documents = cells.enumerate().filter_map(|(number, cell)| document(report, cell, number));
    documents.map(|document| format!("---\n{document:#}\n")).collect()
}

/// `None` of a cell without latencies.
fn document(report: &CostReport, cell: &Cell, number: usize) -> Option<Value> {
    let latency = cell.latency_ms?;
    let min = cell.histogram_us.first().map_or(0, |(microseconds, _)| *microseconds);
    let rate = super::statistics::median(cell.sound().map(|round| round.rate))?;
    let id = |what: &str| format!("{}-{what}-{number}", report.machine.date);
    let labels = labels(cell);
    let test = json!({
        "smp_version": SMP_VERSION, "id": id("test"), "name": format!("starling bench {}", word(&cell.scenario)),
        "labels": labels, "duration": format!("{}s", seconds(report, cell)),
        "clients": [{
            "internal": false, "load_generator": "starling load", "protocol": protocol(&report.settings.protocol),
            "connections": cell.point.connections, "rps": cell.point.rate.unwrap_or(0.0).round(),
        }],
    });
    let memory_mb = report.machine.memory / 1_000_000;
    let env = json!({
        "smp_version": SMP_VERSION, "id": id("env"), "labels": { "kernel": report.machine.kernel },
        "node": [{ "type": report.machine.model, "cores": report.machine.cores, "mem_mb": memory_mb }],
    });
    let result = json!({
        "smp_version": SMP_VERSION, "id": id("result"), "labels": labels, "start_time": report.machine.date,
        "latencies_ms": {
            "min": milliseconds(min), "average": latency.mean, "p50": latency.p50, "p90": latency.p90,
            "p99": latency.p99, "max": latency.max,
        },
        "actual_QPS": rate, "testId": id("test"), "meshConfigId": id("mesh"), "envId": id("env"),
    });
    Some(json!({ "test": test, "mesh": mesh(report, cell, id("mesh")), "env": env, "result": result }))
}

/// How long a round was; of those that go by requests the median.
#[expect(clippy::cast_precision_loss, reason = "an f64 is exact up to 2^53 requests")]
fn seconds(report: &CostReport, cell: &Cell) -> f64 {
    let rounds = cell.sound().filter(|round| round.rate > 0.0);
    let by_requests = cell.point.requests.and_then(|_| {
        super::statistics::median(rounds.map(|round| (round.requests as f64 / round.rate * 1e3).round() / 1e3))
    });
    by_requests.unwrap_or(report.settings.seconds)
}

fn mesh(report: &CostReport, cell: &Cell, id: String) -> Value {
    let settings = &report.settings;
    let count = match cell.mode {
        Mode::Baseline | Mode::BaselineAgain => 0,
        Mode::Client | Mode::Server => 1,
        Mode::Both | Mode::Gateway => 2,
    };
    let proxies = || cell.sound().filter_map(|round| round.proxies);
    let median = |values: Vec<f64>| super::statistics::median(values).map(f64::round);
    let cores = median(proxies().map(|proxies| proxies.cores * 1000.0).collect());
    let megabytes = |usage: super::report::ProxyUsage| {
        let both = [usage.caller_resident_mb, usage.service_resident_mb];
        both.iter().any(Option::is_some).then(|| both.into_iter().flatten().sum::<f64>())
    };
    let memory = median(proxies().filter_map(megabytes).collect());
    let proxy = match cell.proxy {
        ProxyKind::Envoy => report.versions.envoy.clone().map(|version| format!("envoy {version}")),
        ProxyKind::Native => Some(format!("starling {}", report.versions.starling)),
        ProxyKind::None | ProxyKind::Target => None,
    };
    let sidecar = json!({ "count": count, "cpu_mCores": cores, "mem_mb": memory });
    let mut mesh = json!({
        "smp_version": SMP_VERSION, "id": id, "sidecar": without_null(sidecar), "mtls_enabled": settings.mtls,
        "mesh_telemetry_enabled": settings.tracing || settings.access_log, "mesh_policy_enabled": settings.policies > 0,
        "proxy_concurrency": settings.workers, "proxy_build": proxy,
    });
    if cell.proxy != ProxyKind::Target {
        mesh["mesh_build"] = format!("starling {}", report.versions.starling).into();
    }
    without_null(mesh)
}

/// What is not known is not there.
fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    value
}

/// What the specification has no field for. Connections and rate are the client's.
fn labels(cell: &Cell) -> BTreeMap<&'static str, String> {
    let Point {
        connections: _,
        rate: _,
        services,
        scoped,
        requests,
        cpu_limit: _,
        memory_limit_mib: _,
        limited: _,
        changes_per_second,
    } = cell.point;
    let limit = Some(Limit::of(&cell.point)).filter(|limit| !limit.is_none());
    let named =
        [("scenario", word(&cell.scenario)), ("proxy", word(&cell.proxy)), ("mode", word(&cell.mode))].map(Some);
    let varied = [
        services.map(|services| ("services", services.to_string())),
        scoped.map(|scoped| ("scoped", scoped.to_string())),
        requests.map(|requests| ("requests", requests.to_string())),
        limit.map(|limit| ("limits", limit.to_string())),
        changes_per_second.map(|changes| ("changes_per_second", changes.to_string())),
    ];
    named.into_iter().chain(varied).flatten().collect()
}

#[expect(clippy::cast_precision_loss, reason = "an hour of microseconds is far below 2^53")]
fn milliseconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::report::tests::sample;

    #[test]
    fn a_cell_becomes_a_document_with_the_names_of_the_specification() {
        let mut report = sample();
        for cell in &mut report.cells {
            cell.rounds.iter_mut().for_each(|round| round.void = None);
        }
        let text = render(&report);
        assert_eq!(text.matches("---\n").count(), 1, "the cell without figures has none: {text}");
        let document: Value = serde_json::from_str(text.strip_prefix("---\n").unwrap()).unwrap();
        let latencies = &document["result"]["latencies_ms"];
        assert_eq!(
            (&latencies["min"], &latencies["average"], &latencies["p99"]),
            (&1.0.into(), &1.1.into(), &3.0.into())
        );
        assert_eq!(document["result"]["actual_QPS"], 1000.0);
        assert_eq!(document["result"]["testId"], document["test"]["id"]);
        assert_eq!(
            (&document["test"]["clients"][0]["connections"], &document["test"]["clients"][0]["rps"]),
            (&16.into(), &1000.0.into())
        );
        let mesh = &document["mesh"];
        assert_eq!(mesh["sidecar"], json!({ "count": 2, "cpu_mCores": 40.0, "mem_mb": 10.0 }));
        assert_eq!((&mesh["mtls_enabled"], &mesh["proxy_concurrency"]), (&true.into(), &1.into()));
    }

    #[test]
    fn limits_are_a_label_and_requests_take_what_they_take() {
        let mut report = sample();
        let cell = &mut report.cells[0];
        cell.point = "gateway:0.1:100".parse::<Limit>().unwrap().at(Point { requests: Some(500), ..cell.point });
        (cell.rounds[0].void, cell.rounds[0].requests, cell.rounds[0].rate) = (None, 500, 200.0);
        let document: Value = serde_json::from_str(render(&report).strip_prefix("---\n").unwrap()).unwrap();
        assert_eq!(document["result"]["labels"]["limits"], "gateway:0.1:100");
        assert_eq!(document["test"]["duration"], "2.5s");
    }

    #[test]
    fn whatever_is_varied_is_a_label_and_protocols_are_those_of_the_specification() {
        let mut report = sample();
        let cell = &mut report.cells[0];
        cell.rounds[0].void = None;
        cell.point.changes_per_second = Some(10.0);
        (cell.point.services, cell.point.scoped, cell.point.requests) = (Some(100), Some(false), Some(7));
        for (spoken, number) in [("http1", 0), ("http2", 0), ("tcp", 1), ("grpc", 3)] {
            report.settings.protocol = spoken.to_owned();
            let document: Value = serde_json::from_str(render(&report).strip_prefix("---\n").unwrap()).unwrap();
            assert_eq!(document["test"]["clients"][0]["protocol"], number, "{spoken}");
            let expected = json!({
                "scenario": "latency", "proxy": "native", "mode": "both", "changes_per_second": "10",
                "services": "100", "scoped": "false", "requests": "7",
            });
            assert_eq!((&document["test"]["labels"], &document["result"]["labels"]), (&expected, &expected));
        }
    }

    #[test]
    fn what_is_void_is_not_exported() {
        let mut report = sample();
        report.cells[0].void = Some("the generator was late".to_owned());
        assert_eq!(render(&report), "");
    }
}
