//! `starling dev` from outside: when it is ready, how it ends, and what it refuses.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
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
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_starling")), args)
    }

    /// A run that may open `soft` files, and raise that to `hard`.
    fn start_within(soft: u32, hard: u32) -> Self {
        let mut command = Command::new("/bin/sh");
        let limits = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
        command.args(["-c", &limits, env!("CARGO_BIN_EXE_starling")]);
        Self::start_by(command, &[])
    }

    fn start_by(mut command: Command, args: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a directory");
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
        let (_told, waiting) = mpsc::channel::<()>();
        let child = self.pid();
        std::thread::spawn(move || {
            // Its end is the end of the log.
            if waiting.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
                kill(child, Signal::SIGKILL).expect("it runs");
            }
        });
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
        kill(self.pid(), signal).expect("it runs");
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().expect("a process identifier"))
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
    stream.write_all(b"GET /v1/agent/services HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
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
    std::fs::write(&file, "check {\n  name = \"alone\"\n  service_id = \"gone\"\n  ttl = \"10s\"\n}\n")
        .expect("the file");
    let (config, file) = (directory.path().to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    let broken = tempfile::tempdir().expect("a directory");
    std::fs::write(broken.path().join("broken.hcl"), "service {").expect("the file");
    let broken = broken.path().to_str().expect("UTF-8");
    for (args, wanted) in [
        (["--grpc-addr", "0.0.0.0:0"], "loopback only"),
        (["--data-dir", file], "is not a directory"),
        (["--config-dir", config], "no file defines a service gone"),
        (["--config-dir", broken], "broken.hcl"),
        (["--config-dir", "/nowhere/at/all"], "cannot read /nowhere/at/all"),
        (["--proxy-admin", "0.0.0.0:19000"], "no loopback address"),
        (["--log-level", "bogus"], "log filter \"bogus\" is not understood"),
    ] {
        let mut dev = Dev::start(&args);
        assert_eq!(dev.end(), (Some(2), Vec::new()));
        let mut said = String::new();
        dev.child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
        assert!(said.contains(wanted), "{said}");
    }
}

#[test]
fn a_fake_service_that_cannot_be_is_wrong_usage() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg("fake-service").env_clear().env("ERROR_RATE", "often");
    let output = command.output().expect("it ran");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("ERROR_RATE"), "{said}");
}

#[test]
fn open_files_are_limited_by_the_system_only() {
    let mut dev = Dev::start_within(256, 2_048);
    dev.told(["http="]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", dev.child.id())).expect("its limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).expect("a line of it");
    assert_eq!(files.split_whitespace().nth(3), Some("2048"), "{files}");
    dev.signal(Signal::SIGINT);
    assert_eq!(dev.end(), (Some(0), Vec::new()));
}

/// Asks the API over a connection that is there, and gives the answer's body.
fn ask(stream: &mut TcpStream, method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}")
        .expect("sent");
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line of the head");
        match line.trim_end().to_ascii_lowercase().split_once(": ") {
            Some(("content-length", text)) => length = text.parse().expect("a number"),
            Some(_) => {}
            None if line.trim_end().is_empty() => break,
            None => assert!(line.starts_with("HTTP/1.1 200 "), "{line}"),
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    String::from_utf8(body).expect("text")
}

#[test]
fn a_node_without_descriptors_calls_nobody_unhealthy() {
    let mut dev = Dev::start(&[]);
    let [http] = dev.told([" http="]);
    let application = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut api = TcpStream::connect(&http).expect("the API");
    api.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let check = format!(r#"{{"TCP": "{}", "Interval": "20ms"}}"#, application.local_addr().expect("its address"));
    ask(&mut api, "PUT", "/v1/agent/service/register", &format!(r#"{{"Name": "web", "Check": {check}}}"#));
    let mut checks = || ask(&mut api, "GET", "/v1/agent/checks", "");
    within(|| checks().contains("\"Status\":\"passing\""));
    // What is open stays open; nothing more can be opened.
    let pid = rustix::process::Pid::from_raw(dev.pid().as_raw()).expect("a process");
    let none = rustix::process::Rlimit { current: Some(3), maximum: Some(3) };
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Nofile, none).expect("its limit is set");
    dev.told(["checks cannot run"]);
    let found = checks();
    assert!(found.contains("\"Status\":\"passing\"") && !found.contains("open files"), "{found}");
}

/// Answers every request with nothing, for as long as the test runs.
fn application() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || {
                let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
                while lines.any(|line| line.is_empty()) {
                    if (&stream).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port()
}

#[test]
fn what_the_native_data_plane_does_is_counted_logged_and_shown() {
    let directory = tempfile::tempdir().expect("a directory");
    let (log, admin) = (directory.path().join("access.log"), directory.path().join("admin.sock"));
    let (app, public, own, outbound) = (application(), free_port(), free_port(), free_port());
    let definitions = format!(
        r#"
        services {{ name = "api", port = {app}, connect {{ sidecar_service {{ port = {public} }} }} }}
        services {{ name = "web", port = {app}, connect {{ sidecar_service {{ port = {own}, proxy {{
            upstreams {{ destination_name = "api", local_bind_port = {outbound} }}
        }} }} }} }}
        "#
    );
    let entry = format!(
        r#"{{"config_entries": {{"bootstrap": [{{
            "Kind": "proxy-defaults", "Name": "global", "Config": {{"protocol": "http"}}, "AccessLogs":
            {{"Enabled": true, "Type": "file", "Path": {log:?}, "TextFormat": "%REQ(:PATH)% %RESPONSE_CODE%"}}
        }}]}}}}"#
    );
    std::fs::write(directory.path().join("services.hcl"), definitions).expect("the file");
    std::fs::write(directory.path().join("defaults.json"), entry).expect("the file");
    let (config, door) = (directory.path().to_str().expect("UTF-8"), format!("unix:{}", admin.display()));
    let mut dev = Dev::start(&["--config-dir", config, "--proxy-admin", &door]);
    let [http] = dev.told([" http="]);

    let status = || {
        let mut stream = TcpStream::connect(("127.0.0.1", outbound)).ok()?;
        stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
        stream.write_all(b"GET /seen HTTP/1.1\r\nHost: api\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.get(9..12).map(str::to_owned)
    };
    within(|| status().as_deref() == Some("200"));
    let mut api = TcpStream::connect(&http).expect("the API");
    let mut metrics = || ask(&mut api, "GET", "/v1/agent/metrics?format=prometheus", "");
    let series =
        "starling_proxy_requests_total{service=\"web\",upstream=\"api\",direction=\"outbound\",class=\"2xx\"} 1";
    within(|| metrics().contains(series));
    // Both ends have logged it.
    within(|| std::fs::read_to_string(&log).is_ok_and(|text| text.matches("/seen 200\n").count() == 2));
    let mut operator = UnixStream::connect(&admin).expect("the admin interface");
    operator.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    operator.write_all(b"GET /config HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").expect("sent");
    let mut shown = String::new();
    operator.read_to_string(&mut shown).expect("an answer");
    assert!(shown.contains("# web-sidecar-proxy at revision"), "{shown}");
    dev.signal(Signal::SIGTERM);
    assert_eq!(dev.end(), (Some(0), Vec::new()));
    assert!(!admin.exists());
}
