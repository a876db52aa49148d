//! The server that a fleet is attached to: `starling server`, a process of this program's own executable.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::mesh::{Child, Ports, command, has_leader, logs, own_program, ready};
use crate::process;

/// A server that runs; it is killed when dropped.
pub(crate) struct Server {
    child: Child,
    directory: PathBuf,
    http: SocketAddr,
    agents: SocketAddr,
    dns: SocketAddr,
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

#[derive(Debug, Deserialize)]
struct CreatedToken {
    token: String,
}

impl Server {
    /// Starts an empty server below `directory`, and waits until it is ready.
    ///
    /// # Errors
    /// When no port is free, or it ends or does not become ready in time; the text has the end of its log.
    pub(crate) async fn start(directory: &Path) -> anyhow::Result<Self> {
        let mut ports = Ports::new();
        let (http, agents, dns) = (ports.loopback()?, ports.loopback()?, ports.loopback()?);
        let child = spawn(directory, http, agents, dns)?;
        let mut server = Self { child, directory: directory.to_owned(), http, agents, dns };
        server.ready().await?;
        Ok(server)
    }

    /// Kills it with SIGKILL, starts it again where it was, and waits until it is ready.
    ///
    /// # Errors
    /// As for [`Server::start`].
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.kill();
        self.child = spawn(&self.directory, self.http, self.agents, self.dns)?;
        self.ready().await
    }

    async fn ready(&mut self) -> anyhow::Result<()> {
        let http = self.http;
        ready(&mut self.child, || async move { has_leader(http).await }).await
    }

    /// A client of its HTTP API.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.http)
    }

    /// Where agents attach.
    pub(crate) fn agents(&self) -> SocketAddr {
        self.agents
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
        let text = self.api().read_text("/v1/agent/metrics?format=prometheus").await?;
        let of = |name: &str| counter(&text, name).ok_or_else(|| anyhow::anyhow!("the server has no metric {name}"));
        Ok(Counters {
            frames_encoded: of("starling_agent_frames_encoded_total")?,
            bytes_sent: of("starling_agent_bytes_sent_total")?,
        })
    }

    /// Memory that it has in use.
    ///
    /// # Errors
    /// When it does not tell.
    pub(crate) async fn allocated_bytes(&self) -> anyhow::Result<u64> {
        let text = self.api().read_text("/v1/agent/metrics?format=prometheus").await?;
        let bytes = counter(&text, "starling_memory_allocated_bytes").context("the server does not tell its memory")?;
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

fn spawn(directory: &Path, http: SocketAddr, agents: SocketAddr, dns: SocketAddr) -> anyhow::Result<Child> {
    let mut command = command(&own_program()?);
    command.arg("server").arg("--data-dir").arg(directory.join("server"));
    command.args(["--http-addr", &http.to_string(), "--grpc-tls-addr", &agents.to_string()]);
    command.args(["--dns-addr", &dns.to_string(), "--default-intention-policy", "allow"]);
    Child::spawn("server", &mut command, &logs(directory))
}

/// The value of a metric without labels.
fn counter(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_is_found_by_its_whole_name() {
        let text = "# TYPE starling_frames counter\nstarling_frames_total_more 3\nstarling_frames_total 42\n";
        assert_eq!(counter(text, "starling_frames_total"), Some(42.0));
        assert_eq!(counter(text, "starling_frames"), None);
    }
}
