//! A child process that ends with the test.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

/// Bytes of a process's output that a failed test prints: the end, where the cause is.
const PRINTED_BYTES_MAX: usize = 12 * 1024;

/// Time between two looks whether a process has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// The groups to kill when the test run is interrupted: being groups of their own, they do not hear of Ctrl-C.
static LIVING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

static WATCH: Once = Once::new();

/// The exit code of a program that SIGINT has ended, as shells tell it.
const INTERRUPTED: i32 = 130;

fn kill_all_when_interrupted() {
    let wait = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let mut terminate = signal(SignalKind::terminate()).expect("a signal handler");
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        });
        for group in LIVING.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // It may be gone already.
            let _ = killpg(Pid::from_raw(*group), Signal::SIGKILL);
        }
        std::process::exit(INTERRUPTED);
    };
    std::thread::spawn(wait);
}

/// A child in a process group of its own. Dropping it kills the whole group, and prints what it wrote if the test is
/// failing.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: NamedTempFile,
}

impl Process {
    /// Starts `command` with its output in a file.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(name: &str, mut command: Command) -> Self {
        let log = NamedTempFile::with_prefix(format!("starling-e2e-{name}-")).expect("a temporary file");
        let output = |log: &NamedTempFile| Stdio::from(File::options().append(true).open(log.path()).expect("its log"));
        command.stdin(Stdio::null()).stdout(output(&log)).stderr(output(&log)).process_group(0);
        WATCH.call_once(kill_all_when_interrupted);
        let mut living = LIVING.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {command:?}: {error}"));
        let process = Self { name: name.to_owned(), child, log };
        living.insert(process.pid().as_raw());
        process
    }

    /// Its process id, which is its group's, too.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id"))
    }

    /// Everything that it has written.
    #[must_use]
    pub fn log(&self) -> String {
        let mut bytes = Vec::new();
        // The log of a process that cannot be read is as good as empty.
        let _ = File::open(self.log.path()).and_then(|mut file| file.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Fails if it has ended.
    ///
    /// # Errors
    /// That it has, and what it wrote last.
    pub fn expect_running(&mut self) -> anyhow::Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => anyhow::bail!("{} ended with {status}: {}", self.name, tail(&self.log())),
        }
    }

    /// Kills the group at once, and waits until the child is gone.
    pub fn kill9(&mut self) {
        // The group may be gone already.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
        LIVING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid().as_raw());
    }

    /// Sends a signal to the child alone, and waits for its end.
    ///
    /// # Panics
    /// If it has not ended within `limit`.
    pub fn end_with(&mut self, signal: Signal, limit: Duration) -> ExitStatus {
        nix::sys::signal::kill(self.pid(), signal).expect("a running process");
        let start = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            assert!(start.elapsed() < limit, "{} still runs {limit:?} after {signal}", self.name);
            std::thread::sleep(LOOK_INTERVAL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("---- {} ----\n{}", self.name, tail(&self.log()));
        }
    }
}

fn tail(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(PRINTED_BYTES_MAX))..]
}
