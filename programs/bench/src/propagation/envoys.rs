//! A few real Envoys beside a simulated fleet: sidecars, fed by real agents, that call real instances of the common
//! upstream.
//!
//! Two instances run behind sidecars of their own. One is registered at the agent of its node and stays. The other comes
//! and goes with the changes of a scenario: what these deregister and register is an instance in the catalog, on a node
//! that nobody runs, at the address of its sidecar. At the agent that sidecar is registered in ill health, so that nobody
//! calls it on that account. So a change is the same call with and without Envoys.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::bail;
use http::Method;
use serde_json::{Value, json};

use crate::api::Api;
use crate::fleet::Server;
use crate::mesh::{
    Addresses, Child, Envoy, Ports, Role, Sidecar, SidecarOptions, command, fake_service, is_ready, logs, own_program,
    ready,
};
use crate::progress::Progress;
use crate::shape::COMMON_UPSTREAM;

/// The instance that stays, by ID and by the name it answers with.
pub(super) const STEADY: &str = "service-hey-stays";

/// The instance that comes and goes.
pub(super) const FICKLE: &str = "service-hey-comes-and-goes";

/// Fronts of the common upstream besides those in the catalog alone: the two sidecars at the agent.
pub(super) const FRONTS: u32 = 2;

/// Those of them that are called on account of their agent; the other is called as the common upstream's last instance.
pub(super) const CALLED: u32 = 1;

/// Variable that holds an agent's join token.
const JOIN_TOKEN: &str = "STARLING_JOIN_TOKEN";

/// Worker threads of each Envoy: more than one, because a change has taken hold only when every worker has it.
const WORKERS: usize = 2;

/// A TTL that never runs out during a run.
const CHECK_TTL: &str = "24h";

/// Running Envoys. Fields are in the order in which they end.
pub(super) struct Envoys {
    sidecars: Vec<Sidecar>,
    applications: Vec<Child>,
    agents: Vec<Child>,
    /// Where each calling Envoy takes requests for the common upstream.
    pub(super) callers: Vec<SocketAddr>,
    /// Where the instance that comes and goes is reached.
    pub(super) fickle: SocketAddr,
}

impl Envoys {
    /// Starts two instances of the common upstream and so many callers, each caller on a node of its own, and waits until
    /// every Envoy has its configuration.
    ///
    /// # Errors
    /// When a process does not start, or a registration is refused.
    pub(super) async fn start(
        envoy: &Envoy,
        callers: u32,
        server: &Server,
        directory: &Path,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let total = u64::from(callers) + u64::from(FRONTS);
        let mut phase = progress.phase("Envoys beside the fleet", total);
        let mut ports = Ports::new();
        let fickle = ports.loopback()?;
        let (sidecars, applications, agents) = (Vec::new(), Vec::new(), Vec::new());
        let mut envoys = Self { sidecars, applications, agents, callers: Vec::new(), fickle };
        let mut yard = Yard { envoy, server, token: server.join_token().await?, directory, ports };
        let agent = envoys.agent("bench-envoys", &mut yard).await?;
        for (instance, sidecar) in [(STEADY, yard.ports.loopback()?), (FICKLE, fickle)] {
            let application = yard.ports.loopback()?;
            envoys.applications.push(fake_service(instance, application, &logs(directory)).await?);
            let registration = instance_registration(instance, application, sidecar);
            envoys.sidecar(agent, instance, &registration, &mut yard).await?;
        }
        for number in 1..=callers {
            let name = format!("bench-caller-{number}");
            let agent = envoys.agent(&name, &mut yard).await?;
            let [application, sidecar, upstream] =
                [yard.ports.loopback()?, yard.ports.loopback()?, yard.ports.loopback()?];
            let registration = caller_registration(&name, application, sidecar, upstream);
            envoys.sidecar(agent, &name, &registration, &mut yard).await?;
            envoys.callers.push(upstream);
        }
        for sidecar in &mut envoys.sidecars {
            sidecar.ready().await?;
            phase.step();
        }
        Ok(envoys)
    }

    /// Starts the agent of a node, and waits until it is attached.
    async fn agent(&mut self, node: &str, yard: &mut Yard<'_>) -> anyhow::Result<Addresses> {
        let addresses = Addresses { http: yard.ports.loopback()?, grpc: yard.ports.loopback()? };
        let Addresses { http, grpc } = addresses;
        let mut command = command(&own_program()?);
        command.env(JOIN_TOKEN, &yard.token);
        command.args(["agent", "--node-name", node, "--server", &yard.server.agents().to_string()]);
        command.arg("--data-dir").arg(yard.directory.join(node));
        command.args(["--http-addr", &http.to_string(), "--grpc-addr", &grpc.to_string()]);
        command.args(["--dns-addr", &yard.ports.loopback()?.to_string()]);
        let mut child = Child::spawn(&format!("agent-{node}"), &mut command, &logs(yard.directory))?;
        ready(&mut child, || async move { is_ready(http, "/v1/agent/self").await }).await?;
        self.agents.push(child);
        Ok(addresses)
    }

    /// Registers an instance with its sidecar at the agent of its node, and starts the sidecar.
    async fn sidecar(
        &mut self,
        agent: Addresses,
        instance: &str,
        registration: &Value,
        yard: &mut Yard<'_>,
    ) -> anyhow::Result<()> {
        Api::new(agent.http).write(Method::PUT, "/v1/agent/service/register", registration).await?;
        let (role, admin) = (Role::SidecarOf(instance), yard.ports.loopback()?);
        let options = SidecarOptions { agent, role, workers: WORKERS, admin };
        self.sidecars.push(Sidecar::start(yard.envoy, options, &logs(yard.directory))?);
        Ok(())
    }

    /// Fails if a process has ended by itself.
    ///
    /// # Errors
    /// With the name of the process, how it ended, and the end of its log.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        let others = self.agents.iter_mut().chain(&mut self.applications).map(Child::ended);
        match others.chain(self.sidecars.iter_mut().map(Sidecar::ended)).flatten().next() {
            Some(how) => bail!("{how}"),
            None => Ok(()),
        }
    }
}

/// What every process is started with.
struct Yard<'a> {
    envoy: &'a Envoy,
    server: &'a Server,
    token: String,
    directory: &'a Path,
    ports: Ports,
}

/// An instance of the common upstream. The sidecar has no check that runs at a pace of its own, for that would be another
/// change; that of the instance that comes and goes has one that nobody ever lets pass.
fn instance_registration(instance: &str, application: SocketAddr, sidecar: SocketAddr) -> Value {
    let check = match instance {
        FICKLE => json!({ "Name": "called by its other registration", "TTL": CHECK_TTL, "Status": "critical" }),
        _ => json!({ "Name": "instance", "AliasService": instance }),
    };
    json!({
        "ID": instance,
        "Name": COMMON_UPSTREAM,
        "Address": application.ip(),
        "Port": application.port(),
        "Connect": { "SidecarService": { "Port": sidecar.port(), "Checks": [check] } },
    })
}

/// The calling side. It has no process: the probes stand in for it.
fn caller_registration(name: &str, application: SocketAddr, sidecar: SocketAddr, upstream: SocketAddr) -> Value {
    json!({
        "ID": name,
        "Name": name,
        "Address": application.ip(),
        "Port": application.port(),
        "Connect": { "SidecarService": {
            "Port": sidecar.port(),
            "Checks": [{ "Name": "instance", "AliasService": name }],
            "Proxy": { "Upstreams": [{
                "DestinationName": COMMON_UPSTREAM,
                "LocalBindAddress": upstream.ip(),
                "LocalBindPort": upstream.port(),
            }] },
        } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn nobody_calls_what_comes_and_goes_on_account_of_its_agent() {
        let status = |instance| {
            let body = instance_registration(instance, at(1), at(2));
            assert_eq!(
                (&body["Name"], &body["Connect"]["SidecarService"]["Port"]),
                (&COMMON_UPSTREAM.into(), &2.into())
            );
            body["Connect"]["SidecarService"]["Checks"][0]["Status"].clone()
        };
        assert_eq!(status(FICKLE), "critical");
        assert_eq!(status(STEADY), Value::Null);
    }

    #[test]
    fn a_caller_takes_requests_for_the_common_upstream() {
        let body = caller_registration("bench-caller-1", at(1), at(2), at(3));
        let upstream = &body["Connect"]["SidecarService"]["Proxy"]["Upstreams"][0];
        assert_eq!((&upstream["DestinationName"], &upstream["LocalBindPort"]), (&COMMON_UPSTREAM.into(), &3.into()));
    }
}
