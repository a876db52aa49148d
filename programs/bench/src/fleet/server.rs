//! A server that a fleet is attached to: `starling server`, a process of this program's own executable.

use std::net::SocketAddr;
use std::ops::Add;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::etcd::Members;
use crate::mesh::{Child, Ports, command, has_leader, logs, own_program, ready};
use crate::process;

/// A server that runs; it is killed when dropped.
pub(crate) struct Server {
    child: Child,
    setup: Setup,
}

/// How a server is started, and started again.
pub(super) struct Setup {
    name: String,
    /// Of the whole run.
    directory: PathBuf,
    http: SocketAddr,
    agents: SocketAddr,
    dns: SocketAddr,
    shared: Option<Shared>,
}

/// What a server needs to be one of several.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    /// The URL of the store.
    store: String,
    seal_key: PathBuf,
}

/// What a server has counted since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Counters {
    /// Frames encoded for agents.
    pub(crate) frames_encoded: f64,
    /// Bytes of frames that agents' streams took.
    pub(crate) bytes_sent: f64,
}

impl Counters {
    /// What came since an earlier look.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            frames_encoded: self.frames_encoded - before.frames_encoded,
            bytes_sent: self.bytes_sent - before.bytes_sent,
        }
    }

    /// The share of one of so many.
    #[expect(clippy::cast_precision_loss, reason = "changes are counted in thousands")]
    pub(crate) fn divided_by(self, count: usize) -> Self {
        let count = count.max(1) as f64;
        Self { frames_encoded: self.frames_encoded / count, bytes_sent: self.bytes_sent / count }
    }
}

impl Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            frames_encoded: self.frames_encoded + other.frames_encoded,
            bytes_sent: self.bytes_sent + other.bytes_sent,
        }
    }
}

/// How many agents have a stream open to a server.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Streams {
    /// By which they are here.
    pub(super) primary: f64,
    /// In reserve.
    pub(super) standby: f64,
}

#[derive(Debug, Deserialize)]
struct CreatedToken {
    token: String,
}

impl Server {
    /// Starts an empty server below `directory` that has a store of its own, and waits until it is ready.
    ///
    /// # Errors
    /// When no port is free, or as for [`Server::restart`].
    pub(crate) async fn alone(directory: &Path) -> anyhow::Result<Self> {
        Self::start(Setup::new("server".to_owned(), directory.to_owned(), &mut Ports::new(), None)?).await
    }

    /// Starts a server below `directory` whose store is below `prefix` on members of etcd, and waits until it is ready.
    ///
    /// # Errors
    /// As for [`Server::alone`], and when no seal key can be made.
    pub(crate) async fn on_etcd(
        members: &Members,
        prefix: &str,
        directory: &Path,
        ports: &mut Ports,
    ) -> anyhow::Result<Self> {
        let shared = Shared::on(members, prefix, directory)?;
        Self::start(Setup::new("server".to_owned(), directory.to_owned(), ports, Some(shared))?).await
    }

    /// Starts an empty server, and waits until it is ready.
    ///
    /// # Errors
    /// As for [`Server::restart`].
    pub(super) async fn start(setup: Setup) -> anyhow::Result<Self> {
        let mut server = Self { child: setup.spawn()?, setup };
        server.ready().await?;
        Ok(server)
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill();
    }

    /// Kills it with SIGKILL if it runs, starts it again where it was, and waits until it is ready.
    ///
    /// # Errors
    /// When it ends or does not become ready in time; the text has the end of its log.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.kill();
        self.child = self.setup.spawn()?;
        self.ready().await
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let http = self.setup.http;
        ready(&mut self.child, || async move { has_leader(http).await }).await
    }

    /// A client of its HTTP API.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.setup.http)
    }

    /// Where its HTTP API is.
    pub(crate) fn http(&self) -> SocketAddr {
        self.setup.http
    }

    /// Where its DNS is.
    pub(crate) fn dns(&self) -> SocketAddr {
        self.setup.dns
    }

    /// Where agents attach.
    pub(crate) fn agents(&self) -> SocketAddr {
        self.setup.agents
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// How it ended, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.ended()
    }

    /// A token by which any number of nodes may join.
    ///
    /// # Errors
    /// When the server does not make one.
    pub(crate) async fn join_token(&self) -> anyhow::Result<String> {
        let body = json!({ "Reusable": true, "TTL": "24h", "Description": "starling bench" });
        let created: CreatedToken = self.api().make("/starling/v1/tokens/join", &body).await?;
        Ok(created.token)
    }

    /// What it has counted.
    ///
    /// # Errors
    /// When it does not tell, or has no such counters.
    pub(crate) async fn counters(&self) -> anyhow::Result<Counters> {
        let metrics = self.metrics().await?;
        Ok(Counters {
            frames_encoded: metrics.value("starling_agent_frames_encoded_total")?,
            bytes_sent: metrics.value("starling_agent_bytes_sent_total")?,
        })
    }

    /// The streams that agents have open to it.
    ///
    /// # Errors
    /// When it does not tell.
    pub(super) async fn streams(&self) -> anyhow::Result<Streams> {
        let metrics = self.metrics().await?;
        Ok(Streams {
            primary: metrics.value("starling_agents_attached")?,
            standby: metrics.value("starling_agents_standby")?,
        })
    }

    /// How often a stream in reserve has become a node's primary here.
    ///
    /// # Errors
    /// When it does not tell.
    pub(super) async fn promotions(&self) -> anyhow::Result<f64> {
        self.metrics().await?.value("starling_agent_promotions_total")
    }

    /// How many nodes it has asked to move to another server.
    ///
    /// # Errors
    /// When it does not tell.
    pub(super) async fn moves(&self) -> anyhow::Result<f64> {
        self.metrics().await?.value("starling_agent_moves_directed_total")
    }

    async fn metrics(&self) -> anyhow::Result<Metrics> {
        Ok(Metrics(self.api().read_text("/v1/agent/metrics?format=prometheus").await?))
    }

    /// Memory that it has in use.
    ///
    /// # Errors
    /// When it does not tell.
    pub(crate) async fn allocated_bytes(&self) -> anyhow::Result<u64> {
        let bytes = self.metrics().await?.value("starling_memory_allocated_bytes")?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes are whole and not negative")]
        Ok(bytes as u64)
    }

    /// CPU time that it has used.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<std::time::Duration> {
        process::cpu_time(self.pid())
    }
}

impl Shared {
    /// The store below `prefix` on members of etcd, and a new key, in `directory`, by which servers seal that of their CA.
    ///
    /// # Errors
    /// When the key cannot be made.
    pub(super) fn on(members: &Members, prefix: &str, directory: &Path) -> anyhow::Result<Self> {
        let seal_key = directory.join("seal-key");
        let mut command = command(&own_program()?);
        let made = command.args(["ca", "new-seal-key"]).arg(&seal_key).output().context("cannot make a seal key")?;
        ensure!(made.status.success(), "cannot make a seal key: {}", String::from_utf8_lossy(&made.stderr).trim());
        Ok(Self { store: format!("etcd://{}{prefix}", members.endpoints().join(",")), seal_key })
    }
}

impl Setup {
    /// Of the server `name`, whose data are below `directory`; alone with a store of its own unless it is one of several.
    ///
    /// # Errors
    /// When no port is free.
    pub(super) fn new(
        name: String,
        directory: PathBuf,
        ports: &mut Ports,
        shared: Option<Shared>,
    ) -> anyhow::Result<Self> {
        let (http, agents, dns) = (ports.loopback()?, ports.loopback()?, ports.loopback()?);
        Ok(Self { name, directory, http, agents, dns, shared })
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let mut command = command(&own_program()?);
        command.arg("server").arg("--data-dir").arg(self.directory.join(&self.name));
        command.args(["--http-addr", &self.http.to_string(), "--grpc-tls-addr", &self.agents.to_string()]);
        command.args(["--dns-addr", &self.dns.to_string(), "--default-intention-policy", "allow"]);
        if let Some(Shared { store, seal_key }) = &self.shared {
            command.args(["--node-name", &self.name, "--store", store]).arg("--seal-key-file").arg(seal_key);
        }
        Child::spawn(&self.name, &mut command, &logs(&self.directory))
    }
}

/// What a server tells of itself, in the text format of Prometheus.
struct Metrics(String);

impl Metrics {
    /// The value of a metric without labels.
    fn value(&self, name: &str) -> anyhow::Result<f64> {
        let found = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok());
        found.with_context(|| format!("the server has no metric {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE starling_frames counter\nstarling_frames_total_more 3\nstarling_frames_total 42\n";
        let metrics = Metrics(text.to_owned());
        assert!((metrics.value("starling_frames_total").unwrap() - 42.0).abs() < f64::EPSILON);
        assert!(metrics.value("starling_frames").unwrap_err().to_string().contains("no metric starling_frames"));
    }
}
