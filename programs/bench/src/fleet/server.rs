//! The server that a fleet is attached to: `starling server`, a process of this program's own executable.

use std::net::SocketAddr;
use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::mesh::{Child, Ports, command, has_leader, logs, own_program, ready};
use crate::process;

/// A server that runs; it is killed when dropped.
pub(crate) struct Server {
    child: Child,
    http: SocketAddr,
    agents: SocketAddr,
}

/// What a server has counted since its start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Counters {
    /// Frames encoded for agents.
    pub(crate) frames_encoded: f64,
    /// Bytes of frames that agents' streams took.
    pub(crate) bytes_sent: f64,
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
        let (http, agents) = (ports.loopback()?, ports.loopback()?);
        let mut command = command(&own_program()?);
        command.arg("server").arg("--data-dir").arg(directory.join("server"));
        command.args(["--http-addr", &http.to_string(), "--grpc-tls-addr", &agents.to_string()]);
        command.args(["--dns-addr", &ports.loopback()?.to_string(), "--default-intention-policy", "allow"]);
        let mut child = Child::spawn("server", &mut command, &logs(directory))?;
        ready(&mut child, || async move { has_leader(http).await }).await?;
        Ok(Self { child, http, agents })
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
        let of = |name: &str| {
            counter(&text, name).ok_or_else(|| anyhow::anyhow!("the server has no metric {name}"))
        };
        Ok(Counters {
            frames_encoded: of("starling_agent_frames_encoded_total")?,
            bytes_sent: of("starling_agent_bytes_sent_total")?,
        })
    }

    /// CPU time that it has used.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<std::time::Duration> {
        process::cpu_time(self.pid())
    }
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
