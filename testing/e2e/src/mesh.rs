//! One `starling dev`, or a server or an agent apart, with ports and a data directory of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cli::{self, Output};
use crate::http::{self, Answer, Method};
use crate::ports::free_port;
use crate::process::Process;
use crate::{tools, wait};

/// Attempts to start, each with new ports; somebody else may take one between choice and use.
const START_ATTEMPTS: usize = 3;

/// Which program it is.
#[derive(Debug, Clone, Default)]
pub enum Program {
    /// All in one process.
    #[default]
    Dev,
    /// A server without an agent, with these settings in TOML.
    Server(String),
    /// The agent of a node.
    Agent {
        /// Its name.
        node: String,
        /// Where its server meets agents.
        server: String,
        /// What it joins by.
        token: Option<String>,
    },
    /// A relay.
    Relay {
        /// Its name.
        name: String,
        /// Where servers or relays above meet agents.
        join: String,
        /// What it joins by.
        token: Option<String>,
    },
}

impl Program {
    fn name(&self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Server(_) => "server",
            Self::Agent { .. } => "agent",
            Self::Relay { .. } => "relay",
        }
    }
}

/// By which key the CA's own is sealed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Seal {
    /// By one that all servers of this test have, where the store needs one.
    #[default]
    AsNeeded,
    /// By none, whatever the store needs.
    Never,
    /// By that in a file.
    File(PathBuf),
}

/// How a mesh is set up.
#[derive(Debug, Clone, Default)]
pub struct MeshOptions {
    /// Which program; `dev` unless it says otherwise.
    pub program: Program,
    /// `--default-intention-policy`; allow if `None`.
    pub default_policy: Option<&'static str>,
    /// `--config-dir`.
    pub config_dir: Option<PathBuf>,
    /// `--enable-script-checks`.
    pub enable_script_checks: bool,
    /// `--store`, of a server.
    pub store: Option<String>,
    /// Another server's data directory, whose CA this one has, too.
    pub authority_of: Option<PathBuf>,
    /// `--seal-key-file`.
    pub seal: Seal,
    /// `--data-plane native`: sidecars need no process of their own. Otherwise each of them is an Envoy.
    pub native: bool,
    /// `--node-name`, of a server.
    pub name: Option<&'static str>,
    /// `--advertise-addr`, of a server.
    pub advertise: Option<&'static str>,
    /// Which binary it is; the one under test unless it says otherwise.
    pub binary: Option<PathBuf>,
}

impl MeshOptions {
    fn binary(&self) -> PathBuf {
        self.binary.clone().unwrap_or_else(tools::starling)
    }
}

/// The addresses of one server.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// The API.
    pub http: String,
    /// xDS in plaintext.
    pub grpc: String,
    /// xDS and agents over TLS.
    pub grpc_tls: String,
    /// DNS.
    pub dns: String,
}

/// One mesh, or the program of it that runs here; it ends when this is dropped.
#[derive(Debug)]
pub struct Mesh {
    /// Where it serves.
    pub addresses: Addresses,
    server: Option<Process>,
    options: MeshOptions,
    data: TempDir,
}

impl Mesh {
    /// Starts a server, and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn start(options: MeshOptions) -> Self {
        let data = data_of(&options);
        let mut attempt = 1;
        loop {
            let addresses = Addresses::choose();
            let mut server = spawn(data.path(), &addresses, &options);
            match ready(&mut server, &addresses, &options.program).await {
                Ok(()) => return Self { addresses, server: Some(server), options, data },
                Err(error) if attempt < START_ATTEMPTS && server.log().contains("in use") => {
                    eprintln!("attempt {attempt}: {error:#}");
                    attempt += 1;
                }
                Err(error) => panic!("`starling {}` is not ready: {error:#}", options.program.name()),
            }
        }
    }

    /// Starts a program with data of its own, which is expected to refuse because of `why`; returns what it said.
    ///
    /// # Panics
    /// If it does not end by itself, or ends as if all were well.
    pub async fn start_refused(options: &MeshOptions, why: &str) -> String {
        let data = data_of(options);
        refused(spawn(data.path(), &Addresses::choose(), options), why).await
    }

    /// Kills the server with SIGKILL, whatever it is doing.
    ///
    /// # Panics
    /// If it is not running.
    pub fn kill9(&mut self) {
        self.server.take().expect("a running server").kill9();
    }

    /// Ends the server with a signal, and waits for its end.
    ///
    /// # Panics
    /// If it is not running or does not end.
    pub fn end_with(&mut self, signal: nix::sys::signal::Signal) -> std::process::ExitStatus {
        self.server.take().expect("a running server").end_with(signal, wait::DEADLINE)
    }

    /// Starts the server again, on the same ports and data.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn restart(&mut self) {
        let mut server = spawn(self.data.path(), &self.addresses, &self.options);
        ready(&mut server, &self.addresses, &self.options.program)
            .await
            .unwrap_or_else(|error| panic!("`starling {}` is not back: {error:#}", self.options.program.name()));
        self.server = Some(server);
    }

    /// Starts the server again, on the same ports and data, set up otherwise.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn restart_with(&mut self, options: MeshOptions) {
        self.options = options;
        self.restart().await;
    }

    /// Starts the server, which is expected to refuse because of `why`; returns what it said.
    ///
    /// # Panics
    /// If it does not end by itself, or ends as if all were well.
    pub async fn restart_refused(&mut self, why: &str) -> String {
        refused(spawn(self.data.path(), &self.addresses, &self.options), why).await
    }

    /// Starts a second server on the same data, with addresses of its own, which is expected to refuse.
    ///
    /// # Panics
    /// If it does not end by itself, or ends as if all were well.
    pub async fn second_refused(&self) -> String {
        refused(spawn(self.data.path(), &Addresses::choose(), &self.options), "the data is in use").await
    }

    /// The server's process.
    ///
    /// # Panics
    /// If it is not running.
    pub fn server(&mut self) -> &mut Process {
        self.server.as_mut().expect("a running server")
    }

    /// Has the server started with another seal key from the next time on.
    pub fn seal_with(&mut self, seal: Seal) {
        self.options.seal = seal;
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        self.data.path()
    }

    /// A request to the API.
    ///
    /// # Panics
    /// If no answer comes.
    pub async fn call(&self, method: Method, target: &str, body: impl Into<Bytes>) -> Answer {
        let answer = http::request(method.clone(), &self.addresses.http, target, &[], body).await;
        answer.unwrap_or_else(|error| panic!("{method} {target}: {error:#}"))
    }

    /// A GET.
    pub async fn get(&self, target: &str) -> Answer {
        self.call(Method::GET, target, Bytes::new()).await
    }

    /// A PUT of JSON; null for no body.
    pub async fn put(&self, target: &str, body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        self.call(Method::PUT, target, body).await
    }

    /// A DELETE.
    pub async fn delete(&self, target: &str) -> Answer {
        self.call(Method::DELETE, target, Bytes::new()).await
    }

    /// Registers a service at the agent.
    pub async fn register(&self, service: &Value) -> Answer {
        self.put("/v1/agent/service/register", service).await.success()
    }

    /// Writes a config entry.
    pub async fn config(&self, entry: &Value) -> Answer {
        self.put("/v1/config", entry).await.success()
    }

    /// Says what a service speaks.
    pub async fn protocol(&self, service: &str, protocol: &str) -> Answer {
        self.config(&json!({"Kind": "service-defaults", "Name": service, "Protocol": protocol})).await
    }

    /// Writes an intention for whole connections.
    pub async fn intention(&self, source: &str, destination: &str, action: &str) -> Answer {
        let target = format!("/v1/connect/intentions/exact?source={source}&destination={destination}");
        self.put(&target, &json!({"Action": action})).await.success()
    }

    /// Writes an intention by request.
    pub async fn permissions(&self, source: &str, destination: &str, permissions: &Value) -> Answer {
        let target = format!("/v1/connect/intentions/exact?source={source}&destination={destination}");
        self.put(&target, &json!({"Permissions": permissions})).await.success()
    }

    /// Deletes an intention.
    pub async fn delete_intention(&self, source: &str, destination: &str) -> Answer {
        let target = format!("/v1/connect/intentions/exact?source={source}&destination={destination}");
        self.delete(&target).await.success()
    }

    /// The receipt of a change, once nothing is outstanding or `wait` is over.
    pub async fn receipt(&self, revision: u64, wait: &str) -> Value {
        self.get(&format!("/starling/v1/changes/{revision}?wait={wait}")).await.success().json()
    }

    /// Waits until every proxy that a change concerns has applied it.
    ///
    /// # Panics
    /// If one refuses it, or is not done in time.
    pub async fn settled(&self, revision: u64) {
        let receipt = self.receipt(revision, "20s").await;
        assert_eq!(receipt["settled"], true, "change {revision} is not applied everywhere: {receipt:#}");
        assert_eq!(receipt["rejected"], json!([]), "change {revision} is refused");
    }

    /// Whether `starling can` says that `source` may call `destination`; the arguments say with which request.
    ///
    /// # Panics
    /// If it says neither.
    pub async fn can(&self, source: &str, destination: &str, arguments: &[&str]) -> bool {
        let output = self.cli(&[&["can", source, destination], arguments, &["-o", "json"]].concat()).await;
        output.json()["allowed"].as_bool().unwrap_or_else(|| panic!("neither yes nor no: {output}"))
    }

    /// The revision that the catalog is at.
    pub async fn revision(&self) -> u64 {
        let changes = self.get("/starling/v1/changes").await.success().json();
        changes["revision"].as_u64().unwrap_or_else(|| panic!("no revision: {changes}"))
    }

    /// Starts the server again, on the same ports and data, from another binary.
    ///
    /// # Panics
    /// If it does not become ready.
    pub async fn restart_from(&mut self, binary: PathBuf) {
        self.options.binary = Some(binary);
        self.restart().await;
    }

    /// A command of the binary that speaks to this server.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.options.binary());
        command.args(arguments);
        bare(&mut command);
        command.env("CONSUL_HTTP_ADDR", format!("http://{}", self.addresses.http));
        command
    }

    /// Runs a command of the binary to its end.
    pub async fn cli(&self, arguments: &[&str]) -> Output {
        cli::run(self.command(arguments)).await
    }
}

impl Addresses {
    fn choose() -> Self {
        let address = || format!("127.0.0.1:{}", free_port());
        Self { http: address(), grpc: address(), grpc_tls: address(), dns: address() }
    }
}

/// Leaves nothing of the test's environment but the way to Envoy, so that no variable of the developer's is in effect.
///
/// # Panics
/// If Envoy is not there.
pub fn bare(command: &mut Command) {
    let envoy = tools::envoy();
    let mut path = envoy.parent().map(Path::as_os_str).unwrap_or_default().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    command.env_clear().env("PATH", path).env("STARLING_ENVOY", envoy);
}

fn spawn(data: &Path, addresses: &Addresses, options: &MeshOptions) -> Process {
    let mut command = Command::new(options.binary());
    bare(&mut command);
    let program = options.program.name();
    command.arg(program).arg("--data-dir").arg(data).args(["--log-format", "text"]);
    match &options.program {
        Program::Dev => {}
        Program::Server(settings) => {
            let path = data.join("settings.toml");
            std::fs::write(&path, settings).expect("a file of settings");
            command.arg("--config").arg(path);
            command.args(options.store.iter().flat_map(|store| ["--store", store]));
            command.args(options.name.iter().flat_map(|name| ["--node-name", name]));
            command.args(options.advertise.iter().flat_map(|address| ["--advertise-addr", address]));
        }
        Program::Agent { node, server, token } => {
            command.args(["--node-name", node, "--server", server]);
            command.args(token.iter().flat_map(|token| ["--join-token", token]));
        }
        Program::Relay { name, join, token } => {
            command.args(["--node-name", name, "--join", join]);
            command.args(token.iter().flat_map(|token| ["--join-token", token]));
        }
    }
    command.args(["--http-addr", &addresses.http, "--grpc-tls-addr", &addresses.grpc_tls]);
    if !matches!(options.program, Program::Relay { .. }) {
        command.args(["--grpc-addr", &addresses.grpc, "--dns-addr", &addresses.dns]);
    }
    if let Some(policy) = options.default_policy {
        command.args(["--default-intention-policy", policy]);
    }
    if let Some(folder) = &options.config_dir {
        command.arg("--config-dir").arg(folder);
    }
    command.args(seal_key_file(options).iter().flat_map(|file| ["--seal-key-file".as_ref(), file.as_os_str()]));
    if options.enable_script_checks {
        command.arg("--enable-script-checks");
    }
    match &options.program {
        Program::Dev | Program::Agent { .. } => {
            command.args(["--data-plane", if options.native { "native" } else { "envoy" }]);
        }
        Program::Server(_) | Program::Relay { .. } => {}
    }
    Process::spawn(program, command)
}

/// The file of seal keys that a server is given, if any.
fn seal_key_file(options: &MeshOptions) -> Option<PathBuf> {
    match (&options.seal, &options.program) {
        (Seal::File(file), _) => Some(file.clone()),
        (Seal::AsNeeded, Program::Server(_)) if options.store.is_some() => Some(common_seal_key()),
        (Seal::AsNeeded | Seal::Never, _) => None,
    }
}

/// The seal key of all servers of this test that share a store.
fn common_seal_key() -> PathBuf {
    static FOLDER: std::sync::OnceLock<TempDir> = std::sync::OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = TempDir::with_prefix("starling-e2e-seal-").expect("a temporary directory");
        new_seal_key(&folder.path().join("seal"));
        folder
    });
    folder.path().join("seal")
}

/// Makes a file with a seal key.
///
/// # Panics
/// If `starling ca new-seal-key` does not.
pub fn new_seal_key(file: &Path) {
    let mut command = Command::new(tools::starling());
    bare(&mut command);
    let made = command.args(["ca", "new-seal-key"]).arg(file).output().expect("the command runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A data directory, with what is to be there before the first start.
fn data_of(options: &MeshOptions) -> TempDir {
    let data = TempDir::with_prefix("starling-e2e-data-").expect("a temporary directory");
    // A server whose CA is in the store has none there.
    if let Some(ca) = options.authority_of.as_ref().map(|other| other.join("ca")).filter(|ca| ca.exists()) {
        copy(&ca, &data.path().join("ca"));
    }
    data
}

/// Copies a folder of files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for file in std::fs::read_dir(from).expect("a folder") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), to.join(file.file_name())).expect("copied");
    }
}

async fn refused(mut server: Process, why: &str) -> String {
    let status = wait::eventually(&format!("the program refuses and ends, as {why}"), async || {
        server.ended().ok_or_else(|| anyhow::anyhow!("it is running"))
    })
    .await;
    assert!(!status.success(), "it ended with success: {}", server.log());
    server.log()
}

/// Time between two looks whether a server is ready; a test that restarts one a hundred times waits for it.
const READY_LOOK_INTERVAL: Duration = Duration::from_millis(5);

async fn ready(server: &mut Process, addresses: &Addresses, program: &Program) -> anyhow::Result<()> {
    let start = Instant::now();
    let target = match program {
        Program::Dev | Program::Server(_) => "/v1/status/leader",
        // Its servers may be gone.
        Program::Agent { .. } => "/v1/agent/self",
        Program::Relay { .. } => "/starling/v1/health/ready",
    };
    loop {
        server.expect_running()?;
        let error = match http::get(&addresses.http, target).await {
            Ok(answer) if answer.status == 200 && answer.json() != json!("") => return Ok(()),
            Ok(answer) => anyhow::anyhow!("{target} answers {} {}", answer.status, answer.text()),
            Err(error) => error,
        };
        anyhow::ensure!(start.elapsed() < wait::DEADLINE, "{error:#}; {}", server.log());
        tokio::time::sleep(READY_LOOK_INTERVAL).await;
    }
}
