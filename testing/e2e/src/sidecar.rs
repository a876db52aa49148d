//! Envoy, started by `starling connect envoy`, or with the bootstrap that it prints.

use std::process::Command;

use serde_json::Value;

use crate::http::{self, Answer};
use crate::mesh::Mesh;
use crate::ports::free_port;
use crate::process::Process;
use crate::{tools, wait};

/// What every Envoy is told on its command line.
const ENVOY_ARGUMENTS: [&str; 6] = [
    "--concurrency",
    "1",
    "-l",
    "warning",
    // The access log is looked at soon after the request.
    "--file-flush-interval-msec",
    "100",
];

/// In which of its two forms an Envoy speaks xDS.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Xds {
    /// Only what differs; what `starling connect envoy` tells it to do.
    #[default]
    Incremental,
    /// All resources of a type in each response.
    StateOfTheWorld,
}

/// One running Envoy.
#[derive(Debug)]
pub struct Sidecar {
    /// HOST:PORT of its admin interface.
    pub admin: String,
    /// The process.
    pub process: Process,
}

impl Sidecar {
    /// Starts the sidecar of the instance `id`; it need not be ready when this returns.
    ///
    /// # Panics
    /// If there is no bootstrap for it.
    pub async fn spawn(mesh: &Mesh, id: &str, xds: Xds) -> Self {
        Self::spawn_with(mesh, id, xds, &[]).await
    }

    /// The same with more arguments.
    ///
    /// # Panics
    /// If there is no bootstrap for it.
    pub async fn spawn_with(mesh: &Mesh, id: &str, xds: Xds, more: &[&str]) -> Self {
        let admin = format!("127.0.0.1:{}", free_port());
        let connect = [&["connect", "envoy", "-sidecar-for", id, "-admin-bind", &admin], more].concat();
        let command = match xds {
            Xds::Incremental => mesh.command(&[&connect[..], &["--"], &ENVOY_ARGUMENTS].concat()),
            Xds::StateOfTheWorld => {
                let mut bootstrap = mesh.cli(&[&connect[..], &["-bootstrap"]].concat()).await.success().json();
                bootstrap["dynamic_resources"]["ads_config"]["api_type"] = "GRPC".into();
                let mut command = Command::new(tools::envoy());
                command.args(["--config-yaml", &bootstrap.to_string(), "--disable-hot-restart"]).args(ENVOY_ARGUMENTS);
                command
            }
        };
        Self { process: Process::spawn(&format!("envoy-{id}"), command), admin }
    }

    /// Starts the sidecar of the instance `id`, and waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn start(mesh: &Mesh, id: &str, ports: &[u16], xds: Xds) -> Self {
        let mut sidecar = Self::spawn(mesh, id, xds).await;
        sidecar.live(id, ports).await;
        sidecar
    }

    /// Starts Envoy as the gateway `name`, registers it at 127.0.0.1, and waits until it listens on all `ports`.
    ///
    /// # Panics
    /// If it does not.
    pub async fn gateway(mesh: &Mesh, name: &str, ports: &[u16]) -> Self {
        let admin = format!("127.0.0.1:{}", free_port());
        let connect = ["connect", "envoy", "-gateway", "ingress", "-service", name, "-admin-bind", &admin];
        let register = ["-register", "-address", "127.0.0.1", "--"];
        let command = mesh.command(&[&connect[..], &register, &ENVOY_ARGUMENTS].concat());
        let mut gateway = Self { process: Process::spawn(&format!("envoy-{name}"), command), admin };
        gateway.live(name, ports).await;
        gateway
    }

    /// Starts Envoy as the terminating gateway `name`, registers it at 127.0.0.1:`port`, and waits until it listens there.
    ///
    /// # Panics
    /// If it does not.
    pub async fn terminating(mesh: &Mesh, name: &str, port: u16) -> Self {
        let (admin, address) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{port}"));
        let connect = ["connect", "envoy", "-gateway", "terminating", "-service", name, "-admin-bind", &admin];
        let register = ["-register", "-address", &address, "--"];
        let command = mesh.command(&[&connect[..], &register, &ENVOY_ARGUMENTS].concat());
        let mut gateway = Self { process: Process::spawn(&format!("envoy-{name}"), command), admin };
        gateway.live(name, &[port]).await;
        gateway
    }

    /// Waits until Envoy is initialised and listens on all `ports`.
    ///
    /// # Panics
    /// If it is not in time.
    pub async fn live(&mut self, id: &str, ports: &[u16]) {
        wait::eventually(&format!("the sidecar of {id} listens on {ports:?}"), async || {
            self.process.expect_running()?;
            let ready = http::get(&self.admin, "/ready").await?;
            anyhow::ensure!(ready.status == 200, "/ready says {}", ready.text().trim());
            let listeners = http::get(&self.admin, "/listeners").await?.text();
            for port in ports {
                let suffix = format!(":{port}");
                let there = listeners.lines().any(|line| line.ends_with(&suffix));
                anyhow::ensure!(there, "no listener on {port}; there are: {listeners}");
            }
            Ok(())
        })
        .await;
    }

    /// A GET at the admin interface.
    ///
    /// # Panics
    /// If it does not answer.
    pub async fn get(&self, target: &str) -> Answer {
        http::get(&self.admin, target).await.expect("Envoy's admin interface").success()
    }

    /// The sum of all counters and gauges whose name begins and ends so.
    pub async fn stat(&self, prefix: &str, suffix: &str) -> u64 {
        let stats = self.get("/stats").await.text();
        let values = stats.lines().filter_map(|line| line.split_once(": "));
        values
            .filter(|(name, _)| name.starts_with(prefix) && name.ends_with(suffix))
            .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
            .sum()
    }

    /// Whether it has a stream to the control plane.
    pub async fn is_connected(&self) -> bool {
        self.stat("control_plane.", "connected_state").await == 1
    }

    /// Everything that the control plane has given it.
    pub async fn config_dump(&self) -> Value {
        self.get("/config_dump?include_eds").await.json()
    }
}
