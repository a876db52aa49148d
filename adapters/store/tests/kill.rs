//! kill -9, a hundred times under write load: what was acknowledged is there.
//!
//! The test runs itself again as a child that opens the store, writes from several tasks and
//! prints every acknowledgement; the parent kills it at a random moment and looks.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the report, in its helpers too")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use starling_store::{EmbeddedOptions, EmbeddedStore, Expected, Holder, Key, OpenError, Revision, Store, Transaction};

const KILLS: u32 = 100;

/// Tasks writing at once in the child, so that commits share groups.
const TASKS: u64 = 24;

/// In the child's environment: the data directory.
const DIRECTORY: &str = "STARLING_STORE_TEST_DIRECTORY";
/// In the child's environment: a number that no other child has.
const RUN: &str = "STARLING_STORE_TEST_RUN";

/// How long the parent waits for a child's line, or its end.
const DEADLINE: Duration = Duration::from_secs(20);

fn value(run: u64, task: u64, step: u64) -> Vec<u8> {
    format!("{run}/{task}/{step};").repeat(usize::try_from(1 + step % 40).unwrap()).into_bytes()
}

fn unique(run: u64, task: u64, step: u64) -> String {
    format!("unique/{run}/{task}/{step}")
}

/// Writes until killed. Each transaction puts a key of its own and moves its task's counter.
fn child(directory: &Path, run: u64) -> ! {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let store = EmbeddedStore::open(directory, EmbeddedOptions::default()).unwrap();
        let store = Arc::new(store);
        let tasks = (0..TASKS).map(|task| tokio::spawn(write(Arc::clone(&store), run, task)));
        futures::future::join_all(tasks.collect::<Vec<_>>()).await;
    });
    unreachable!("the tasks write for ever");
}

async fn write(store: Arc<EmbeddedStore>, run: u64, task: u64) {
    let counter = Key::new(format!("counter/{run}/{task}")).unwrap();
    let mut expected = Expected::Absent;
    for step in 0.. {
        let transaction = Transaction::new()
            .require(counter.clone(), expected)
            .put(counter.clone(), step.to_string())
            .put(Key::new(unique(run, task, step)).unwrap(), value(run, task, step));
        let revision = store.commit(transaction).await.unwrap();
        expected = Expected::ModifiedAt(revision);
        println!("acknowledged {run} {task} {step} {revision} .");
    }
}

/// A child process that does not outlive its test.
struct Killed {
    child: Child,
    lines: Receiver<String>,
}

impl Killed {
    fn spawn(test: &str, directory: &Path, run: u64) -> Killed {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(DIRECTORY, directory)
            .env(RUN, run.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Killed { child, lines }
    }

    /// Lines up to and including the first acknowledgement.
    fn until_first(&self) -> Vec<String> {
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|line: &String| line.starts_with("acknowledged")) {
            seen.push(self.lines.recv_timeout(DEADLINE).expect("a child that writes"));
        }
        seen
    }

    /// Kills the child and answers what it still had said.
    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(DEADLINE) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("the child's output did not end"),
            }
        }
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Run, task, step and revision of a complete line; the last of a killed child may be torn.
fn acknowledgement(line: &str) -> Option<[u64; 4]> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        ["acknowledged", run, task, step, revision, "."] => {
            Some([run, task, step, revision].map(|word| word.parse().unwrap()))
        }
        _ => None,
    }
}

/// Opens what a child left and compares it with everything acknowledged so far.
async fn check(directory: &Path, acknowledged: &BTreeMap<u64, [u64; 3]>) {
    let store = EmbeddedStore::open(directory, EmbeddedOptions::default()).unwrap();
    let snapshot = store.load().await.unwrap();
    let mut by_revision = BTreeMap::new();
    let mut counters = BTreeMap::new();
    for entry in &snapshot.entries {
        let name = entry.key.to_string();
        if name.starts_with("unique/") {
            assert_eq!(entry.created, entry.modified);
            assert!(by_revision.insert(entry.modified, entry).is_none());
        } else {
            counters.insert(name, entry);
        }
    }
    let all = (1..=snapshot.revision.0).map(Revision);
    assert!(by_revision.keys().copied().eq(all), "revisions are contiguous");
    for (revision, [run, task, step]) in acknowledged {
        let entry = by_revision.get(&Revision(*revision)).expect("acknowledged, so there");
        assert_eq!(entry.key.to_string(), unique(*run, *task, *step));
        assert_eq!(entry.value, value(*run, *task, *step));
    }
    // The other half of each transaction came with it: the counter stands at the last step.
    let mut last = BTreeMap::new();
    for (revision, entry) in &by_revision {
        let name = entry.key.to_string();
        let (task, step) = name["unique/".len()..].rsplit_once('/').unwrap();
        last.insert(format!("counter/{task}"), (step.to_string(), *revision));
    }
    assert_eq!(last.len(), counters.len());
    for (name, (step, revision)) in last {
        let counter = counters[&name];
        assert_eq!((&counter.value[..], counter.modified), (step.as_bytes(), revision));
    }
}

#[test]
fn acknowledged_writes_survive_a_hundred_kills() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        child(Path::new(&directory), std::env::var(RUN).unwrap().parse().unwrap());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let parent = tempfile::tempdir().unwrap();
    let mut random = fastrand::Rng::with_seed(9);
    let mut acknowledged = BTreeMap::new();
    let mut directory = parent.path().join("0");
    for run in 0..KILLS {
        // A fresh directory now and then, so that creation is interrupted too.
        if run % 20 == 0 {
            directory = parent.path().join(run.to_string());
            acknowledged.clear();
        }
        let child = Killed::spawn("acknowledged_writes_survive_a_hundred_kills", &directory, u64::from(run));
        // Half of them early, to hit opening and recovery; half once writing is under way.
        let mut lines = if run % 2 == 0 { Vec::new() } else { child.until_first() };
        pause(Duration::from_micros(random.u64(..60_000)));
        lines.extend(child.kill());
        for [run, task, step, revision] in lines.iter().filter_map(|line| acknowledgement(line)) {
            assert!(acknowledged.insert(revision, [run, task, step]).is_none());
        }
        runtime.block_on(check(&directory, &acknowledged));
        assert!(run % 2 == 0 || !acknowledged.is_empty());
    }
    assert!(acknowledged.len() > 100, "only {} acknowledged", acknowledged.len());
}

/// The random moment of a kill is the point of the test, not a wait for a condition.
fn pause(duration: Duration) {
    let until = Instant::now() + duration;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        std::thread::park_timeout(left);
    }
}

#[test]
fn a_directory_held_by_another_process_is_refused_until_that_is_killed() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        child(Path::new(&directory), 0);
    }
    let directory = tempfile::tempdir().unwrap();
    let child =
        Killed::spawn("a_directory_held_by_another_process_is_refused_until_that_is_killed", directory.path(), 0);
    child.until_first();
    let error = EmbeddedStore::open(directory.path(), EmbeddedOptions::default()).expect_err("one process at a time");
    let holder = Holder::Process(child.child.id());
    assert!(matches!(error, OpenError::InUse { holder: h, .. } if h == holder), "{error:?}");
    child.kill();
    EmbeddedStore::open(directory.path(), EmbeddedOptions::default()).unwrap();
}
