//! `starling dev` from outside: when it is ready, how it ends, and what it refuses.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// A run with a directory of its own for temporary files; killed when dropped.
struct Dev {
    child: Child,
    temporary: TempDir,
}

impl Dev {
    fn start(args: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
        command.arg("dev").args(args).env_clear().env("TMPDIR", temporary.path());
        for flag in ["--http-addr", "--grpc-addr", "--grpc-tls-addr", "--dns-addr"] {
            if !args.contains(&flag) {
                command.args([flag, "127.0.0.1:0"]);
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Self { child: command.spawn().expect("the binary"), temporary }
    }

    /// Reads the log until it has told each of `fields`, in whatever order, and gives what it told.
    fn told<const N: usize>(&mut self, fields: [&str; N]) -> [String; N] {
        let mut found = [const { String::new() }; N];
        let log = BufReader::new(self.child.stderr.as_mut().expect("it is piped"));
        for line in log.lines().map_while(Result::ok) {
            for (field, found) in fields.iter().zip(&mut found) {
                if let Some((_, value)) = line.split_once(field) {
                    *found = value.split_whitespace().next().unwrap_or_default().to_owned();
                }
            }
            if found.iter().all(|value| !value.is_empty()) {
                return found;
            }
        }
        panic!("it ended and told only {found:?}");
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().expect("a process identifier")), signal).expect("it runs");
    }

    /// The exit code, and what is left of its temporary files.
    fn end(&mut self) -> (Option<i32>, Vec<std::ffi::OsString>) {
        let mut code = None;
        within(|| {
            code = self.child.try_wait().expect("a child");
            code.is_some()
        });
        (code.and_then(|status| status.code()), names(self.temporary.path()))
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn within(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < end, "not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

fn names(directory: &Path) -> Vec<std::ffi::OsString> {
    let entries = std::fs::read_dir(directory).expect("the directory");
    entries.map(|entry| entry.expect("an entry").file_name()).collect()
}

#[test]
fn silent_connections_do_not_hold_it() {
    let mut dev = Dev::start(&[]);
    let addresses = dev.told(["serving xDS in plaintext address=", " http="]);
    let open = addresses.map(|address| TcpStream::connect(address).expect("it listens"));
    dev.signal(Signal::SIGTERM);
    assert_eq!(dev.end(), (Some(0), Vec::new()));
    drop(open);
}

#[test]
fn whoever_is_answered_sees_every_definition() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut text = String::new();
    for number in 0..300 {
        writeln!(text, "service {{ name = \"s{number}\" }}").expect("text");
    }
    // The address has to be known before the doors open.
    let http = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").to_string();
    std::fs::write(directory.path().join("all.hcl"), text).expect("the file");
    let config = directory.path().to_str().expect("a path in UTF-8");
    let mut dev = Dev::start(&["--config-dir", config, "--http-addr", &http]);
    let mut stream = None;
    within(|| {
        stream = TcpStream::connect(&http).ok();
        stream.is_some()
    });
    let mut stream = stream.expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    stream.write_all(b"GET /v1/agent/services HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer.matches("\"Service\":").count(), 300, "{answer}");
    dev.signal(Signal::SIGINT);
    assert_eq!(dev.end(), (Some(0), Vec::new()));
}

#[test]
fn interrupted_while_it_starts_it_leaves_nothing() {
    let mut dev = Dev::start(&[]);
    within(|| !names(dev.temporary.path()).is_empty());
    dev.signal(Signal::SIGHUP);
    assert_eq!(dev.end(), (Some(0), Vec::new()));
}

#[test]
fn what_cannot_be_right_is_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("check.hcl");
    std::fs::write(&file, "check {\n  name = \"alone\"\n  ttl = \"10s\"\n}\n").expect("the file");
    let (config, file) = (directory.path().to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    for (args, wanted) in [
        (["--grpc-addr", "0.0.0.0:0"], "loopback only"),
        (["--data-dir", file], "is not a directory"),
        (["--config-dir", config], "\"alone\" stands outside a service"),
    ] {
        let mut dev = Dev::start(&args);
        assert_eq!(dev.end(), (Some(2), Vec::new()));
        let mut said = String::new();
        dev.child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
        assert!(said.contains(wanted), "{said}");
    }
}
