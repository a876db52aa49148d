//! The benchmarks with a simulated fleet, in small: every workload is reached, and reports say so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;
use serde_json::Value;
use starling_e2e::{DEADLINE, Output, Process, bare, eventually_within, run_within, tools};

/// A debug build among other tests takes a while to bring five hundred nodes up.
const BENCH_TIME_MAX: Duration = Duration::from_secs(600);

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
    let json = folder.path().join("own.json");
    let size = ["--nodes", "500", "--workloads", "8900", "--changes", "4", "--further", "0"];
    let to = ["--report", path, "--json", json.to_str().expect("UTF-8")];
    let output = bench("propagation", &[size.as_slice(), &to].concat()).await.success();
    assert!(output.stdout.contains("32051.9"), "the published figures stand beside: {output}");
    assert!(!output.stderr.contains("is not whole"), "every receipt has all nodes: {output}");

    let text = std::fs::read_to_string(json).expect("a report");
    assert_eq!(text, std::fs::read_to_string(folder.path().join("report.json")).expect("the same report"));
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_reached(&report, &["deregistration", "registration", "deregistration", "registration"], 8900);
    assert_eq!((&report["nodes"], &report["workloads"], &report["servers"]), (&500.into(), &8900.into(), &1.into()));
    for change in report["changes"].as_array().expect("changes") {
        // How fast is for `make bench` to judge. That it is reached at all within --deadline, and seen in traffic, is for here.
        assert_eq!(change["traffic_ms"]["envoys"].as_array().map(Vec::len), Some(2), "{change:#}");
        assert!(change["traffic_ms"]["last"].as_f64().is_some_and(|last| last > 0.0), "{change:#}");
    }
    assert_eq!(report["probes"]["failed"], 0, "no request failed while an instance came and went: {report:#}");
    let server = &report["server"];
    let encoded = server["frames_encoded_per_change"].as_f64().expect("a count");
    assert!(encoded <= 3.0, "encoded once, not for each of 500 nodes: {server:#}");
    let sent = server["bytes_sent_per_change"].as_f64().expect("a count");
    assert!((1.0..500.0 * 400.0).contains(&sent), "what changed, and nothing else: {server:#}");
    for figure in [&server["rss_bytes"], &report["fleet"]["rss_bytes"], &report["rollout"]["seconds"]] {
        assert!(figure.as_f64().is_some_and(|figure| figure > 0.0), "{report:#}");
    }
    assert!(server["cpu_ms_per_change"].is_f64() && report["machine"]["cores"].is_u64(), "{report:#}");
    let page = std::fs::read_to_string(folder.path().join("report.html")).expect("a page");
    assert!(page.contains("500 nodes, 8900 workloads") && page.contains("Each reached every workload"), "{page}");
    assert!(page.contains("until traffic through real Envoys had changed"), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changed_is_sent_and_not_everything_that_is_there() {
    let size = ["--nodes", "100", "--workloads", "300", "--changes", "2", "--payload-endpoints", "100"];
    let output = bench("propagation", &[size.as_slice(), &["--further", "0", "-o", "json"]].concat()).await.success();
    assert!(output.stderr.contains("no Envoys beside the fleet: nobody runs most of the 100 endpoints"), "{output}");
    let report = output.json();
    assert_reached(&report, &["deregistration", "registration"], 300);
    let sent = report["server"]["bytes_sent_per_change"].as_f64().expect("a count");
    assert!(sent < 100.0 * 400.0, "one endpoint, not all 100: {report:#}");
    let encoded = report["server"]["frames_encoded_per_change"].as_f64().expect("a count");
    assert!(encoded <= 3.0, "encoded once, not for each of 100 nodes: {report:#}");
    assert_eq!(report["payload_endpoints"], 100);
    assert!(report.get("probes").is_none(), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wildcard_intention_reaches_every_workload_and_all_traffic() {
    let size = ["--nodes", "20", "--workloads", "200", "--changes", "3", "--growth", "--envoys", "1"];
    let output = bench("intention", &[size.as_slice(), &["--further", "300", "-o", "json"]].concat()).await;
    let report = output.success().json();
    assert_reached(&report, &["deny", "allow", "deny"], 200);
    for change in report["changes"].as_array().expect("changes") {
        assert!(change["traffic_ms"]["last"].is_f64(), "{change:#}");
    }
    let few = &report["growth"];
    assert_eq!((&few["nodes"], &few["workloads"]), (&2.into(), &20.into()), "{few:#}");
    assert_reached(few, &["deny", "allow", "deny", "allow"], 20);
    assert!(few["times_longer"].as_f64().is_some_and(|times| times > 0.0), "{few:#}");
    let further = &report["server"]["further"];
    assert_eq!(further["registrations"], 300);
    let each = further["bytes_each"].as_f64().expect("bytes");
    assert!((-30_000.0..30_000.0).contains(&each), "a registration is no megabyte: {further:#}");
    assert!(report["server"]["rss_bytes"].is_u64(), "{report:#}");
}

/// What a bench has started, by process ID.
fn children(of: Pid) -> Vec<u32> {
    let folders = std::fs::read_dir("/proc").expect("Linux").flatten();
    let child = |folder: std::fs::DirEntry| {
        let id = folder.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(folder.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim();
        (parent == of.to_string()).then_some(id)
    };
    folders.filter_map(child).collect()
}

/// Folders of benches that a process has files open in.
fn open_folders(process: u32) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let paths = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    let is_of_a_bench =
        |folder: &&Path| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with("starling-bench-"));
    paths.filter_map(|path| path.ancestors().find(is_of_a_bench).map(Path::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bench_that_is_interrupted_leaves_neither_processes_nor_folders() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(tools::starling());
    bare(&mut command);
    command.env("TMPDIR", folder.path()).args(["bench", "propagation", "--nodes", "10", "--workloads", "20"]);
    // Far more changes than can be made before the end.
    command.args(["--changes", "10000", "--pause", "1", "--envoys", "1"]);
    let mut bench = Process::spawn("bench", command);
    eventually_within(BENCH_TIME_MAX, "traffic flows through the Envoys", async || {
        bench.expect_running()?;
        anyhow::ensure!(bench.log().contains("Envoys beside the fleet: 3 of 3"), "{}", bench.log());
        Ok(())
    })
    .await;
    let children = children(bench.pid());
    assert_eq!(children.len(), 9, "server, fleet, two agents, two applications and three Envoys");
    let folders: BTreeSet<PathBuf> = children.iter().flat_map(|child| open_folders(*child)).collect();
    assert_eq!(folders.len(), 2, "data and disks: {folders:?}");
    assert!(folders.iter().all(|folder| folder.exists()), "{folders:?}");

    let ended = bench.end_with(Signal::SIGINT, DEADLINE);
    assert_eq!(ended.code(), Some(130), "{}", bench.log());
    let alive = children.iter().filter(|child| Path::new(&format!("/proc/{child}")).exists());
    assert_eq!(alive.count(), 0);
    assert!(!folders.iter().any(|folder| folder.exists()), "{folders:?}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("its own folder").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_roll_out_tells_how_long_each_part_took() {
    let output =
        bench("rollout", &["--nodes", "20", "--workloads", "200", "--envoys", "0", "-o", "json"]).await.success();
    let report = output.json();
    assert_reached(&report, &["deregistration", "registration"], 200);
    let parts = ["join_seconds", "register_seconds", "leaves_seconds"];
    let parts: Vec<f64> = parts.iter().map(|part| report["rollout"][part].as_f64().expect("seconds")).collect();
    let whole = report["rollout"]["seconds"].as_f64().expect("seconds");
    assert!(parts.iter().all(|part| *part > 0.0) && (parts.iter().sum::<f64>() - whole).abs() < 1e-6, "{report:#}");
}
