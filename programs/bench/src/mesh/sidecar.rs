//! The proxy of a registered sidecar or of a gateway, as a process.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use super::{Addresses, Child, Envoy, LOOPBACK, command, envoy, is_ready, own_program, ready};
use crate::cgroup::Cgroup;

/// Enough to see lost connections and refused updates; more would cost what is measured.
const LOG_LEVEL: &str = "warning";

/// A running proxy; it is killed when dropped.
pub(crate) struct Sidecar {
    // Ends before its group, which goes only when it is empty.
    child: Child,
    group: Option<Cgroup>,
    admin: SocketAddr,
}

/// What a proxy is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Role<'a> {
    /// The sidecar of the instance of this ID.
    SidecarOf(&'a str),
    /// The ingress gateway of this name, which it registers itself.
    Gateway(&'a str),
}

/// What a proxy is started with.
#[derive(Clone, Copy)]
pub(crate) struct SidecarOptions<'a> {
    /// The agent at which the sidecar is registered.
    pub(crate) agent: Addresses,
    pub(crate) role: Role<'a>,
    /// Worker threads.
    pub(crate) workers: usize,
    /// Where its administration listens.
    pub(crate) admin: SocketAddr,
}

impl<'a> Role<'a> {
    pub(crate) fn name(self) -> &'a str {
        match self {
            Self::SidecarOf(name) | Self::Gateway(name) => name,
        }
    }

    /// What both programs are told in the same words.
    fn tell(self, command: &mut Command) {
        match self {
            Self::SidecarOf(instance) => command.args(["-sidecar-for", instance]),
            Self::Gateway(_) => command.args(["-register", "-address", &LOOPBACK.to_string()]),
        };
    }
}

impl Sidecar {
    /// Starts it; [`Sidecar::ready`] waits for it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(envoy: &Envoy, options: SidecarOptions<'_>, logs: &Path) -> anyhow::Result<Self> {
        let SidecarOptions { role, workers, admin, .. } = options;
        let mut command = options.command()?;
        command.env(envoy::VARIABLE, envoy.path());
        command.args(["connect", "envoy"]);
        if let Role::Gateway(name) = role {
            command.args(["-gateway", "ingress", "-service", name]);
        }
        role.tell(&mut command);
        command.args(["-admin-bind", &admin.to_string(), "--"]);
        command.args(["--concurrency", &workers.to_string(), "--log-level", LOG_LEVEL]);
        let child = Child::spawn(&format!("envoy-{}", role.name()), &mut command, logs)?;
        Ok(Self { child, group: None, admin })
    }

    /// Starts a native proxy; [`Sidecar::ready`] waits for it.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start_native(options: SidecarOptions<'_>, logs: &Path) -> anyhow::Result<Self> {
        let SidecarOptions { role, workers, admin, .. } = options;
        let mut command = options.command()?;
        command.env("STARLING_RUNTIME_DIR", logs.join("runtime"));
        command.arg("proxy");
        if let Role::Gateway(name) = role {
            command.args(["-gateway", name]);
        }
        role.tell(&mut command);
        command.args(["-admin-bind", &admin.to_string(), "--workers", &workers.to_string()]);
        let child = Child::spawn(&format!("proxy-{}", role.name()), &mut command, logs)?;
        Ok(Self { child, group: None, admin })
    }

    /// Takes it into a group of its own, without limits yet: right after its start, so that all its memory counts.
    ///
    /// # Errors
    /// When it has ended, or may not be moved.
    pub(crate) fn confine(&mut self, group: Cgroup) -> anyhow::Result<()> {
        group.take(self.pid())?;
        self.group = Some(group);
        Ok(())
    }

    /// The group that it was taken into.
    pub(crate) fn group(&self) -> Option<&Cgroup> {
        self.group.as_ref()
    }

    /// The same, to change its limits.
    pub(crate) fn group_mut(&mut self) -> Option<&mut Cgroup> {
        self.group.as_mut()
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

    /// Where its administration listens.
    pub(crate) fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Whether the kernel has killed it for its memory.
    pub(crate) fn was_killed(&self) -> bool {
        self.group.as_ref().and_then(Cgroup::killed_at).is_some()
    }

    /// How it ended, if it has ended by itself.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let how = self.child.ended()?;
        match self.group.as_ref().and_then(Cgroup::killed_at) {
            Some(limit) => {
                Some(format!("the kernel killed {}: it took more than {limit} MiB of memory", self.child.name()))
            }
            None => Some(how),
        }
    }
}

impl SidecarOptions<'_> {
    fn command(self) -> anyhow::Result<Command> {
        let mut command = command(&own_program()?);
        command.env("CONSUL_HTTP_ADDR", format!("http://{}", self.agent.http));
        command.env("CONSUL_GRPC_ADDR", format!("http://{}", self.agent.grpc));
        Ok(command)
    }
}
