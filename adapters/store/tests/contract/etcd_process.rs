//! An etcd of the test's own: own ports, own directory, gone with the test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use starling_store::EtcdOptions;
use tempfile::TempDir;

/// Longer than anything here takes; a test that reaches it has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);

/// Attempts to start, each with new ports: somebody else may take one between choice and use.
const START_ATTEMPTS: usize = 3;

/// Whether etcd can do without waiting for the disk. Its data survive its own death all the same, and no test takes the
/// machine's power away.
static IS_QUICK: OnceLock<bool> = OnceLock::new();

fn is_quick() -> bool {
    let help = Command::new(program()).arg("--help").output().unwrap();
    String::from_utf8_lossy(&help.stdout).contains("--unsafe-no-fsync")
}

/// One member.
pub(crate) struct Etcd {
    child: Child,
    directory: TempDir,
    client: u16,
    arguments: Vec<String>,
}

impl Etcd {
    /// A cluster of one.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(more: &[&str]) -> Self {
        for _ in 0..START_ATTEMPTS {
            let [client, peer] = free_ports();
            let scheme = if more.contains(&"--cert-file") { "https" } else { "http" };
            let mut arguments = strings(&["--name", "m0", "--initial-cluster"]);
            arguments.push(format!("m0=http://127.0.0.1:{peer}"));
            arguments.extend(addresses(scheme, client, peer));
            arguments.extend(strings(more));
            if let Some(etcd) = Self::spawn(client, arguments).ready() {
                return etcd;
            }
        }
        panic!("etcd does not start");
    }

    /// A cluster of three.
    pub(crate) fn start_three() -> [Self; 3] {
        for _ in 0..START_ATTEMPTS {
            let ports: [u16; 6] = free_ports();
            let name = |n: usize| format!("m{n}=http://127.0.0.1:{}", ports[3 + n]);
            let cluster = [0, 1, 2].map(name).join(",");
            let members = [0, 1, 2].map(|n| {
                let mut arguments = vec!["--name".to_owned(), format!("m{n}")];
                arguments.extend(["--initial-cluster".to_owned(), cluster.clone()]);
                arguments.extend(addresses("http", ports[n], ports[3 + n]));
                Self::spawn(ports[n], arguments)
            });
            let ready: Vec<_> = members.into_iter().filter_map(Self::ready).collect();
            if let Ok(three) = ready.try_into() {
                return three;
            }
        }
        panic!("three members of etcd do not start");
    }

    fn spawn(client: u16, arguments: Vec<String>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = command(directory.path(), &arguments);
        Self { child, directory, client, arguments }
    }

    /// Waits until it serves; `None` if it has ended instead.
    fn ready(mut self) -> Option<Self> {
        let start = Instant::now();
        while !self.is_served() {
            if self.child.try_wait().unwrap().is_some() {
                eprintln!("{}", self.log());
                return None;
            }
            assert!(start.elapsed() < DEADLINE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(self)
    }

    /// Whether somebody else than the caller is at the other end: to a port that is free a connection may come about with itself,
    /// and then etcd finds it taken.
    fn is_served(&self) -> bool {
        let connected = TcpStream::connect(("127.0.0.1", self.client));
        connected.is_ok_and(|stream| stream.local_addr().ok() != stream.peer_addr().ok())
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions::new(vec![self.endpoint()])
    }

    pub(crate) fn kill9(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again, on its ports and data.
    pub(crate) fn restart(self) -> Self {
        let mut old = self;
        old.child = command(old.directory.path(), &old.arguments);
        old.ready().expect("etcd is back")
    }

    /// Asks for something that a store never asks for, by etcd's JSON gateway.
    pub(crate) fn post(&self, path: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.client)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains(" 200 OK"), "{path} {body}: {answer}");
        answer
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = self.log();
            eprintln!("---- etcd ----\n{}", &log[log.ceil_char_boundary(log.len().saturating_sub(4096))..]);
        }
    }
}

fn command(directory: &Path, arguments: &[String]) -> Child {
    let log = std::fs::File::options().create(true).append(true).open(directory.join("log")).unwrap();
    let mut command = Command::new(program());
    if *IS_QUICK.get_or_init(is_quick) {
        command.arg("--unsafe-no-fsync");
    }
    command.arg("--data-dir").arg(directory.join("data")).args(arguments);
    command.env_clear().stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap()
}

fn addresses(scheme: &str, client: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    strings(&["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .into_iter()
        .chain(strings(&["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]))
        .collect()
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// `STARLING_ETCD`, else `.tools/bin/etcd`.
fn program() -> PathBuf {
    let ours = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/etcd");
    let path = std::env::var_os("STARLING_ETCD").filter(|path| !path.is_empty()).map_or_else(ours, PathBuf::from);
    assert!(path.exists(), "{} is not there; `cargo xtask install etcd` gets it, or set STARLING_ETCD", path.display());
    path
}
