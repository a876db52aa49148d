//! The benchmark under hard conditions, in small: nobody is forgotten, and nothing is left behind.

use std::path::Path;
use std::process::{Command, Output as Finished};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use starling_e2e::{Output, Process, bare, eventually_within, run_within, tools};

/// A debug build among other tests takes a while to bring a fleet up.
const BENCH_TIME_MAX: Duration = Duration::from_secs(600);

/// Where nft is, also for users whose search path is without the administrators' programs.
const NFT: [&str; 2] = ["nft", "/usr/sbin/nft"];

/// Workloads of the fleets here; every node has some.
const WORKLOADS: u64 = 80;

fn faults(arguments: &[&str]) -> Command {
    let mut command = Command::new(tools::starling());
    bare(&mut command);
    command.args(["bench", "faults", "--nodes", "40", "--workloads", "80", "--pause", "0"]).args(arguments);
    command
}

/// How late this machine lets a thread run that has asked for it.
struct Lateness {
    ended: Arc<AtomicBool>,
    watching: JoinHandle<Duration>,
}

impl Lateness {
    fn watch() -> Self {
        const STEP: Duration = Duration::from_millis(20);
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        let watching = thread::spawn(move || {
            let mut worst = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                let asked = Instant::now();
                thread::sleep(STEP);
                worst = worst.max(asked.elapsed().saturating_sub(STEP));
            }
            worst
        });
        Self { ended, watching }
    }

    /// The longest so far.
    fn worst(self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        self.watching.join().expect("it counts")
    }
}

async fn run(arguments: &[&str]) -> Output {
    run_within(faults(&[arguments, &["-o", "json"]].concat()), BENCH_TIME_MAX).await
}

/// Fails unless each change reached everybody whom it concerned; they are answered by kind and number of workloads.
#[track_caller]
fn reached(report: &Value) -> Vec<(&str, u64)> {
    let changes = report["changes"].as_array().expect("a list of changes");
    for change in changes {
        assert!(change["affected"] == change["applied"] && change["latency_ms"]["p99"].is_f64(), "{change:#}");
    }
    changes.iter().map(|it| (it["kind"].as_str().expect("text"), it["applied"].as_u64().expect("a count"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_slowly_is_late_and_nobody_else_is() {
    let machine = Lateness::watch();
    let output = run(&["--slow-readers", "4", "--slow-rate", "8192", "--changes", "2"]).await.success();
    let late = machine.worst();
    let report = output.json();
    let changes = reached(&report);
    let kinds: Vec<_> = changes.iter().map(|(kind, _)| *kind).collect();
    let (gone, back) = ("deregistration beside slow readers", "registration beside slow readers");
    assert_eq!(kinds, ["deregistration", "registration", gone, back, "newest state at slow readers"]);
    let counts: Vec<_> = changes.iter().map(|(_, count)| *count).collect();
    let slow_workloads = counts[4];
    assert!(slow_workloads >= 4 && counts[..4] == [WORKLOADS - slow_workloads; 4], "{counts:?}");

    let slow = &report["faults"]["slow_readers"];
    assert_eq!((&slow["nodes"], &slow["bytes_per_second"]), (&4.into(), &8192.into()));
    assert_eq!(slow["behind_min"], 4, "they are slow: {slow:#}");
    assert_eq!(slow["caught_up"], 4, "they are not wrong: {slow:#}");
    // An agent that is not let run for most of a second pings late, and counts as dead: then that is the machine.
    if late < Duration::from_millis(300) {
        assert_eq!(slow["connections_lost"], 0, "they are not dead: {slow:#}");
    }
    assert!(slow["unsent_bytes_max"].as_u64() >= Some(4 * 1024), "the server waits for them: {slow:#}");
    for figure in ["p99_ms_without", "p99_ms_with", "p99_ratio", "caught_up_seconds"] {
        assert!(slow[figure].as_f64() > Some(0.0), "{figure} in {slow:#}");
    }
    assert!(report["faults"]["bad_network"].is_null(), "{report:#}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whose_connection_is_reset_during_a_change_hears_of_it_all_the_same() {
    let report = run(&["--resets", "20", "--changes", "4"]).await.success().json();
    let (gone, back) = ("deregistration under resets", "registration under resets");
    let all = [gone, back, gone, back].map(|kind| (kind, WORKLOADS));
    assert_eq!(reached(&report), all);
    let network = &report["faults"]["bad_network"];
    assert_eq!((&network["connections_reset"], &network["packets_lost"]), (&(4 * 8).into(), &0.into()), "{network:#}");
    assert!(report["faults"]["slow_readers"].is_null(), "{report:#}");
}

/// With the right to filter packets it is used, and given back; without, it is said what is missing. Both are tested, each
/// where it is so.
#[tokio::test(flavor = "multi_thread")]
async fn packets_are_lost_or_it_is_said_why_they_cannot_be() {
    let arguments = ["--loss", "5", "--resets", "10", "--changes", "2"];
    let output = run(&arguments).await;
    if tables().is_none() {
        let text = output.to_string();
        assert!(text.contains("nftables") || text.contains("CAP_NET_ADMIN"), "{text}");
        assert!(text.contains("--loss 0") && output.code == 1, "{text}");
        return;
    }
    let report = output.success().json();
    reached(&report);
    assert!(report["faults"]["bad_network"]["packets_lost"].as_u64() > Some(0), "{report:#}");

    // Killed, a run cannot put anything right; the next one does. Interrupted, it does so itself.
    let endless = || Bench(Process::spawn("bench", faults(&["--loss", "5", "--changes", "10000", "--keep"])));
    let mut killed = endless();
    killed.until_table().await;
    killed.0.kill9();
    assert!(killed.has_table());
    let mut next = endless();
    next.until_table().await;
    assert!(!killed.has_table());
    next.0.end_with(Signal::SIGINT, BENCH_TIME_MAX);
    assert!(!next.has_table(), "{:?}", tables());
}

/// A run with `--keep`; what it kept is removed when this is dropped, even if the run was killed.
struct Bench(Process);

impl Bench {
    async fn until_table(&mut self) {
        let what = format!("a table of process {}", self.0.pid());
        eventually_within(BENCH_TIME_MAX, &what, async || {
            self.0.expect_running()?;
            anyhow::ensure!(self.has_table(), "there are {:?}", tables());
            Ok(())
        })
        .await;
    }

    /// Whether there is a table of nftables that this run has made.
    fn has_table(&self) -> bool {
        tables().is_some_and(|tables| tables.contains(&format!("starling_bench_{}_", self.0.pid())))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.0.kill9();
        let log = self.0.log();
        let kept = log.split([' ', ',', '\n']).map(Path::new).filter(|word| word.is_absolute());
        for folder in
            kept.filter(|it| it.file_name().is_some_and(|it| it.to_string_lossy().starts_with("starling-bench-")))
        {
            // A test that has failed says why, and not that this fails, too.
            let _ = std::fs::remove_dir_all(folder);
        }
    }
}

/// All tables of nftables; `None` where they may not be seen.
fn tables() -> Option<String> {
    let list = |program: &&str| Command::new(program).args(["list", "tables"]).output().ok();
    let Finished { status, stdout, .. } = NFT.iter().find_map(list)?;
    status.success().then(|| String::from_utf8_lossy(&stdout).into_owned())
}
