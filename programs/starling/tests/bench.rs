//! `starling bench` from outside: what is left when it is killed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// The same for a bench that brings up both planes.
const BENCH_DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn a_killed_bench_leaves_no_process() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    // No Envoy, and far more changes than can be made before the end.
    command.args(["bench", "scale", "--services", "2", "--upstreams", "1", "--sidecars", "0", "--changes", "1000"]);
    command.env_clear().env("TMPDIR", temporary.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut bench = Killed(command.spawn().expect("the binary"));
    let mut server = None;
    within(|| {
        server = processes().find(|process| process.parent == bench.0.id() && process.runs("dev"));
        server.is_some()
    });
    let server = server.expect("it was waited for");
    bench.0.kill().expect("it runs");
    bench.0.wait().expect("it was killed");
    let server = Orphan(server.id);
    within(|| !server.is_there());
}

/// Figures of the rows below, each of both planes.
const FIGURES: [&str; 6] = [
    "requests_per_second",
    "cpu_per_request_us",
    "added_p50_ms",
    "added_p99_ms",
    "memory_idle_mb",
    "memory_under_load_mb",
];

/// What the bars make of it is not asked: this is a debug build on a machine that does other things.
#[test]
fn a_short_bench_of_the_proxies_reports_every_figure_of_both() {
    let place = tempfile::tempdir().expect("a directory");
    let json = place.path().join("report.json").display().to_string();
    let short = ["--rounds", "1", "--seconds", "0.2", "--only", "throughput,latency,memory", "--json", &json];
    let Ended { code, said, .. } = Running::start(&[&["proxy"][..], &short].concat()).ended();
    // 1 is a bar that was missed, or a figure that may not be believed.
    assert!(matches!(code, Some(0 | 1)), "{code:?}: {said}");
    let report = std::fs::read(&json).unwrap_or_else(|error| panic!("no report: {error}: {said}"));
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let figures = report["figures"].as_array().expect("figures");
    let names: BTreeSet<_> = figures.iter().filter_map(|figure| figure["figure"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(FIGURES), "{report:#}");
    for figure in figures {
        for plane in ["native", "envoy"] {
            assert!(figure[plane].is_number(), "{plane}: {figure:#}");
            assert_eq!(figure[format!("{plane}_rounds")].as_array().map(Vec::len), Some(1), "{figure:#}");
        }
        assert!(figure["met"].is_boolean() && figure["bar"].is_object() && figure["name"].is_string(), "{figure:#}");
    }
    assert_eq!((&report["rounds"], &report["seconds"]), (&Value::from(1), &Value::from(0.2)));
    assert!(report["problems"].is_array() && report["machine"].is_object(), "{report:#}");
    assert!(report["versions"]["envoy"].as_str().is_some_and(|version| version.starts_with('1')), "{report:#}");
}

/// Every scenario of what proxies cost, on native proxies alone: all of it in some seconds, so that figures are nobody's.
#[test]
fn short_runs_of_what_proxies_cost_have_a_cell_for_each_variant() {
    let common = ["--proxy", "native", "--seconds", "0.3", "--warm-up", "0.1", "--rounds"];
    let latency = cost(&[&["latency", "--connections", "2", "--policies", "2"][..], &common, &["2"]].concat());
    let modes = ["baseline", "baseline_again", "client", "server", "both"];
    assert_eq!(names(&latency, "mode"), modes, "{latency:#}");
    assert_eq!(latency["settings"]["policies"], 2);
    for cell in cells(&latency) {
        assert_eq!(cell["point"], serde_json::json!({ "connections": 2, "rate": 1000.0 }));
        assert_eq!(cell["rounds"].as_array().map(Vec::len), Some(2), "{cell:#}");
        let is_void = is_void(cell);
        assert_eq!(cell["hdr"].as_str().is_some_and(|log| log.starts_with("HISTF")), !is_void, "{cell:#}");
        assert_eq!(cell["latency_ms"]["p999"].is_number(), !is_void, "{cell:#}");
        let answered = |round: &Value| round["errors"] == 0 && round["requests"].as_u64() > Some(100);
        assert!(cell["rounds"].as_array().is_some_and(|rounds| rounds.iter().all(answered)), "{cell:#}");
    }
    for (scenario, point) in [("cpu", "--rates"), ("memory", "--connections"), ("throughput", "--rates")] {
        let report = cost(&[&[scenario, point, "20"][..], &common, &["1"]].concat());
        let both = cells(&report).iter().find(|cell| cell["mode"] == "both").expect("a variant");
        assert_eq!((&both["scenario"], &both["proxy"]), (&scenario.into(), &"native".into()));
        let proxies = &both["rounds"][0]["proxies"];
        assert!(proxies["caller_resident_mb"].as_f64() > Some(1.0), "{both:#}");
        assert!(proxies["cores"].as_f64() > Some(0.0), "{both:#}");
    }
}

/// Requests keep coming through while routes, endpoints and certificates change; what was made and the worst second are told.
#[test]
fn requests_are_measured_while_the_mesh_changes() {
    let short = ["--proxy", "native", "--rates", "200", "--rounds", "1", "--seconds", "2", "--warm-up", "0.1"];
    let report = cost(&[&["churn", "--changes-per-second", "0,20"][..], &short].concat());
    let [still, changing] = cells(&report) else { panic!("{report:#}") };
    let churn = |cell: &Value| cell["rounds"][0]["churn"].clone();
    assert_eq!((&still["point"]["changes_per_second"], &churn(still)["made"]), (&0.0.into(), &serde_json::json!({})));
    for kind in ["routes", "endpoints", "certificates"] {
        assert!(churn(changing)["made"][kind].as_u64() > Some(5), "{kind}: {report:#}");
    }
    for cell in [still, changing] {
        assert_eq!((&cell["mode"], &cell["rounds"][0]["errors"]), (&"both".into(), &0.into()), "{cell:#}");
        assert!(churn(cell)["worst_second"]["p99"].as_f64() > Some(0.0), "{cell:#}");
    }
}

/// Where proxies may not be limited, it is missing with what to do about it, and the rest is measured all the same.
#[test]
fn ingress_is_measured_through_a_gateway_and_under_a_limit() {
    let limits = ["--limits", "none,gateway:0.05:400", "--warm-up", "0.1", "--rounds", "1"];
    let report = cost(&[&["ingress", "--requests", "300", "--connections", "10"][..], &limits].concat());
    let (free, limited): (Vec<_>, Vec<_>) = cells(&report).iter().partition(|cell| cell["point"]["limited"].is_null());
    let through = |cells: &[&Value]| -> Vec<_> {
        let words = cells.iter().map(|cell| ["proxy", "mode"].map(|field| cell[field].as_str().unwrap_or_default()));
        words.map(|words| words.join(" ")).collect()
    };
    let all = ["none baseline", "native server", "native gateway", "envoy server", "envoy gateway"];
    assert_eq!(through(&free), all, "{report:#}");
    for cell in free.iter().chain(&limited) {
        assert_eq!(cell["rounds"][0]["status"], serde_json::json!({ "200": 300 }), "{cell:#}");
        assert_eq!(cell["latency_ms"]["p99"].as_f64() > Some(0.0), !is_void(cell), "{cell:#}");
        assert_eq!(cell["rounds"][0]["throttled_seconds"].is_null(), cell["point"]["limited"].is_null(), "{cell:#}");
    }
    if limited.is_empty() {
        let missing = report["missing"][0].as_str().unwrap_or_default();
        assert!(missing.contains("gateway:0.05:400") && missing.contains("run as root"), "{report:#}");
        return;
    }
    assert_eq!(through(&limited), ["native gateway", "envoy gateway"]);
    for cell in limited {
        assert!(cell["rounds"][0]["throttled_seconds"].as_f64() > Some(0.1), "{cell:#}");
        assert!(cell["rounds"][0]["proxies"]["caller_resident_mb"].as_f64() > Some(1.0), "{cell:#}");
    }
}

#[test]
fn memory_is_measured_with_services_that_are_called_and_that_are_not() {
    let report = cost(&["memory", "--proxy", "native", "--services", "5", "--seconds", "0.3", "--warm-up", "0.1"]);
    let points: Vec<_> = cells(&report).iter().map(|cell| &cell["point"]).collect();
    let expected =
        |scoped: bool| serde_json::json!({ "connections": 16, "rate": 100.0, "services": 5, "scoped": scoped });
    assert_eq!(points, [&expected(true), &expected(false)], "{report:#}");
    for cell in cells(&report).iter().filter(|cell| !is_void(cell)) {
        assert!(cell["rounds"][0]["proxies"]["caller_resident_mb"].as_f64() > Some(1.0), "{cell:#}");
    }
}

/// Without proxies nothing is brought up but the application; of a target not even that.
#[test]
fn no_mesh_is_measured_and_a_target_that_is_not_there_is_no_good_looking_number() {
    let short = ["--connections", "1", "--rounds", "2", "--seconds", "0.2", "--warm-up", "0.1", "--seed", "7"];
    let place = tempfile::tempdir().expect("a directory");
    let folder = place.path().join("a report").display().to_string();
    let report = cost(&[&["latency", "--proxy", "none", "--report", &folder][..], &short].concat());
    assert_is_on_a_page(place.path(), &report);
    assert_eq!(names(&report, "mode"), ["baseline", "baseline_again"]);
    assert_eq!((&report["schema"], &report["settings"]["seed"]), (&"starling-bench-cost/1".into(), &7.into()));
    let target = "url=http://127.0.0.1:1/,baseline=http://127.0.0.1:2/";
    let report = cost(&[&["latency", "--target", target][..], &short].concat());
    assert_eq!(names(&report, "proxy"), ["none", "none", "target"]);
    for cell in cells(&report) {
        assert!(cell["void"].as_str().is_some_and(|why| why.contains("connection refused")), "{cell:#}");
        assert!(cell.get("latency_ms").is_none() && cell.get("added").is_none(), "{cell:#}");
    }
    assert_eq!(report["missing"].as_array().map(Vec::len), Some(3), "{report:#}");
}

/// A run leaves a page beside its report, and pages are made of whole folders of them.
fn assert_is_on_a_page(place: &Path, report: &Value) {
    let file = place.join("a report/report.json");
    assert_eq!(&serde_json::from_slice::<Value>(&std::fs::read(file).expect("a report")).expect("JSON"), report);
    let page = std::fs::read_to_string(place.join("a report/report.html")).expect("a page");
    assert!(page.contains("<h1>starling bench latency</h1>") && page.contains(">no mesh</td>"), "{page}");
    let joined = place.join("all.html");
    let run = |paths: &[&Path]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        let made = command.args(["bench", "page", "--file"]).arg(&joined).args(paths).output().expect("it runs");
        let page = std::fs::read_to_string(&joined).expect("a page");
        (made.status.code(), page, String::from_utf8_lossy(&made.stderr).into_owned())
    };
    let (code, page, said) = run(&[place]);
    assert_eq!(code, Some(0), "{said}");
    assert!(page.contains("Latency that proxies add") && page.contains("Istio 1.2"), "{page}");
    let broken = place.join("broken.json");
    std::fs::write(&broken, "{}").expect("a file");
    let (code, page, said) = run(&[place, &broken]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("broken.json names no schema") && page.contains("broken.json names no schema"), "{said}");
    assert!(page.contains("Latency that proxies add"), "{page}");
}

/// What was measured until then is there, and says that it is not all.
#[test]
fn an_interrupted_run_reports_what_it_has() {
    let long = ["latency", "--proxy", "none", "--connections", "1", "--rounds", "100", "--seconds", "0.2"];
    let bench = Running::start(&[&long[..], &["--warm-up", "0.1", "--output", "json"]].concat());
    // A quarter of the measurements.
    within_time(BENCH_DEADLINE, || bench.said().contains("50 of 200"));
    bench.interrupt();
    let Ended { code, printed, said } = bench.ended();
    assert_eq!(code, Some(130), "{said}");
    let report: Value = serde_json::from_slice(&printed).unwrap_or_else(|error| panic!("{error}: {said}"));
    let rounds = |cell: &Value| cell["rounds"].as_array().map_or(0, Vec::len);
    assert!(cells(&report).iter().all(|cell| (24..100).contains(&rounds(cell))), "{report:#}");
    assert!(report["missing"][0].as_str().is_some_and(|why| why.starts_with("interrupted")), "{report:#}");
}

/// Parts run one after the other and are on one page; of an interrupted suite, those that have ended.
#[test]
fn a_suite_makes_one_page_of_its_parts() {
    let place = tempfile::tempdir().expect("a directory");
    let read = |name: &str| std::fs::read_to_string(place.path().join(name)).unwrap_or_default();
    let folder = place.path().display().to_string();
    let Ended { code, said, .. } = Running::start(&["suite", "smoke", "--report", &folder]).ended();
    let report: Value = serde_json::from_str(&read("report.json")).unwrap_or_else(|error| panic!("{error}: {said}"));
    let parts = report["parts"].as_array().expect("parts");
    let whole = parts.iter().filter(|part| part["exit_code"] == 0).count();
    assert_eq!((parts.len(), code), (2, Some(i32::from(whole < 2))), "{report:#}\n{said}");
    for (part, scenario) in parts.iter().zip(["latency", "cpu"]) {
        assert_eq!((&part["name"], &part["report"]), (&scenario.into(), &format!("{scenario}/report.json").into()));
        assert!(read("report.html").contains(scenario) && !read(&format!("{scenario}/report.html")).is_empty());
    }
}

/// Runs a scenario of what proxies cost. The exit code is 1 exactly if the report names something that is missing.
fn cost(arguments: &[&str]) -> Value {
    let Ended { code, printed, said } = Running::start(&[arguments, &["--output", "json"]].concat()).ended();
    let report: Value = serde_json::from_slice(&printed).unwrap_or_else(|error| panic!("{error}: {said}"));
    let is_whole = report["missing"].as_array().is_some_and(Vec::is_empty);
    assert_eq!(code, Some(i32::from(!is_whole)), "{report:#}\n{said}");
    report
}

/// A bench that runs, with what it prints and says in files.
struct Running {
    bench: Killed,
    place: TempDir,
}

/// A bench that has ended.
struct Ended {
    code: Option<i32>,
    printed: Vec<u8>,
    said: String,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let create = |name| std::fs::File::create(place.path().join(name)).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        command.arg("bench").args(arguments).env("TMPDIR", place.path());
        command.stdin(Stdio::null()).stdout(create("printed")).stderr(create("said"));
        Self { bench: Killed(command.spawn().expect("the binary")), place }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.place.path().join("said")).unwrap_or_default()
    }

    fn interrupt(&self) {
        let id = i32::try_from(self.bench.0.id()).expect("a process");
        kill(Pid::from_raw(id), Signal::SIGINT).expect("it runs");
    }

    fn ended(mut self) -> Ended {
        let mut status = None;
        within_time(BENCH_DEADLINE, || {
            status = self.bench.0.try_wait().expect("its child");
            status.is_some()
        });
        let printed = std::fs::read(self.place.path().join("printed")).expect("its output");
        Ended { code: status.and_then(|status| status.code()), printed, said: self.said() }
    }
}

fn cells(report: &Value) -> &[Value] {
    report["cells"].as_array().expect("cells")
}

/// On a busy machine the generator may be late, which is told in place of figures; nothing else may be.
fn is_void(cell: &Value) -> bool {
    let void = cell["void"].as_str();
    assert!(void.is_none_or(|why| why.contains("could not keep the rate")), "{cell:#}");
    void.is_some()
}

fn names<'a>(report: &'a Value, field: &str) -> Vec<&'a str> {
    cells(report).iter().filter_map(|cell| cell[field].as_str()).collect()
}

/// What a killed bench may have left; killed at the end if it did.
struct Orphan(u32);

impl Orphan {
    fn is_there(&self) -> bool {
        processes().any(|process| process.id == self.0 && process.runs("dev"))
    }
}

impl Drop for Orphan {
    fn drop(&mut self) {
        if self.is_there()
            && let Ok(id) = i32::try_from(self.0)
        {
            let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
        }
    }
}

/// A process that is killed at the end.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Process {
    id: u32,
    parent: u32,
    /// Empty of one that has ended and was not waited for.
    arguments: Vec<String>,
}

impl Process {
    fn runs(&self, subcommand: &str) -> bool {
        self.arguments.get(1).is_some_and(|argument| argument == subcommand)
    }
}

/// What runs on this machine.
fn processes() -> impl Iterator<Item = Process> {
    let folders = std::fs::read_dir("/proc").expect("Linux").flatten();
    folders.filter_map(|folder| {
        let id = folder.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(folder.path().join("status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        let line = std::fs::read_to_string(folder.path().join("cmdline")).ok()?;
        Some(Process { id, parent, arguments: line.split('\0').map(str::to_owned).collect() })
    })
}

fn within(holds: impl FnMut() -> bool) {
    within_time(DEADLINE, holds);
}

fn within_time(time: Duration, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + time;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {time:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
