//! The benchmarks with a simulated fleet, in small: every workload is reached, and reports say so.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use starling_e2e::{Output, bare, run_within, tools};

/// A debug build among other tests takes a while to bring five hundred nodes up.
const BENCH_TIME_MAX: Duration = Duration::from_secs(180);

async fn bench(scenario: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(tools::starling());
    bare(&mut command);
    command.args(["bench", scenario, "--pause", "0"]).args(arguments);
    run_within(command, BENCH_TIME_MAX).await
}

/// Fails unless each change reached every workload, in the order and with the figures that a report promises.
#[track_caller]
fn assert_reached(report: &Value, kinds: &[&str], workloads: u64) {
    let changes = report["changes"].as_array().expect("a list of changes");
    let found: Vec<_> = changes.iter().map(|change| change["kind"].as_str().unwrap_or_default()).collect();
    assert_eq!(found, kinds);
    for change in changes {
        assert_eq!((&change["affected"], &change["applied"]), (&workloads.into(), &workloads.into()), "{change:#}");
        let percentiles = ["p50", "p75", "p90", "p95", "p96", "p97", "p98", "p99", "p999", "max"];
        let latencies = percentiles.map(|name| change["latency_ms"][name].as_f64().expect(name));
        assert!(latencies[0] > 0.0 && latencies.is_sorted(), "{change:#}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_an_upstream_reaches_every_workload_of_five_hundred_nodes() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let size = ["--nodes", "500", "--workloads", "1500", "--changes", "4", "--payload-endpoints", "100"];
    let output = bench("propagation", &[&size[..], &["--report", path]].concat()).await.success();
    assert!(output.stdout.contains("32051.9"), "the published figures stand beside: {output}");
    assert!(!output.stderr.contains("is not whole"), "every receipt has all nodes: {output}");

    let text = std::fs::read_to_string(folder.path().join("report.json")).expect("a report");
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_reached(&report, &["deregistration", "registration", "deregistration", "registration"], 1500);
    let server = &report["server"];
    let encoded = server["frames_encoded_per_change"].as_f64().expect("a count");
    assert!(encoded <= 3.0, "encoded once, not for each of 500 nodes: {server:#}");
    let sent = server["bytes_sent_per_change"].as_f64().expect("a count");
    assert!(sent < 500.0 * 400.0, "what changed, not all 100 endpoints: {server:#}");
    for figure in [&server["rss_bytes"], &report["fleet"]["rss_bytes"], &report["rollout"]["seconds"]] {
        assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{report:#}");
    }
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("500 nodes, 1500 workloads") && page.contains("Each reached every workload"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_intention_reaches_every_workload() {
    let output = bench("intention", &["--nodes", "20", "--workloads", "200", "--changes", "3", "-o", "json"]).await;
    assert_reached(&output.success().json(), &["deny", "allow", "deny"], 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_tells_how_long_each_part_took() {
    let output = bench("rollout", &["--nodes", "20", "--workloads", "200", "-o", "json"]).await.success();
    let report = output.json();
    assert_reached(&report, &["deregistration", "registration"], 200);
    let parts = ["join_seconds", "register_seconds", "leaves_seconds"];
    let parts: Vec<f64> = parts.iter().map(|part| report["rollout"][part].as_f64().expect("seconds")).collect();
    let whole = report["rollout"]["seconds"].as_f64().expect("seconds");
    assert!(parts.iter().all(|part| *part > 0.0) && (parts.iter().sum::<f64>() - whole).abs() < 1e-6, "{report:#}");
}
