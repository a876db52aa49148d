//! One round of one writer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Context;
use http::Method;
use serde_json::json;

use super::commits::{self, KEY_BYTES, Timed};
use super::tool::{Told, Tool};
use super::{Load, Writer};
use crate::etcd::Members;
use crate::fleet::Server;
use crate::mesh::Ports;

/// Bytes that a registration has beside its metadata, in the store.
const REGISTRATION_BYTES: u32 = 120;

/// What writes: etcd's tool, a server, and this process.
pub(crate) struct Writes {
    tool: Tool,
    members: Vec<String>,
    server: Server,
    load: Load,
}

impl Writes {
    /// Starts a server on the members.
    ///
    /// # Errors
    /// When it is not ready in time.
    pub(crate) async fn start(
        tool: Tool,
        members: &Members,
        directory: &Path,
        ports: &mut Ports,
        load: Load,
    ) -> anyhow::Result<Self> {
        // Beside the data of the bare commits: a server takes no keys that it does not know.
        let server = Server::on_etcd(members, "/starling-bench-server", directory, ports).await?;
        Ok(Self { tool, members: members.endpoints().to_vec(), server, load })
    }

    /// The server, with what it was told.
    pub(crate) fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    /// Has one of them write once through.
    ///
    /// # Errors
    /// When a write fails.
    pub(crate) async fn round(&mut self, writer: Writer, round: u32) -> anyhow::Result<Told> {
        match writer {
            Writer::PutOneConnection | Writer::PutEachMember | Writer::TxnEachMember => {
                self.tool.run(writer, &self.members, self.load, KEY_BYTES).await
            }
            Writer::Commits => Ok(told(commits::run(&self.members, self.load).await?)),
            Writer::Api => Ok(told(self.register(round).await?)),
        }
    }

    /// Registers nodes that are not there yet.
    async fn register(&self, round: u32) -> anyhow::Result<Timed> {
        let Load { writes, callers, value_bytes } = self.load;
        let filling = "x".repeat(value_bytes.saturating_sub(REGISTRATION_BYTES).min(500) as usize);
        let next = Arc::new(AtomicU32::new(0));
        let begun = Instant::now();
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..callers {
            let (next, filling, mut api) = (Arc::clone(&next), filling.clone(), self.server.api());
            clients.spawn(async move {
                let mut times = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= writes {
                        return anyhow::Ok(times);
                    }
                    let node = format!("n{round:03}-{number:010}");
                    let body = json!({"Node": node, "Address": "192.0.2.1", "NodeMeta": {"filling": filling}});
                    let written = api.write(Method::PUT, "/v1/catalog/register", &body).await?;
                    times.push(written.answered - written.called);
                }
            });
        }
        let mut times = Vec::new();
        while let Some(client) = clients.join_next().await {
            times.extend(client.context("a client ended")??);
        }
        Ok(Timed { seconds: begun.elapsed().as_secs_f64(), times })
    }
}

#[expect(clippy::cast_precision_loss, reason = "writes are counted in thousands")]
fn told(timed: Timed) -> Told {
    let Timed { seconds, mut times } = timed;
    times.sort_unstable();
    let at = |hundredths: usize| {
        let time = times.get((times.len() * hundredths / 100).min(times.len().saturating_sub(1)));
        time.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    Told { per_second: times.len() as f64 / seconds, p50_ms: at(50), p99_ms: at(99) }
}
