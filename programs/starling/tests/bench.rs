//! `starling bench` from outside: what is left when it is killed.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

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

fn within(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
