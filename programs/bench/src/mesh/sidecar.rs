//! The proxy of a registered sidecar, as a process.

use std::net::SocketAddr;
use std::path::Path;

use super::{Addresses, Child, Envoy, command, envoy, is_ready, own_program, ready};

/// Enough to see lost connections and refused updates; more would cost what is measured.
const LOG_LEVEL: &str = "warning";

/// A running proxy; it is killed when dropped.
pub(crate) struct Sidecar {
    child: Child,
    admin: SocketAddr,
}

/// What a proxy is started with.
#[derive(Clone, Copy)]
pub(crate) struct SidecarOptions<'a> {
    /// The agent at which the sidecar is registered.
    pub(crate) agent: Addresses,
    /// The ID of the instance that it stands beside.
    pub(crate) instance: &'a str,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Where its administration listens.
    pub(crate) admin: SocketAddr,
}

impl Sidecar {
    /// Starts it; [`Sidecar::ready`] waits for it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(envoy: &Envoy, options: SidecarOptions<'_>, logs: &Path) -> anyhow::Result<Self> {
        let SidecarOptions { agent, instance, workers, admin } = options;
        let mut command = command(&own_program()?);
        command.env("CONSUL_HTTP_ADDR", format!("http://{}", agent.http));
        command.env("CONSUL_GRPC_ADDR", format!("http://{}", agent.grpc));
        command.env(envoy::VARIABLE, envoy.path());
        command.args(["connect", "envoy", "-sidecar-for", instance, "-admin-bind", &admin.to_string(), "--"]);
        command.args(["--concurrency", &workers.to_string(), "--log-level", LOG_LEVEL]);
        let child = Child::spawn(&format!("envoy-{instance}"), &mut command, logs)?;
        Ok(Self { child, admin })
    }

    /// Starts a native proxy; [`Sidecar::ready`] waits for it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start_native(options: SidecarOptions<'_>, logs: &Path) -> anyhow::Result<Self> {
        let SidecarOptions { agent, instance, workers, admin } = options;
        let mut command = command(&own_program()?);
        command.env("CONSUL_HTTP_ADDR", format!("http://{}", agent.http));
        command.env("CONSUL_GRPC_ADDR", format!("http://{}", agent.grpc));
        command.env("STARLING_RUNTIME_DIR", logs.join("runtime"));
        command.args(["proxy", "-sidecar-for", instance, "-admin-bind", &admin.to_string()]);
        command.args(["--workers", &workers.to_string()]);
        let child = Child::spawn(&format!("proxy-{instance}"), &mut command, logs)?;
        Ok(Self { child, admin })
    }

    /// Waits until it has its configuration.
    ///
    /// # Errors
    /// When it ends or is not ready in time.
    pub(crate) async fn ready(&mut self) -> anyhow::Result<()> {
        let admin = self.admin;
        ready(&mut self.child, || async move { is_ready(admin, "/ready").await }).await
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    /// How it ended, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        self.child.ended()
    }
}
