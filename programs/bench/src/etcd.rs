//! Three members of etcd, fresh, with the benchmark's own ports and folder; or those that the user names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use tokio::net::TcpStream;

use crate::mesh::{Child, Ports, logs, ready};

/// Members: the fewest of which one may be lost.
const MEMBERS: usize = 3;

/// The members that are written to. Those of our own end when this is dropped.
pub(crate) struct Members {
    endpoints: Vec<String>,
    _children: Vec<Child>,
}

impl Members {
    /// Those of an etcd that runs.
    pub(crate) fn given(endpoints: &[String]) -> Self {
        Self { endpoints: endpoints.to_vec(), _children: Vec::new() }
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
        let (mut endpoints, mut children) = (Vec::new(), Vec::new());
        for (number, (client, peer)) in addresses.iter().enumerate() {
            let (client_url, peer_url) = (format!("http://{client}"), format!("http://{peer}"));
            let mut command = Command::new(&program);
            command.args(["--name", &format!("m{number}"), "--initial-cluster", &cluster.join(",")]);
            command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
            command.args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url]);
            command.arg("--data-dir").arg(directory.join(format!("etcd-{number}"))).args(["--log-level", "warn"]);
            children.push(Child::spawn(&format!("etcd-{number}"), &mut command, &logs(directory))?);
            endpoints.push(client.to_string());
        }
        for (child, (client, _)) in children.iter_mut().zip(addresses) {
            // It takes connections once it has a leader.
            let listens = || async move { TcpStream::connect(client).await.is_ok() };
            ready(child, listens).await?;
        }
        Ok(Self { endpoints, _children: children })
    }

    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }
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
