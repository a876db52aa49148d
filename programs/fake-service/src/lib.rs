//! A service that only pretends to work: an N-tier test application for meshes and proxies.
//!
//! It answers every request with JSON that tells who answered, when, what the request looked like on arrival, and
//! what its own upstreams answered, nested to any depth. It can be slow, fail, be unhealthy or become ready late, and
//! speaks HTTP/1.1, HTTP/2 and gRPC on one port. It is driven by the environment variables, and answers in the form,
//! of Nic Jackson's `fake-service`; [`Config`] names each variable.
//!
//! Three additions to the form: `request` (method, path, and the headers `x-request-id` and
//! `x-forwarded-client-cert` as they arrived), `error` on an answer whose upstream failed, and the request header
//! `x-fake-service-hops`, by which a loop of upstreams ends in status 508.
//!
//! What it does not own: telemetry (the caller installs a `tracing` subscriber) and TLS (that is the mesh's part).

mod answer;
mod config;
mod fault;
mod forward;
mod go_duration;
mod over_grpc;
mod over_http;
mod server;
mod service;
mod timing;
mod upstream;

use std::future::Future;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

pub use config::{Config, ConfigError, ServerType};
pub use fault::{Fault, FaultCode, FaultKind};
pub use server::serve;
pub use timing::Timing;
pub use upstream::{Upstream, UpstreamUriError};

/// Serves the fake service that the process's environment describes, until SIGINT or SIGTERM.
///
/// # Errors
/// If a variable is not understood, the address cannot be listened on, or signals cannot be received.
pub async fn run_from_env() -> anyhow::Result<()> {
    let lookup = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    let config = Config::from_env(lookup)?;
    for variable in config::unsupported(lookup) {
        tracing::warn!(variable, "variable is set but not supported, and has no effect");
    }
    let stop = stop_signal()?;
    let listener = TcpListener::bind(&config.listen_addr)
        .await
        .with_context(|| format!("cannot listen on LISTEN_ADDR {:?}", config.listen_addr))?;
    serve(config, listener, stop).await
}

fn stop_signal() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
