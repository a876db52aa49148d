//! A real mesh on this machine: `starling dev`, applications and Envoys as processes of this program's own executable.
//!
//! Everything listens on loopback, on ports that were free; files are in one temporary folder. When a [`Mesh`] is
//! dropped, its processes are killed and its files removed, whatever else went wrong. When this process is killed, they
//! end, too, but the files stay.

mod child;
mod envoy;
mod ports;
mod sidecar;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use http::Method;
use tempfile::TempDir;

use crate::api::Api;
use crate::connection::{Answer, Connection};
use crate::process;
pub(crate) use child::{Child, Pipes};
pub(crate) use envoy::Envoy;
pub(crate) use ports::Ports;
pub(crate) use sidecar::{Role, Sidecar, SidecarOptions};

/// Time a process has from its start until it is ready; twenty Envoys that start at once on two cores need several
/// seconds each.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Pause between two looks at whether a process is ready; nothing is measured while waiting.
const READY_POLL: Duration = Duration::from_millis(20);

/// Longest wait for one answer about readiness.
const READY_ANSWER_DEADLINE: Duration = Duration::from_secs(2);

/// Variable that has a `starling` process, and the Envoy that it becomes, end with the parent it names, even if that is
/// killed.
const ENDS_WITH: &str = "STARLING_ENDS_WITH";

/// Where Linux has files that are in memory only.
const IN_MEMORY: &str = "/dev/shm";

/// Begins the name of a fleet's disks; the process whose they are, and when that was started, follow.
const DISKS_PREFIX: &str = "starling-bench-disks-";

/// A running mesh. Fields are in the order in which they end.
pub(crate) struct Mesh {
    server: Child,
    applications: Vec<Child>,
    envoys: Vec<Sidecar>,
    addresses: Addresses,
    ports: Ports,
    envoy: Option<Envoy>,
    directory: TempDir,
}

/// What a mesh is brought up with.
pub(crate) struct MeshOptions {
    /// The data plane, if there is to be one.
    pub(crate) envoy: Option<Envoy>,
    /// Leave the folder with data and logs behind.
    pub(crate) keep: bool,
}

/// Where an agent is reached from its own machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

impl Mesh {
    /// Starts a server with an agent, empty, and waits until it has a leader.
    ///
    /// # Errors
    /// When the folder cannot be made, no port is free, or the server ends or does not become ready in time; the text
    /// has the end of its log.
    pub(crate) async fn start(options: MeshOptions) -> anyhow::Result<Self> {
        let MeshOptions { envoy, keep } = options;
        let directory = folder(keep)?;
        let mut ports = Ports::new();
        let addresses = Addresses { http: ports.loopback()?, grpc: ports.loopback()? };
        let mut command = command(&own_program()?);
        command.arg("dev").arg("--data-dir").arg(directory.path().join("data"));
        command.args(["--http-addr", &addresses.http.to_string(), "--grpc-addr", &addresses.grpc.to_string()]);
        command.args(["--grpc-tls-addr", &ports.loopback()?.to_string()]);
        command.args(["--dns-addr", &ports.loopback()?.to_string()]);
        command.args(["--default-intention-policy", "allow"]);
        let mut server = Child::spawn("server", &mut command, &logs(directory.path()))?;
        let http = addresses.http;
        ready(&mut server, || async move { has_leader(http).await }).await?;
        Ok(Self { server, applications: Vec::new(), envoys: Vec::new(), addresses, ports, envoy, directory })
    }

    /// A client of its HTTP API.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.addresses.http)
    }

    /// The process of the server and its agent.
    pub(crate) fn server_pid(&self) -> u32 {
        self.server.pid()
    }

    /// The processes of the Envoys.
    pub(crate) fn envoy_pids(&self) -> impl Iterator<Item = u32> {
        self.envoys.iter().map(Sidecar::pid)
    }

    /// A loopback address with a port that nobody else in this mesh is given.
    ///
    /// # Errors
    /// When no port is free.
    pub(crate) fn free_address(&mut self) -> anyhow::Result<SocketAddr> {
        self.ports.loopback()
    }

    /// The folder with data and logs.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a fake service that answers with `name`, and waits until it is ready.
    ///
    /// # Errors
    /// When it ends or does not become ready in time.
    pub(crate) async fn start_fake_service(&mut self, name: &str, listen: SocketAddr) -> anyhow::Result<()> {
        let child = fake_service(name, listen, &logs(self.directory.path())).await?;
        self.applications.push(child);
        Ok(())
    }

    /// Starts the Envoy of a registered sidecar with so many worker threads; [`Mesh::envoys_ready`] waits for it.
    ///
    /// # Errors
    /// When the mesh has no Envoy, no port is free, or the process cannot be started.
    pub(crate) fn start_envoy(&mut self, sidecar_for: &str, workers: usize) -> anyhow::Result<()> {
        let envoy = self.envoy.as_ref().context("this mesh was brought up without an Envoy")?;
        let (agent, role, admin) = (self.addresses, Role::SidecarOf(sidecar_for), self.ports.loopback()?);
        let options = SidecarOptions { agent, role, workers, admin };
        self.envoys.push(Sidecar::start(envoy, options, &logs(self.directory.path()))?);
        Ok(())
    }

    /// Waits until every Envoy that was started has its configuration; `step` is called for each.
    ///
    /// # Errors
    /// When one ends or is not ready in time.
    pub(crate) async fn envoys_ready(&mut self, mut step: impl FnMut()) -> anyhow::Result<()> {
        for envoy in &mut self.envoys {
            envoy.ready().await?;
            step();
        }
        Ok(())
    }

    /// Fails if a process of the mesh has ended by itself.
    ///
    /// # Errors
    /// With the name of the process, how it ended, and the end of its log.
    pub(crate) fn check_alive(&mut self) -> anyhow::Result<()> {
        let others = std::iter::once(&mut self.server).chain(&mut self.applications).map(Child::ended);
        if let Some(how) = others.chain(self.envoys.iter_mut().map(Sidecar::ended)).flatten().next() {
            bail!("{how}");
        }
        Ok(())
    }
}

/// This program, without the caller's own mesh in its environment. It ends with the thread that starts it, so that has
/// to be one that lives as long as the run: the main thread, which drives the scenario, or a worker of the runtime.
pub(crate) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_a_mesh) {
            command.env_remove(name);
        }
    }
    command.env(ENDS_WITH, std::process::id().to_string());
    command
}

/// Whether a variable points at a mesh, sets one up, or sets up a fake service.
fn is_of_a_mesh(variable: &str) -> bool {
    const PREFIXES: [&str; 7] =
        ["CONSUL_", "STARLING_", "UPSTREAM_", "ERROR_", "TIMING_", "READY_CHECK_", "HEALTH_CHECK_"];
    PREFIXES.iter().any(|prefix| variable.starts_with(prefix)) || variable == "SERVER_TYPE" || variable == "MESSAGE"
}

/// The path of this program's own executable.
///
/// # Errors
/// When the system does not tell.
pub(crate) fn own_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("cannot tell the path of this program's own executable")
}

/// A temporary folder with one for logs in it.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn folder(keep: bool) -> anyhow::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("starling-bench-").disable_cleanup(keep).tempdir();
    let directory = directory.context("cannot make a temporary folder")?;
    std::fs::create_dir(logs(directory.path())).context("cannot make a folder for logs")?;
    Ok(directory)
}

/// A temporary folder for the disks of many simulated machines: in memory where there is such a place, for they share
/// one real disk here, and each would wait for the writes of all.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn disks(keep: bool) -> anyhow::Result<TempDir> {
    let own = std::process::id();
    let started = process::started(own).context("this process is not in /proc")?;
    // What is to be kept is nobody's, so that no later run takes it for what a killed one has left.
    let prefix = if keep { DISKS_PREFIX.to_owned() } else { format!("{DISKS_PREFIX}{own}-{started}-") };
    for place in [PathBuf::from(IN_MEMORY), std::env::temp_dir()] {
        remove_left_over(&place);
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).disable_cleanup(keep);
    let made = builder.tempdir_in(IN_MEMORY).or_else(|_| builder.tempdir());
    made.context("cannot make a temporary folder for the disks of the fleet")
}

/// Removes the disks of fleets whose process was killed before it could: they take memory for as long as they are there.
fn remove_left_over(place: &Path) {
    let Ok(entries) = std::fs::read_dir(place) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| is_left_over(name, DISKS_PREFIX, process::started)) {
            // What is another user's stays, and is in nobody's way.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a name is that of something whose process is no more: behind `prefix` it has the process, and when that was started.
/// `started` tells when a process that is there was started.
pub(crate) fn is_left_over(name: &str, prefix: &str, started: impl Fn(u32) -> Option<u64>) -> bool {
    let owner = name.strip_prefix(prefix).and_then(|rest| {
        let (id, rest) = rest.split_once('-')?;
        Some((id.parse().ok()?, rest.split_once('-')?.0.parse().ok()?))
    });
    owner.is_some_and(|(id, at): (u32, u64)| started(id) != Some(at))
}

/// Starts a fake service that answers with `name`, and waits until it is ready.
///
/// # Errors
/// When it ends or does not become ready in time.
pub(crate) async fn fake_service(name: &str, listen: SocketAddr, logs: &Path) -> anyhow::Result<Child> {
    let mut command = command(&own_program()?);
    command.arg("fake-service").env("LISTEN_ADDR", listen.to_string()).env("NAME", name);
    let mut child = Child::spawn(name, &mut command, logs)?;
    ready(&mut child, || async move { is_ready(listen, "/ready").await }).await?;
    Ok(child)
}

/// Where the processes that have a folder write their logs.
pub(crate) fn logs(directory: &Path) -> PathBuf {
    directory.join("logs")
}

/// Waits until `is_ready`, the child has ended, or the time is over.
pub(crate) async fn ready(child: &mut Child, is_ready: impl AsyncFn() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        if is_ready().await {
            return Ok(());
        }
        if let Some(how) = child.ended() {
            bail!("{how}");
        }
        if Instant::now() > deadline {
            bail!("{} was not ready within {READY_DEADLINE:?}; {}", child.name(), child.log_tail());
        }
        tokio::time::sleep(READY_POLL).await;
    }
}

/// Whether a server is ready.
pub(crate) async fn has_leader(address: SocketAddr) -> bool {
    let Some(answer) = get(address, "/v1/status/leader").await else {
        return false;
    };
    let leader: Option<String> = serde_json::from_slice(&answer.body).ok();
    answer.status == 200 && leader.is_some_and(|leader| !leader.is_empty())
}

/// Whether what listens there answers 200.
pub(crate) async fn is_ready(address: SocketAddr, path: &str) -> bool {
    get(address, path).await.is_some_and(|answer| answer.status == 200)
}

async fn get(address: SocketAddr, path: &str) -> Option<Answer> {
    let exchange = async { Connection::open(address).await?.call(Method::GET, path, bytes::Bytes::new()).await };
    tokio::time::timeout(READY_ANSWER_DEADLINE, exchange).await.ok()?.ok()
}

/// The loopback address of everything that is not told apart by its address.
pub(crate) const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_point_at_another_mesh_are_not_inherited() {
        for variable in ["CONSUL_HTTP_ADDR", "STARLING_HTTP_ADDR", "UPSTREAM_URIS", "ERROR_RATE", "MESSAGE"] {
            assert!(is_of_a_mesh(variable), "{variable}");
        }
        for variable in ["PATH", "HOME", "LD_LIBRARY_PATH", "RUST_LOG"] {
            assert!(!is_of_a_mesh(variable), "{variable}");
        }
    }

    #[test]
    fn disks_of_a_process_that_is_no_more_are_left_over() {
        let started = |id: u32| (id == 7).then_some(100);
        let is_left_over = |name: &str| is_left_over(name, DISKS_PREFIX, started);
        assert!(is_left_over("starling-bench-disks-8-100-x1y2"));
        assert!(is_left_over("starling-bench-disks-7-99-x1y2"), "another process has its number now");
        for other in ["starling-bench-disks-7-100-x1y2", "starling-bench-disks-x1y2", "starling-bench-7-99-x", "else"] {
            assert!(!is_left_over(other), "{other}");
        }
    }
}
