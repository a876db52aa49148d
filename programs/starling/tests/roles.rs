//! `starling server` and `starling agent` from outside: what they refuse, and how they end.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longer than anything here takes; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

fn starling(role: &str, directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg(role).arg("--data-dir").arg(directory).args(["--http-addr", "127.0.0.1:0"]);
    command.args(["--dns-addr", "127.0.0.1:0", "--grpc-tls-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"]);
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn ended(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > DEADLINE {
            child.kill().expect("it runs");
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

#[track_caller]
fn refused(command: &mut Command, code: i32, expected: &str) {
    let output = ended(command.spawn().expect("the binary"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(expected), "{said}");
}

/// Reads the log until it says `word`.
fn until(child: &mut Child, word: &str) {
    let log = BufReader::new(child.stderr.as_mut().expect("it is piped"));
    let found = log.lines().map_while(Result::ok).any(|line| line.contains(word));
    assert!(found, "it ended and never said {word:?}");
}

fn interrupt(child: &Child) {
    kill(Pid::from_raw(child.id().try_into().expect("a process identifier")), Signal::SIGINT).expect("it runs");
}

#[test]
fn what_cannot_be_is_wrong_usage_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    let settings = directory.path().join("settings.toml");
    std::fs::write(&settings, "csr_per_second = 1\n").expect("written");
    let settings = settings.to_str().expect("text");
    let etcd = ["--store", "etcd://10.0.0.1:2379"];
    refused(&mut starling("server", &data, &etcd), 2, "etcd is not in this release");
    refused(&mut starling("server", &data, &["--config", settings]), 2, "unknown field `csr_per_second`");
    refused(&mut starling("server", &data, &["--config", "gone.toml"]), 2, "cannot read gone.toml");
    refused(&mut starling("agent", &data, &[]), 2, "--server");
    refused(&mut starling("agent", &data, &["--server", "a b"]), 2, "is not of the form HOST:PORT");
    let file = ["--server", "127.0.0.1", "--join-token-file", "gone"];
    refused(&mut starling("agent", &data, &file), 2, "--join-token-file: cannot read gone");
    assert!(!data.exists(), "a refusal left a data directory");
}

#[test]
fn an_agent_brings_services_and_no_config_entries() {
    let directory = tempfile::tempdir().expect("a directory");
    let entry = "config_entries { bootstrap = [{ Kind = \"service-defaults\", Name = \"web\", Protocol = \"http\" }] }";
    std::fs::write(directory.path().join("web.hcl"), entry).expect("written");
    let folder = directory.path().to_str().expect("text");
    let data = directory.path().join("data");
    let args = ["--server", "127.0.0.1", "--config-dir", folder];
    refused(&mut starling("agent", &data, &args), 2, "starling config write");
}

#[test]
fn a_server_ends_in_order_when_interrupted() {
    let directory = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        let mut server = starling("server", directory.path(), &[]).spawn().expect("the binary");
        until(&mut server, "ready");
        interrupt(&server);
        assert_eq!(ended(server).status.code(), Some(0));
    }
}

#[test]
fn an_agent_that_finds_no_server_says_so_and_ends_when_interrupted() {
    let directory = tempfile::tempdir().expect("a directory");
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = silent.local_addr().expect("its address").to_string();
    // Of the right form, for no mesh that is.
    let token = "starling-join.1.00000000000000ab.AwoRGB8mLTQ7QklQV15lbHN6gYiPlp2kq7K5wMfO1dw.\
                 ungWv48Bz-pBQUDeXa4iI7ADYaOWF3qctBD_YfIAFa0";
    let args = ["--server", address.as_str(), "--join-token", token];
    let waiting = starling("agent", directory.path(), &args).spawn().expect("the binary");
    // It connects, and nobody speaks TLS with it.
    let (_stream, _) = silent.accept().expect("the agent");
    let start = Instant::now();
    interrupt(&waiting);
    assert_eq!(ended(waiting).status.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for its server");
    drop((_stream, silent));
    refused(&mut starling("agent", directory.path(), &args), 1, &format!("joining through {address}"));
}
