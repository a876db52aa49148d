//! A `starling server` in a process of its own, and its API.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use starling_tls::CertificateAuthority;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::DEADLINE;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The port of the first instance; each has its own.
pub(crate) const FIRST_PORT: u16 = 1_000;

pub(crate) struct Server {
    pub(crate) agents_address: String,
    http: String,
    child: Child,
    data: tempfile::TempDir,
}

/// What was made and sent for agents since the process began.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) encoded: u64,
    pub(crate) frames: u64,
}

impl Server {
    pub(crate) async fn start() -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let (child, http, agents_address) = spawn(data.path(), "127.0.0.1:0", "127.0.0.1:0");
        Self { agents_address, http, child, data }
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child");
    }

    /// A copy of its store, while it does not run.
    pub(crate) fn copy_store(&self) -> tempfile::TempDir {
        let copy = tempfile::tempdir().expect("a directory");
        copy_files(&self.data.path().join("store"), copy.path());
        copy
    }

    /// Puts a copy in the place of its store, while it does not run.
    pub(crate) fn restore_store(&self, copy: &Path) {
        let store = self.data.path().join("store");
        std::fs::remove_dir_all(&store).expect("its store");
        std::fs::create_dir(&store).expect("a directory");
        copy_files(copy, &store);
    }

    /// Starts it again with the same data and addresses.
    pub(crate) async fn start_again(&mut self) {
        (self.child, ..) = spawn(self.data.path(), &self.http, &self.agents_address);
    }

    /// Its CA, to make agents' certificates with.
    pub(crate) fn authority(&self) -> CertificateAuthority {
        CertificateAuthority::open(self.data.path()).expect("its CA")
    }

    /// Registers an instance of `web` on another node.
    pub(crate) async fn register(&self, instance: u16, port: u16) {
        let answer = self.send("PUT", "/v1/catalog/register", &registration(instance, port)).await;
        assert!(matches!(answer, Some((200, _))), "{instance} cannot be registered: {answer:?}");
    }

    pub(crate) async fn deregister(&self, instance: u16) {
        let body = json!({"Node": "elsewhere", "ServiceID": format!("web-{instance}")});
        let answer = self.send("PUT", "/v1/catalog/deregister", &body).await;
        assert!(matches!(answer, Some((200, _))), "{instance} cannot be deregistered: {answer:?}");
    }

    /// Registers instances from `first` on, one after the other, and kills the server in the midst of it; answers with
    /// what it acknowledged.
    pub(crate) async fn kill_while_registering(&mut self, first: u16) -> BTreeSet<u16> {
        let acknowledged: BTreeSet<_> = (first..first + 20).collect();
        for instance in &acknowledged {
            self.register(*instance, FIRST_PORT + instance).await;
        }
        {
            let last = registration(first + 20, FIRST_PORT + first + 20);
            let mut writing = std::pin::pin!(self.send("PUT", "/v1/catalog/register", &last));
            // It is on its way.
            let _ = tokio::time::timeout(Duration::from_millis(1), &mut writing).await;
            nix::sys::signal::kill(pid(&self.child), nix::sys::signal::Signal::SIGKILL).expect("it runs");
        }
        self.child.wait().expect("a child");
        acknowledged
    }

    /// Fails if one of these instances is not there.
    pub(crate) async fn assert_there(&self, instances: &BTreeSet<u16>) {
        let there = self.ports().await;
        let lost: Vec<_> = instances.iter().filter(|instance| there.iter().all(|(id, _)| id != *instance)).collect();
        assert!(lost.is_empty(), "acknowledged, and lost: {lost:?}");
    }

    /// The instances of `web` and their ports.
    pub(crate) async fn ports(&self) -> BTreeSet<(u16, u64)> {
        let (_, body) = self.send("GET", "/v1/health/connect/web", &Value::Null).await.expect("an answer");
        let entries: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        let instance = |entry: &Value| {
            let id = entry["Service"]["ID"].as_str()?.strip_prefix("web-")?.parse().ok()?;
            Some((id, entry["Service"]["Port"].as_u64()?))
        };
        entries.as_array().into_iter().flatten().filter_map(instance).collect()
    }

    /// What agents were sent so far.
    pub(crate) async fn sent(&self) -> Sent {
        Sent {
            encoded: self.metric("starling_agent_frames_encoded_total").await,
            frames: self.metric("starling_agent_frames_sent_total").await,
        }
    }

    /// Waits until so many agents are attached.
    pub(crate) async fn until_attached(&self, agents: u64) {
        let attached = async {
            while self.metric("starling_agents_attached").await != agents {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        };
        tokio::time::timeout(DEADLINE, attached).await.expect("it sees that they are gone");
    }

    async fn metric(&self, name: &str) -> u64 {
        let (_, body) = self.send("GET", "/metrics", &Value::Null).await.expect("an answer");
        let value = body.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in {body}"))
    }

    /// The status and the body; `None` if none comes.
    async fn send(&self, method: &str, target: &str, body: &Value) -> Option<(u16, String)> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let mut stream = TcpStream::connect(&self.http).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8(answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn copy_files(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).expect("a directory") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

fn pid(child: &Child) -> nix::unistd::Pid {
    nix::unistd::Pid::from_raw(child.id().try_into().expect("a process identifier"))
}

fn registration(instance: u16, port: u16) -> Value {
    json!({
        "Node": "elsewhere",
        "Address": "10.0.0.1",
        "Service": {
            "ID": format!("web-{instance}"),
            "Service": "web-proxy",
            "Kind": "connect-proxy",
            "Port": port,
            "Proxy": {"DestinationServiceName": "web"},
        },
    })
}

/// Starts the program, and waits until it says where it serves.
fn spawn(data: &Path, http: &str, agents: &str) -> (Child, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling"));
    command.args(["server", "--data-dir"]).arg(data).args(["--http-addr", http, "--grpc-tls-addr", agents]);
    command.args(["--dns-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary");
    let mut log = BufReader::new(child.stderr.take().expect("it is piped"));
    let (http, agents) = ready(&mut log);
    // Nobody reads on, and a full pipe would hold it up.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    (child, http, agents)
}

/// Where it serves, as its log says.
fn ready(log: &mut impl BufRead) -> (String, String) {
    let mut said = String::new();
    loop {
        let from = said.len();
        let read = log.read_line(&mut said).expect("its log");
        assert!(read > 0, "it ended: {said}");
        let line = &said[from..];
        let field = |name: &str| {
            let (_, rest) = line.split_once(name)?;
            rest.split_whitespace().next().map(|value| value.trim_matches('"').to_owned())
        };
        if let (true, Some(http), Some(agents)) = (line.contains("ready"), field("http="), field("grpc_tls=")) {
            return (http, agents);
        }
    }
}
