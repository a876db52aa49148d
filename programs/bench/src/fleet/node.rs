//! One simulated node: a real agent with many workloads, of which none has a socket.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures::future::try_join_all;
use starling_agent::native::Workload as NativeWorkload;
use starling_agent::remote::{InForce, NodeConfig, RemoteNode};
use starling_agent::{
    Agent, AgentConfig, DEFAULT_SIDECAR_PORTS, ExistingChecks, Leaf, LeafError, Leaves, LinkError, RegisterError,
    Registered, WriteError, system_clock,
};
use starling_model::{
    Action, Datacenter, InstanceId, InstanceKey, InstanceKind, Node, NodeName, OpaqueSettings, Port, Revision,
    ServiceInstance, ServiceName, ServiceRegistration, SidecarProxy, Upstream, Weights,
};
use tokio::sync::watch;

use super::Expected;
use crate::shape::{COMMON_UPSTREAM, RESTLESS_UPSTREAM, Workload};

/// Time that a node has for each step of coming up; among ten thousand that come up together it waits for its turn.
const STEP_DEADLINE: Duration = Duration::from_secs(120);

/// Pause before a node asks again for what an absent server could not do.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The datacentre of servers that are not told another.
const DATACENTER: &str = "dc1";

/// Behind the ID of a workload in that of its sidecar.
const SIDECAR: &str = "-sidecar-proxy";

/// From a workload's port to the public port of its sidecar: behind all of those.
const SIDECAR_PORT_OFFSET: u16 = 20_000;

/// Where an application finds its upstreams: not where it listens, so that it may do so at the same port.
const UPSTREAM_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

/// Where one of a node that can be made to read slowly finds the service that is never at rest.
const RESTLESS_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// The first address of a node.
const ADDRESS_FIRST: u32 = 0x0a00_0001;

/// What a node is started with.
pub(super) struct NodeSpec {
    /// Its number in the fleet.
    pub(super) number: u32,
    pub(super) workloads: Vec<Workload>,
    /// The first is the one that it tries first; with several it keeps a stream in reserve.
    pub(super) servers: Vec<String>,
    pub(super) token: String,
    /// Its own folder.
    pub(super) directory: PathBuf,
    pub(super) in_force: Arc<dyn InForce>,
    /// Whether it can be made to read slowly: its first workload calls a service that is never at rest.
    pub(super) slow: bool,
}

/// A node that runs.
pub(super) struct SimulatedNode {
    node: RemoteNode,
    workloads: Vec<Workload>,
    slow: bool,
    /// Held, so that they are renewed as they are for proxies.
    leaves: Vec<watch::Receiver<Arc<Leaf>>>,
}

impl NodeSpec {
    /// Starts it: it has joined, is attached, and agrees with the catalog.
    ///
    /// # Errors
    /// When it is not let in, or not in time.
    pub(super) async fn start(self) -> anyhow::Result<SimulatedNode> {
        let name = name(self.number);
        std::fs::create_dir_all(&self.directory)
            .with_context(|| format!("cannot make {}", self.directory.display()))?;
        let agent = AgentConfig {
            node: Node {
                name: NodeName::new(&name)?,
                id: format!("00000000-0000-4000-8000-{:012x}", self.number),
                address: Ipv4Addr::from(ADDRESS_FIRST + self.number).to_string(),
                tagged_addresses: BTreeMap::new(),
                meta: BTreeMap::new(),
            },
            locality: None,
            datacenter: Datacenter::new(DATACENTER)?,
            data_dir: self.directory,
            script_checks: starling_agent::ScriptChecks::NONE,
            sidecar_ports: DEFAULT_SIDECAR_PORTS,
            services_of_files: BTreeSet::new(),
            checks_of_files: BTreeSet::new(),
            clock: system_clock(),
        };
        let config = NodeConfig {
            standby: self.servers.len() > 1,
            servers: self.servers,
            join_token: Some(self.token),
            agent,
            native: Some(self.in_force),
        };
        let started = tokio::time::timeout(STEP_DEADLINE, RemoteNode::start(config)).await;
        let node = started.with_context(|| format!("{name} did not join within {STEP_DEADLINE:?}"))?;
        let node = node.with_context(|| format!("{name} did not join"))?;
        Ok(SimulatedNode { node, workloads: self.workloads, slow: self.slow, leaves: Vec::new() })
    }
}

impl SimulatedNode {
    pub(super) fn name(&self) -> &str {
        self.node.agent.node().name.as_str()
    }

    /// Whether it can be made to read slowly.
    pub(super) fn is_slow(&self) -> bool {
        self.slow
    }

    /// How many workloads it has.
    pub(super) fn size(&self) -> u32 {
        u32::try_from(self.workloads.len()).unwrap_or(u32::MAX)
    }

    /// Registers every workload and its sidecar; what comes together is written together.
    ///
    /// # Errors
    /// When the server refuses, or is not there in time.
    pub(super) async fn register(&self) -> anyhow::Result<()> {
        let agent = &self.node.agent;
        let mut registrations = Vec::new();
        for (place, workload) in self.workloads.iter().enumerate() {
            let restless = self.slow && place == 0;
            registrations.extend(registrations_of(workload, &agent.node().name, restless)?);
        }
        let all = registrations.into_iter().map(|given| registered(agent, given));
        let registered = tokio::time::timeout(STEP_DEADLINE, try_join_all(all)).await;
        let registered = registered.with_context(|| format!("{} did not register in time", self.name()))?;
        registered.with_context(|| format!("{} could not register", self.name()))?;
        Ok(())
    }

    /// Gets a certificate for every service that it runs; what is asked for together shares calls.
    ///
    /// # Errors
    /// When the server does not sign, or not in time.
    pub(super) async fn certify(&mut self) -> anyhow::Result<()> {
        let services: BTreeSet<&str> = self.workloads.iter().map(|workload| workload.service.as_str()).collect();
        let services: Vec<ServiceName> = services.into_iter().map(ServiceName::new).collect::<Result<_, _>>()?;
        let leaves = self.node.agent.leaves();
        let all = services.iter().map(|service| issued(leaves, service));
        let issued = tokio::time::timeout(STEP_DEADLINE, try_join_all(all)).await;
        let issued = issued.with_context(|| format!("{} got no certificates in time", self.name()))?;
        self.leaves = issued.with_context(|| format!("{} got no certificates", self.name()))?;
        Ok(())
    }

    /// Whether the next request of every workload would be served by what is expected. One that is not yet served is not.
    pub(super) fn knows(&self, expected: Expected) -> anyhow::Result<bool> {
        let (common, restless) = (ServiceName::new(COMMON_UPSTREAM)?, ServiceName::new(RESTLESS_UPSTREAM)?);
        let (mut knowing, mut callers) = (0, 0);
        self.node.visit_workloads(&mut |_, workload| {
            let knows = match expected {
                Expected::Endpoints(count) => called(workload, &common)
                    .is_some_and(|place| u32::try_from(workload.endpoints[place].load().endpoints.len()) == Ok(count)),
                Expected::Denied(denied) => denies_everybody(workload) == Some(denied),
                Expected::RestlessAt(address) => {
                    let Some(place) = called(workload, &restless) else { return };
                    let part = workload.endpoints[place].load();
                    !part.endpoints.is_empty() && part.endpoints.iter().all(|it| it.address == IpAddr::V4(address))
                }
            };
            callers += 1;
            knowing += u32::from(knows);
        });
        let there = match expected {
            Expected::Endpoints(_) | Expected::Denied(_) => self.size(),
            // Of a node that can be made to read slowly one workload calls that service.
            Expected::RestlessAt(_) => self.size().min(1),
        };
        Ok(callers == there && knowing == there)
    }

    /// Everything up to here has been heard.
    pub(super) fn heard_through(&self) -> Revision {
        self.node.heard_through()
    }
}

/// Which of the services that a workload calls it is.
fn called(workload: &NativeWorkload, service: &ServiceName) -> Option<usize> {
    workload.plan.endpoints.iter().position(|part| part.service == *service)
}

/// Whether a workload denies calls of a service that nothing is written for but the wildcard; `None` if it takes none.
fn denies_everybody(workload: &NativeWorkload) -> Option<bool> {
    let called = &workload.plan.inbound.as_ref()?.service;
    let nobody = ServiceName::new("nobody").ok()?;
    let verdict = workload.policies.load().policy(called).authorise(&nobody, None);
    Some(verdict.action == Action::Deny && verdict.rule().is_some())
}

/// Registers a service, and waits until it is written, as its agent does, however often the server is away meanwhile.
async fn registered(agent: &Agent, given: ServiceRegistration) -> Result<Registered, RegisterError> {
    loop {
        match agent.register_service(given.clone(), ExistingChecks::Replace).await {
            Err(RegisterError::Write(WriteError::Unavailable(_))) => tokio::time::sleep(AGAIN_AFTER).await,
            outcome => return outcome,
        }
    }
}

/// Gets a certificate, however often the server is away meanwhile.
async fn issued(leaves: &Leaves, service: &ServiceName) -> Result<watch::Receiver<Arc<Leaf>>, LeafError> {
    loop {
        match leaves.leaf(service).await {
            Err(LeafError::Link(LinkError::Unavailable(_))) => tokio::time::sleep(AGAIN_AFTER).await,
            outcome => return outcome,
        }
    }
}

/// What a node is called.
pub(super) fn name(number: u32) -> String {
    format!("fleet-{number:05}")
}

/// Whether an instance is a workload's sidecar.
pub(super) fn is_sidecar(id: &InstanceId) -> bool {
    id.as_str().ends_with(SIDECAR)
}

/// A workload and its sidecar, which calls the restless service if it is told to. They are given apart, because a nested sidecar would be probed, and there is no socket.
fn registrations_of(workload: &Workload, node: &NodeName, restless: bool) -> anyhow::Result<[ServiceRegistration; 2]> {
    let service = ServiceName::new(&workload.service)?;
    let id = InstanceId::new(&workload.id)?;
    let port = |port: u16| Port::try_from(i64::from(port));
    let upstream = |name, bind_address| {
        let (destination, bind_port) = (ServiceName::new(name)?, port(workload.port)?);
        anyhow::Ok(Upstream {
            destination,
            bind_address,
            bind_port,
            config: OpaqueSettings::default(),
            kind_unsaid: false,
        })
    };
    let mut upstreams = vec![upstream(COMMON_UPSTREAM, UPSTREAM_ADDRESS)?];
    if restless {
        upstreams.push(upstream(RESTLESS_UPSTREAM, RESTLESS_ADDRESS)?);
    }
    let proxy = SidecarProxy {
        destination: service.clone(),
        destination_id: Some(id.clone()),
        local_address: Ipv4Addr::LOCALHOST.to_string(),
        local_port: Some(port(workload.port)?),
        upstreams,
        config: OpaqueSettings::default(),
        transparent: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    let instance = |id: InstanceId, name: ServiceName, kind: InstanceKind, port: Port| ServiceInstance {
        key: InstanceKey { node: node.clone(), id },
        name,
        kind,
        address: None,
        port: Some(port),
        tags: Vec::new(),
        meta: BTreeMap::new(),
        tagged_addresses: BTreeMap::new(),
        weights: Weights::default(),
        enable_tag_override: false,
        native: false,
        locality: None,
        kept: starling_model::OpaqueSettings::default(),
    };
    let alone = |instance| ServiceRegistration { instance, checks: Vec::new(), sidecar: None };
    let sidecar_id = InstanceId::new(&format!("{id}{SIDECAR}"))?;
    let sidecar_name = ServiceName::new(&format!("{service}{SIDECAR}"))?;
    let sidecar_port = port(workload.port + SIDECAR_PORT_OFFSET)?;
    Ok([
        alone(instance(id, service, InstanceKind::Typical, port(workload.port)?)),
        alone(instance(sidecar_id, sidecar_name, InstanceKind::Sidecar(Box::new(proxy)), sidecar_port)),
    ])
}
