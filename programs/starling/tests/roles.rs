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
    starling_at("127.0.0.1:0", role, directory, args)
}

/// The same, with its TLS door at an address.
fn starling_at(grpc_tls: &str, role: &str, directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.arg(role).arg("--data-dir").arg(directory).args(["--http-addr", "127.0.0.1:0"]);
    command.args(["--dns-addr", "127.0.0.1:0", "--grpc-tls-addr", grpc_tls, "--grpc-addr", "127.0.0.1:0"]);
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
    let password = ["--store", "etcd://user:secret@10.0.0.1:2379"];
    refused(&mut starling("server", &data, &password), 2, "never stands on the command line");
    let no_password = ["--store", "etcd://10.0.0.1:2379", "--etcd-user", "mesh"];
    refused(&mut starling("server", &data, &no_password), 2, "STARLING_ETCD_PASSWORD");
    let no_etcd = ["--etcd-user", "mesh"];
    refused(&mut starling("server", &data, &no_etcd), 2, "the store is embedded");
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
    let _stream = silent.accept().expect("the agent");
    let start = Instant::now();
    interrupt(&waiting);
    assert_eq!(ended(waiting).status.code(), Some(0));
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for its server");
}

/// A process that does not outlive the test.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.spawn().expect("the binary"))
    }

    /// Reads the log until a line says `word`, and answers with that line.
    fn until(&mut self, word: &str) -> String {
        let log = BufReader::new(self.0.stderr.as_mut().expect("it is piped"));
        let mut said = Vec::new();
        for line in log.lines().map_while(Result::ok) {
            if line.contains(word) {
                return line;
            }
            said.push(line);
        }
        panic!("it ended and never said {word:?}: {said:#?}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_node_that_is_there_before_its_server_waits_for_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let [server_data, agent_data] = ["server", "agent"].map(|name| directory.path().join(name));
    let mut first = Running::start(starling("server", &server_data, &[]));
    let ready = first.until("ready");
    let field = |name: &str| {
        let (_, rest) = ready.split_once(name).unwrap_or_else(|| panic!("no {name} in {ready}"));
        rest.split_whitespace().next().expect("a value").trim_matches('"').to_owned()
    };
    let (http, agents) = (field("http="), field("grpc_tls="));
    let mut create = Command::new(env!("CARGO_BIN_EXE_starling"));
    let created = create.args(["token", "create", "--join", "--http-addr", &http]).output().expect("the binary");
    let token = String::from_utf8(created.stdout).expect("text").trim().to_owned();
    interrupt(&first.0);
    first.0.wait().expect("a child");

    let args = ["--server", &agents, "--node-name", "n1", "--join-token", &token];
    let mut agent = Running::start(starling("agent", &agent_data, &args));
    let waits = agent.until("this node is not let in yet");
    assert!(waits.contains(&format!("joining through {agents}: the server at {agents} cannot be reached")), "{waits}");
    let mut again = Running::start(starling_at(&agents, "server", &server_data, &[]));
    again.until("ready");
    agent.until("ready");

    // What will not pass is not waited for.
    let args = ["--server", &agents, "--node-name", "n2", "--join-token", &token];
    refused(&mut starling("agent", &directory.path().join("other"), &args), 1, "node n1 has used it");
}
