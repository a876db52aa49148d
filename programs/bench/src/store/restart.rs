//! How long a server takes to be ready again whose store has many entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use anyhow::Context;
use http::Method;
use serde::Serialize;
use serde_json::json;

use crate::api::Api;
use crate::cost::median;
use crate::fleet::Server;
use crate::progress::Progress;

/// Seconds until it is ready.
const BAR_SECONDS: f64 = 10.0;

/// How often it is killed and started again.
const RESTARTS: u32 = 3;

/// Clients that register at the same time.
const CLIENTS: u32 = 256;

/// Workloads of a node.
const PER_NODE: u32 = 18;

/// What was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Restart {
    /// In the store, at least.
    entries: u32,
    /// From the start of the process until it is ready; the median.
    seconds: f64,
    bar: f64,
    pub(crate) met: bool,
    seconds_rounds: Vec<f64>,
}

impl Restart {
    fn new(entries: u32, seconds_rounds: Vec<f64>) -> Self {
        let seconds = median(seconds_rounds.iter().copied()).unwrap_or_default();
        Self { entries, seconds, bar: BAR_SECONDS, met: seconds <= BAR_SECONDS, seconds_rounds }
    }

    /// For people.
    pub(crate) fn line(&self) -> String {
        let Self { entries, seconds, bar, met, seconds_rounds } = self;
        let verdict = crate::table::verdict(*met);
        let longest = seconds_rounds.iter().copied().fold(0.0, f64::max);
        format!(
            "a server with {entries} entries in etcd, killed and started again: ready after {seconds:.2} s, at most \
             {longest:.2} s of {} times; bar {bar:.0} s {verdict}",
            seconds_rounds.len()
        )
    }
}

/// Registers services with a check each until a server's store has so many entries, of which `present` are there, and then
/// kills it and starts it again some times.
///
/// # Errors
/// When a registration is refused, or the server is not ready again in time.
pub(crate) async fn measure(
    server: &mut Server,
    entries: u32,
    present: u32,
    progress: &Progress,
) -> anyhow::Result<Restart> {
    fill(server, entries.saturating_sub(present).div_ceil(2), progress).await?;
    let mut rounds = Vec::new();
    let mut phase = progress.phase("restarts", u64::from(RESTARTS));
    for _ in 0..RESTARTS {
        server.kill();
        let begun = Instant::now();
        server.restart().await?;
        rounds.push(begun.elapsed().as_secs_f64());
        phase.step();
    }
    Ok(Restart::new(entries.max(present), rounds))
}

/// Registers so many services, each with a check.
async fn fill(server: &Server, services: u32, progress: &Progress) -> anyhow::Result<()> {
    let mut phase = progress.phase("entries", u64::from(services));
    let next = Arc::new(AtomicU32::new(0));
    let (registered, mut steps) = tokio::sync::mpsc::unbounded_channel();
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        let (next, registered, api) = (Arc::clone(&next), registered.clone(), server.api());
        clients.spawn(async move { register(api, &next, services, &registered).await });
    }
    drop(registered);
    while steps.recv().await.is_some() {
        phase.step();
    }
    while let Some(client) = clients.join_next().await {
        client.context("a client ended")??;
    }
    Ok(())
}

/// Takes one number after the other, and registers the service of it.
async fn register(
    mut api: Api,
    next: &AtomicU32,
    services: u32,
    registered: &tokio::sync::mpsc::UnboundedSender<()>,
) -> anyhow::Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= services {
            return Ok(());
        }
        let (node, id) = (format!("bench-{:06}", number / PER_NODE), format!("workload-{number:07}"));
        let body = json!({
            "Node": node,
            "Address": "192.0.2.1",
            "Service": { "ID": id, "Service": format!("service-{:04}", number % 2_000), "Port": 8080, "Tags": ["bench"] },
            "Check": { "CheckID": format!("{id}-check"), "Name": "alive", "ServiceID": id, "Status": "passing" },
        });
        api.write(Method::PUT, "/v1/catalog/register", &body).await?;
        // Nobody looks if the run is given up.
        let _ = registered.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_held_against_the_bar() {
        let found = Restart::new(356_000, vec![9.0, 30.0, 8.0]);
        assert!(
            found.met && found.line().contains("ready after 9.00 s, at most 30.00 s of 3 times"),
            "{}",
            found.line()
        );
        assert!(!Restart::new(1, vec![10.5, 10.5, 1.0]).met);
    }
}
