//! Three members of etcd, fresh, with the benchmark's own ports and folder; or those that the user names.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpStream;

use crate::api::Api;
use crate::mesh::{Child, Ports, logs, ready};

/// Members: the fewest of which one may be lost.
const MEMBERS: usize = 3;

/// The members that are written to. Those of our own end when this is dropped.
pub(crate) struct Members {
    endpoints: Vec<String>,
    own: Vec<Member>,
}

/// A member of our own.
struct Member {
    child: Child,
    program: PathBuf,
    arguments: Vec<String>,
    client: SocketAddr,
    logs: PathBuf,
}

/// What a member says of itself, in the JSON of etcd's gRPC gateway, where numbers of 64 bits are texts.
#[derive(Debug, Deserialize)]
struct Status {
    header: Header,
    leader: String,
}

#[derive(Debug, Deserialize)]
struct Header {
    member_id: String,
}

impl Members {
    /// Those of an etcd that runs.
    pub(crate) fn given(endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), own: Vec::new() }
    }

    /// Starts three, and waits until they take connections.
    ///
    /// # Errors
    /// When etcd is not there, no port is free, or one ends or is not ready in time.
    pub(crate) async fn start(directory: &Path, ports: &mut Ports) -> anyhow::Result<Self> {
        let program = program("STARLING_ETCD", "etcd", "cargo xtask install etcd")?;
        let mut addresses = Vec::new();
        for _ in 0..MEMBERS {
            addresses.push((ports.loopback()?, ports.loopback()?));
        }
        let cluster: Vec<_> =
            addresses.iter().enumerate().map(|(number, (_, peer))| format!("m{number}=http://{peer}")).collect();
        let mut own = Vec::new();
        for (number, (client, peer)) in addresses.iter().enumerate() {
            let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
            let data = directory.join(format!("etcd-{number}")).display().to_string();
            let arguments = [
                ["--name", &format!("m{number}")],
                ["--initial-cluster", &cluster.join(",")],
                ["--listen-client-urls", &client_url],
                ["--advertise-client-urls", &client_url],
                ["--listen-peer-urls", &peer_url],
                ["--initial-advertise-peer-urls", &peer_url],
                ["--data-dir", &data],
                ["--log-level", "warn"],
            ];
            let arguments = arguments.concat().into_iter().map(str::to_owned).collect();
            own.push(Member::start(program.clone(), arguments, *client, logs(directory))?);
        }
        for member in &mut own {
            member.ready().await?;
        }
        Ok(Self { endpoints: own.iter().map(|member| member.client.to_string()).collect(), own })
    }

    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Kills the member that leads, with SIGKILL; answers with its place.
    ///
    /// # Errors
    /// When none of our own says that it leads.
    pub(crate) async fn kill_leader(&mut self) -> anyhow::Result<usize> {
        for (place, member) in self.own.iter_mut().enumerate() {
            let status: Status = Api::new(member.client).ask("/v3/maintenance/status", &json!({})).await?;
            if status.leader == status.header.member_id {
                member.child.kill();
                return Ok(place);
            }
        }
        bail!("no member of etcd leads")
    }

    /// Starts a member again that was killed.
    ///
    /// # Errors
    /// When it ends or is not ready in time.
    pub(crate) async fn restart(&mut self, place: usize) -> anyhow::Result<()> {
        let member = &mut self.own[place];
        member.child = member.spawn()?;
        member.ready().await
    }
}

impl Member {
    fn start(program: PathBuf, arguments: Vec<String>, client: SocketAddr, logs: PathBuf) -> anyhow::Result<Self> {
        let child = spawn(&program, &arguments, &logs)?;
        Ok(Self { child, program, arguments, client, logs })
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        spawn(&self.program, &self.arguments, &self.logs)
    }

    /// Waits until it takes connections, which it does once it has a leader.
    async fn ready(&mut self) -> anyhow::Result<()> {
        let client = self.client;
        ready(&mut self.child, || async move { TcpStream::connect(client).await.is_ok() }).await
    }
}

fn spawn(program: &Path, arguments: &[String], logs: &Path) -> anyhow::Result<Child> {
    let name = arguments.get(1).map_or("etcd", String::as_str);
    Child::spawn(&format!("etcd-{name}"), Command::new(program).args(arguments), logs)
}

/// A program: by environment, else in the search path.
///
/// # Errors
/// If it is not there: how to get it.
pub(crate) fn program(variable: &str, name: &str, remedy: &str) -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from) {
        ensure!(path.exists(), "{variable} names {}, which is not there", path.display());
        return Ok(path);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&folders).map(|folder| folder.join(name));
    places.find(|path| path.is_file()).with_context(|| {
        format!("the program {name} is not in the search path; `{remedy}` gets it, or set {variable} to its path")
    })
}
