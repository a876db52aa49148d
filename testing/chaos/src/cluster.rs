//! Three members of etcd and three servers on it, each on a machine of its own.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::Value;
use starling_e2e::http;
use tempfile::TempDir;

use crate::network::{Cut, CutId, Machine, Network};
use crate::process::Process;

/// Members of etcd, and servers.
pub(crate) const COUNT: usize = 3;

/// Longest time in which a cluster without faults is there; the machine may be busy with others.
const START_TIME_MAX: Duration = Duration::from_secs(120);

/// Time between two looks at something that is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What etcd remembers, shorter than most faults last.
const HISTORY_KEPT: &str = "3s";

/// Longest wait for a member's own account of itself.
const STATUS_TIME_MAX: Duration = Duration::from_millis(500);

/// Pause before a server that ended by itself is started again, as a supervisor does.
const RESTART_PAUSE: Duration = Duration::from_millis(500);

/// One of the six programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// A member of etcd, by number.
    Member(usize),
    /// A server, by number.
    Server(usize),
}

impl Role {
    /// All of them.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..COUNT).map(Self::Member).chain((0..COUNT).map(Self::Server))
    }

    pub(crate) fn machine(self) -> Machine {
        match self {
            Self::Member(number) => Machine(number),
            Self::Server(number) => Machine(COUNT + number),
        }
    }
}

impl std::fmt::Display for Role {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Member(number) => write!(f, "etcd {number}"),
            Self::Server(number) => write!(f, "server {number}"),
        }
    }
}

/// Where the two programs are.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The binary under test.
    pub starling: PathBuf,
    /// etcd.
    pub etcd: PathBuf,
}

/// What a program was told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Running,
    /// Killed, and not to be started again by itself.
    Dead,
}

struct Slot {
    process: Option<Process>,
    wanted: Wanted,
    started: Instant,
}

/// The cluster. Dropping it ends all of it.
pub(crate) struct Cluster {
    // Dropped in this order: programs before the network they are on, and both before their files.
    slots: Vec<Slot>,
    network: Network,
    directory: TempDir,
    programs: Programs,
    /// How often a program ended that nobody had killed, and why the last time.
    pub(crate) ended_by_themselves: Vec<(Role, String)>,
}

impl Cluster {
    /// Builds it, and waits until every server takes writes.
    ///
    /// # Errors
    /// What is missing, or what does not start.
    pub(crate) async fn start(programs: Programs) -> anyhow::Result<Self> {
        let network = Network::build(2 * COUNT)?;
        let directory = TempDir::with_prefix("starling-chaos-").context("a temporary directory")?;
        let mut cluster = Self { slots: Vec::new(), network, directory, programs, ended_by_themselves: Vec::new() };
        for _ in Role::all() {
            let slot = Slot { process: None, wanted: Wanted::Dead, started: Instant::now() };
            cluster.slots.push(slot);
        }
        for role in Role::all() {
            if let Role::Server(number) = role {
                cluster.share_authority(number).await?;
            }
            cluster.revive(role)?;
        }
        for number in 0..COUNT {
            cluster.await_server(number).await?;
        }
        Ok(cluster)
    }

    /// Where a server's HTTP API is.
    pub(crate) fn api(&self, server: usize) -> String {
        format!("{}:8500", self.address(Role::Server(server)))
    }

    fn address(&self, role: Role) -> std::net::Ipv4Addr {
        self.network.address(role.machine())
    }

    fn data(&self, role: Role) -> PathBuf {
        self.directory.path().join(role.to_string().replace(' ', "-"))
    }

    fn log(&self, role: Role) -> PathBuf {
        self.data(role).with_extension("log")
    }

    /// How many lines with that text are in the logs of servers.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let logs = (0..COUNT).filter_map(|number| std::fs::read(self.log(Role::Server(number))).ok());
        logs.map(|log| String::from_utf8_lossy(&log).lines().filter(|line| line.contains(text)).count()).sum()
    }

    /// Gives a server what it needs to be one of several on one etcd: the seal key of the CA that is in common, or, of a
    /// release that has none, the CA of the first server.
    async fn share_authority(&mut self, number: usize) -> anyhow::Result<()> {
        if number == 0 {
            let made = Command::new(&self.programs.starling).args(["ca", "new-seal-key"]).arg(self.seal_key()).output();
            made.with_context(|| format!("cannot run {}", self.programs.starling.display()))?;
        }
        if number == 0 || self.seal_key().exists() {
            return Ok(());
        }
        self.await_server(0).await?;
        let (from, to) = (self.data(Role::Server(0)).join("ca"), self.data(Role::Server(number)).join("ca"));
        std::fs::create_dir_all(&to).context("a folder for the CA")?;
        for file in std::fs::read_dir(from).context("the CA of the first server")? {
            let file = file.context("a file of the CA")?;
            std::fs::copy(file.path(), to.join(file.file_name())).context("a file of the CA")?;
        }
        Ok(())
    }

    fn seal_key(&self) -> PathBuf {
        self.directory.path().join("seal-key")
    }

    fn slot(&mut self, role: Role) -> &mut Slot {
        &mut self.slots[role.machine().0]
    }

    /// Starts a program that is dead.
    pub(crate) fn revive(&mut self, role: Role) -> anyhow::Result<()> {
        let command = match role {
            Role::Member(number) => self.etcd(number),
            Role::Server(number) => self.server(number),
        };
        let process = Process::spawn(command, &self.log(role))?;
        let slot = self.slot(role);
        (slot.process, slot.wanted, slot.started) = (Some(process), Wanted::Running, Instant::now());
        Ok(())
    }

    fn etcd(&self, number: usize) -> Command {
        let url = |number: usize, port: u16| format!("http://{}:{port}", self.address(Role::Member(number)));
        let cluster: Vec<_> = (0..COUNT).map(|number| format!("m{number}={}", url(number, 2380))).collect();
        let role = Role::Member(number);
        let mut command = self.network.command(role.machine(), &self.programs.etcd);
        command.args(["--name", &format!("m{number}"), "--initial-cluster", &cluster.join(",")]);
        // What a server that was cut off has missed is often gone: it reads everything anew.
        command.args(["--auto-compaction-mode", "periodic", "--auto-compaction-retention", HISTORY_KEPT]);
        command.args(["--listen-client-urls", &url(number, 2379), "--advertise-client-urls", &url(number, 2379)]);
        command.args(["--listen-peer-urls", &url(number, 2380), "--initial-advertise-peer-urls", &url(number, 2380)]);
        command.arg("--data-dir").arg(self.data(role)).args(["--log-level", "warn"]);
        bare(&mut command);
        command
    }

    fn server(&self, number: usize) -> Command {
        // Each has another member first, so that they do not all hang on one.
        let members = (0..COUNT).map(|offset| Role::Member((number + offset) % COUNT));
        let members: Vec<_> = members.map(|member| format!("{}:2379", self.address(member))).collect();
        let role = Role::Server(number);
        let listens = |port: u16| format!("{}:{port}", self.address(role));
        let mut command = self.network.command(role.machine(), &self.programs.starling);
        command.arg("server").arg("--data-dir").arg(self.data(role));
        command.args(["--store", &format!("etcd://{}", members.join(",")), "--node-name", &format!("s{number}")]);
        command.args(["--http-addr", &listens(8500), "--grpc-tls-addr", &listens(8503)]);
        if self.seal_key().exists() {
            command.arg("--seal-key-file").arg(self.seal_key());
        }
        command.args(["--dns-addr", &listens(8600), "--log-format", "text"]);
        bare(&mut command);
        command
    }

    /// Waits until a server answers that it has a leader.
    async fn await_server(&mut self, number: usize) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            self.supervise()?;
            let address = self.api(number);
            let asked = http::get(&address, "/v1/status/leader");
            let said = match tokio::time::timeout(STATUS_TIME_MAX, asked).await {
                Ok(Ok(answer)) if answer.status == 200 && answer.text().contains(':') => return Ok(()),
                Ok(Ok(answer)) => answer.text(),
                Ok(Err(error)) => format!("{error:#}"),
                Err(elapsed) => elapsed.to_string(),
            };
            if begun.elapsed() > START_TIME_MAX {
                let ended = self.ended_by_themselves.last().map(|(role, why)| format!("{role} ended: {why}"));
                anyhow::bail!("server {number} is not ready: {said} {}", ended.unwrap_or_default());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Starts what has ended by itself, as a supervisor does.
    pub(crate) fn supervise(&mut self) -> anyhow::Result<()> {
        for role in Role::all() {
            let slot = self.slot(role);
            if slot.wanted == Wanted::Running
                && slot.started.elapsed() > RESTART_PAUSE
                && let Some(why) = slot.process.as_mut().and_then(Process::ended)
            {
                self.ended_by_themselves.push((role, why));
                self.revive(role)?;
            }
        }
        Ok(())
    }

    /// Kills a program with SIGKILL; it stays dead until it is revived.
    pub(crate) fn kill9(&mut self, role: Role) {
        let slot = self.slot(role);
        slot.wanted = Wanted::Dead;
        slot.process = None;
    }

    pub(crate) fn stop(&mut self, role: Role) -> anyhow::Result<()> {
        self.slot(role).process.as_ref().map_or(Ok(()), Process::stop)
    }

    pub(crate) fn resume(&mut self, role: Role) -> anyhow::Result<()> {
        self.slot(role).process.as_ref().map_or(Ok(()), Process::resume)
    }

    pub(crate) fn cut(&mut self, cuts: Vec<Cut>) -> anyhow::Result<CutId> {
        self.network.cut(cuts)
    }

    pub(crate) fn mend(&mut self, id: CutId) -> anyhow::Result<()> {
        self.network.mend(id)
    }

    /// What asks every member who leads; the answer is that of the first one who knows.
    pub(crate) fn leader(&self) -> impl Future<Output = Option<usize>> + use<> {
        let members: Vec<_> = (0..COUNT).map(|n| format!("{}:2379", self.address(Role::Member(n)))).collect();
        async move {
            for (number, member) in members.iter().enumerate() {
                if let Ok(Some(true)) = tokio::time::timeout(STATUS_TIME_MAX, leads(member)).await {
                    return Some(number);
                }
            }
            None
        }
    }

    /// Keeps the logs and data for whoever looks into a failure.
    pub(crate) fn keep(&mut self) -> PathBuf {
        self.directory.disable_cleanup(true);
        self.directory.path().to_owned()
    }
}

/// Leaves nothing of the environment but the way to programs.
fn bare(command: &mut Command) {
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
}

/// Whether the member at `address` says that it leads itself.
async fn leads(address: &str) -> Option<bool> {
    let path = "/v3/maintenance/status";
    let answer = http::request(http::Method::POST, address, path, &[], "{}").await.ok()?;
    let status: Value = serde_json::from_slice(&answer.body).ok()?;
    let leader = status.get("leader")?.as_str()?;
    Some(leader != "0" && status.get("header")?.get("member_id")?.as_str()? == leader)
}

/// Finds the two programs: by environment, else where a build and an installation leave them.
///
/// # Errors
/// If one is not there: how to get it.
pub fn programs() -> anyhow::Result<Programs> {
    let executable = std::env::current_exe().context("the path of this program")?;
    // target/PROFILE/chaos, or a test in target/PROFILE/deps.
    let beside =
        executable.ancestors().skip(1).take(2).map(|folder| folder.join("starling")).find(|path| path.exists());
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.tools/bin/etcd");
    let starling = found("STARLING_BIN", beside, "cargo build --bin starling")?;
    Ok(Programs { starling, etcd: found("STARLING_ETCD", Some(tools), "cargo xtask install etcd")? })
}

fn found(variable: &str, default: Option<PathBuf>, remedy: &str) -> anyhow::Result<PathBuf> {
    let given = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let path = given.or(default).with_context(|| format!("`{remedy}` first, or set {variable}"))?;
    ensure!(path.exists(), "{} is not there; `{remedy}` gets it, or set {variable}", path.display());
    Ok(path)
}
